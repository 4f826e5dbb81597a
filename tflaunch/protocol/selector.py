"""Waits for files to be ready, as the module `selectors` does, for the agent's loop and the launcher's tunnel.

It loads less than `selectors`, and while there is no descriptor for another connection, a listener rests for REST_S
instead of waking the loop again at once.  Without epoll (a launcher on macOS) it uses `selectors.DefaultSelector`.
"""

import errno
import select
import time

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

EVENT_READ = 1  # as in `selectors`, which takes as long to load as a task to start
EVENT_WRITE = 2
REST_S = 0.1
_IN, _OUT = 1, 4  # EPOLLIN and EPOLLOUT, also where `select` has no epoll
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Key:
    """A registered file; the loop calls `data` when some of the `events` have come."""

    __slots__ = ("data", "events", "fd", "fileobj")

    def __init__(self, fileobj: "Any", fd: int, events: int, data: "Callable[[], Any]") -> None:
        self.fileobj = fileobj
        self.fd = fd
        self.events = events
        self.data = data


class Selector:
    """One for each event loop; its methods promise what those of the `selectors` module do."""

    def __init__(self) -> None:
        self._poll = select.epoll() if hasattr(select, "epoll") else _WithoutEpoll()  # type: Any
        self._keys = {}  # type: Dict[int, Key]
        self._resting = []  # type: List[Tuple[float, Key]]

    def register(self, fileobj: "Any", events: int, data: "Callable[[], Any]") -> None:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._poll.register(fd, _mask(events))
        self._keys[fd] = Key(fileobj, fd, events, data)

    def modify(self, fileobj: "Any", events: int, data: "Callable[[], Any]") -> None:
        key = self.get_key(fileobj)
        if events != key.events:
            self._poll.modify(key.fd, _mask(events))
        key.events, key.data = events, data

    def unregister(self, fileobj: "Any") -> Key:
        for resting in self._resting:
            if resting[1].fileobj is fileobj:
                self._resting.remove(resting)
                return resting[1]
        key = self._keys.pop(self.get_key(fileobj).fd)
        try:
            self._poll.unregister(key.fd)
        except OSError:
            pass  # the file was closed, which has ended the registration
        return key

    def get_key(self, fileobj: "Any") -> Key:
        """Raises KeyError when it is not registered."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd < 0:  # it is closed
            fd = next((key.fd for key in self._keys.values() if key.fileobj is fileobj), fd)
        return self._keys[fd]

    def get_map(self) -> "Dict[int, Key]":
        """The registered files, by descriptor."""
        return self._keys

    def select(self, timeout: "Optional[float]" = None) -> "List[Tuple[Key, int]]":
        now = time.monotonic()
        while self._resting and self._resting[0][0] <= now:
            _, key = self._resting.pop(0)
            self.register(key.fileobj, key.events, key.data)
        if self._resting:
            rest_s = self._resting[0][0] - now
            timeout = rest_s if timeout is None else min(timeout, rest_s)
        # Rounded up to a whole millisecond: after too short a wait the loop turns once more for nothing.
        wait_s = -1 if timeout is None else int(timeout * 1000 + 0.999) / 1000
        found = []
        for fd, mask in self._poll.poll(wait_s, max(len(self._keys), 1)):
            if fd in self._keys:
                # Both the reader and the writer have to notice an error or a hang-up.
                events = (mask & ~_OUT and EVENT_READ) | (mask & ~_IN and EVENT_WRITE)
                found.append((self._keys[fd], events & self._keys[fd].events))
        return found

    def accept(self, listener: "socket.socket") -> "Optional[socket.socket]":
        """The next connection; None when it has gone again, or has to wait until there is a descriptor for it."""
        try:
            descriptor = listener._accept()[0]  # type: ignore[attr-defined]
            return socket.socket(listener.family, listener.type, listener.proto, descriptor)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._resting.append((time.monotonic() + REST_S, self.unregister(listener)))
            return None

    def close(self) -> None:
        self._poll.close()


class _WithoutEpoll:
    """An epoll object in the terms of `selectors`, for a system without epoll."""

    def __init__(self) -> None:
        import selectors

        self._selector = selectors.DefaultSelector()
        self.unregister = self._selector.unregister
        self.close = self._selector.close

    def register(self, fd: int, mask: int) -> None:
        self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int) -> None:
        self._selector.modify(fd, _events(mask))

    def poll(self, wait_s: float, most: int) -> "List[Tuple[int, int]]":
        found = self._selector.select(None if wait_s < 0 else wait_s)
        return [(key.fd, _mask(events)) for key, events in found[:most]]


def _mask(events: int) -> int:
    return (_IN if events & EVENT_READ else 0) | (_OUT if events & EVENT_WRITE else 0)


def _events(mask: int) -> int:
    return (EVENT_READ if mask & _IN else 0) | (EVENT_WRITE if mask & _OUT else 0)
