"""The one time limit of a connection, which every step of it keeps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Deadline:
    """A point in time that every step has to keep; printed as its seconds from start to end."""

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
        # A thread that has waited until then must find it passed, even if its wait ended a little early.
        return time.monotonic() >= self._at - 0.01

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside does not count: it is this machine's own work, and waits for no host."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._at += time.monotonic() - began


class NameTimeout(TimeoutError):
    """The name look-up took too long."""


class BindError(OSError):
    """This machine has no such address to dial from."""
