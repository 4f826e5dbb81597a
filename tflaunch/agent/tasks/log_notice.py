"""Wakes the agent at once when a log has grown, by inotify; where that does not work, the agent polls the logs."""

import os
import time

from tflaunch.protocol.machine import libc
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from tflaunch.protocol.selector import Selector

IN_MODIFY = 2
REST_S = 0.005  # pause between two wakings, so that the agent takes a flood of output in larger pieces


class Notice:
    """Wakes a selector when a task writes to a file in `directory`, as long as a viewer wants the logs."""

    def __init__(self, directory: str, selector: "Selector") -> None:
        self._selector = selector
        self._descriptor = _inotify(directory)
        self._watches = False
        self._rests_until = 0.0

    @property
    def works(self) -> bool:
        """Whether inotify works here."""
        return self._descriptor >= 0

    def watch(self, wanted: bool, now: float) -> "Optional[float]":
        """Watch or stop watching; returns the seconds until this must be called again, None for no limit."""
        rest_s = self._rests_until - now
        watch = wanted and self.works and rest_s <= 0
        if watch and not self._watches:
            self._selector.register(self._descriptor, EVENT_READ, self._woken)
        elif self._watches and not watch:
            self._selector.unregister(self._descriptor)
        self._watches = watch
        return rest_s if wanted and rest_s > 0 else None

    def _woken(self) -> None:
        os.read(self._descriptor, 65536)
        self._rests_until = time.monotonic() + REST_S


def _inotify(directory: str) -> int:
    """An inotify descriptor for the directory; -1 if there is no inotify, or this user has too many descriptors."""
    try:
        descriptor = libc("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor >= 0 and libc("inotify_add_watch", descriptor, os.fsencode(directory), IN_MODIFY) < 0:
            os.close(descriptor)
            return -1
    except (OSError, AttributeError):
        return -1
    return descriptor
