"""Hears at once that a log has grown, where the kernel tells (inotify); where not, the agent looks by and by."""

import os
import time

from tflaunch.protocol.machine import libc
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from tflaunch.protocol.selector import Selector

IN_MODIFY = 2
REST_S = 0.005  # between two hearings: a flood is taken in portions


class Notice:
    """Wakes a selector when a file in `directory` is written to, while somebody wants to know."""

    def __init__(self, directory: str, selector: "Selector") -> None:
        self._selector = selector
        self._descriptor = _inotify(directory)
        self._listens = False
        self._rests_until = 0.0

    @property
    def works(self) -> bool:
        """Whether the kernel tells."""
        return self._descriptor >= 0

    def wanted(self, wanted: bool, now: float) -> "Optional[float]":
        """Listen, or do not; how long this must be asked again at the latest, if that matters."""
        rest_s = self._rests_until - now
        listen = wanted and self.works and rest_s <= 0
        if listen and not self._listens:
            self._selector.register(self._descriptor, EVENT_READ, self._hear)
        elif self._listens and not listen:
            self._selector.unregister(self._descriptor)
        self._listens = listen
        return rest_s if wanted and rest_s > 0 else None

    def _hear(self) -> None:
        os.read(self._descriptor, 65536)
        self._rests_until = time.monotonic() + REST_S


def _inotify(directory: str) -> int:
    """The descriptor that tells of it, or -1: no inotify, or this user has too many."""
    try:
        descriptor = libc("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0 and libc("inotify_add_watch", descriptor, os.fsencode(directory), IN_MODIFY) < 0:
            os.close(descriptor)
            return -1
    except (OSError, AttributeError):
        return -1
    return descriptor
