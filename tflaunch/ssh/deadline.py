"""The one time limit of a connection, which every step of it keeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Deadline:
    """A point in time that every step has to keep; printed as the seconds that there were."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def __str__(self) -> str:
        return f"{self._seconds:g} s"

    def left(self) -> float:
        """Seconds until then, never zero: a socket would take that for "do not wait"."""
        return max(0.001, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        # Those who waited until it must find it passed, whatever their clock.
        return time.monotonic() >= self._at - 0.01

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside takes nothing of the time: it is work of this machine's, no host is waited for."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._at += time.monotonic() - began


class NameTimeout(TimeoutError):
    """The name look-up took too long."""
