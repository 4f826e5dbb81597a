"""A wire over the stdio of a process of this machine: the agent, or what leads to one, as `kubectl exec` does."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Sequence

from tflaunch.protocol.errors import ConnectError, NoThreads, WireClosed
from tflaunch.sessions.child import Child
from tflaunch.sessions.socket_tools import RECV_BYTES, has_room, text
from tflaunch.sessions.wires import OF_SSH, Advice


class ProcessWire:
    """The stdio of a command of this machine, in a session of its own; `first` is sent to it at once.

    Raises ConnectError where it cannot be started.
    """

    def __init__(self, argv: Sequence[str], first: bytes = b"", advice: Advice = OF_SSH) -> None:
        self.advice = advice
        try:
            self._child = Child(argv)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise NoThreads from None
            raise ConnectError(
                f"{argv[0]} could not be started here: {error.strerror}",
                "is it installed? is this machine out of memory or of file descriptors? see `ulimit -n`",
            ) from None
        self._reading = threading.Lock()
        if first:
            with contextlib.suppress(WireClosed):  # listen and last_words tell why
                self.send(first)

    def listen(self, take: Callable[[bytes], None]) -> None:
        threading.Thread(target=self._read, args=[take], name="read", daemon=True).start()

    def send(self, data: bytes) -> None:
        try:
            self._child.socket.sendall(data)
        except OSError as error:
            reason = self.last_words() or text(error)
            raise WireClosed(f"the connection is closed: {reason}") from None

    def send_now(self, data: bytes) -> bool:
        if not has_room(self._child.socket, len(data)):
            return False
        self.send(data)
        return True

    @property
    def acknowledged(self) -> bool:
        return False

    def close(self) -> None:
        self._child.hang_up()
        with self._reading:  # else the reader could read from a new file that has got the same descriptor
            self._child.socket.close()

    def _read(self, take: Callable[[bytes], None]) -> None:
        data = b"."
        while data:
            with self._reading:
                try:
                    data = self._child.socket.recv(RECV_BYTES)
                except OSError:
                    data = b""
            take(data)

    def last_words(self) -> str:
        return self._child.last_words()
