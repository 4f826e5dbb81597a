"""A relay before an sshd that breaks its first connections once so many bytes have passed."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from types import TracebackType

from tests.support.sshd import Sshd

RST = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class BreakingRelay:
    """As a context it listens on `port`; `connections` counts those that it took."""

    def __init__(self, sshd: Sshd, after_bytes: int, times: int = 1) -> None:
        """`after_bytes`: how much the client may send by each of the first `times` connections; then comes a RST."""
        self._sshd = sshd
        self._after_bytes = after_bytes
        self._times = times
        self.connections = 0
        self._listener = socket.create_server((sshd.address, 0))
        self.port = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> BreakingRelay:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, traceback: TracebackType | None) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._sshd.address, self._sshd.port))
                self._sockets += [client, server]
                self.connections += 1
                most = self._after_bytes if self.connections <= self._times else None
                threading.Thread(target=_pump, args=[client, server, most], daemon=True).start()


def _pump(client: socket.socket, server: socket.socket, most: int | None) -> None:
    """Pass on what comes; break both ends once more than `most` bytes have come from the client."""
    other, came = {client: server, server: client}, 0
    # One thread for both: a socket that another thread reads is not closed before that.
    with contextlib.suppress(OSError, ValueError):
        while True:
            for source in select.select([client, server], [], [])[0]:
                data = source.recv(65536)
                came += len(data) if source is client else 0
                if not data or (most is not None and came > most):
                    for each in other:
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
                        each.close()
                    return
                other[source].sendall(data)
