"""A selector whose listeners rest while there is no room for another connection, instead of waking it at once again."""

import errno
import selectors
import time

from tflaunch.agent import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple

REST_S = 0.1
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Selector(selectors.DefaultSelector):
    """One for a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._resting = []  # type: List[Tuple[float, selectors.SelectorKey]]

    def accept(self, listener: "socket.socket") -> "Optional[socket.socket]":
        """The next connection; None when it has left again, or has to wait until there is a descriptor for it."""
        try:
            descriptor = listener._accept()[0]  # type: ignore[attr-defined]
            return socket.socket(listener.family, listener.type, listener.proto, descriptor)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._resting.append((time.monotonic() + REST_S, super().unregister(listener)))
            return None

    def select(self, timeout: "Optional[float]" = None) -> "List[Tuple[selectors.SelectorKey, int]]":
        now = time.monotonic()
        while self._resting and self._resting[0][0] <= now:
            _, key = self._resting.pop(0)
            self.register(key.fileobj, key.events, key.data)
        if self._resting:
            rest_s = self._resting[0][0] - now
            timeout = rest_s if timeout is None else min(timeout, rest_s)
        return super().select(timeout)

    def unregister(self, fileobj: "Any") -> selectors.SelectorKey:
        for resting in self._resting:
            if resting[1].fileobj is fileobj:
                self._resting.remove(resting)
                return resting[1]
        return super().unregister(fileobj)
