"""One wire to a host, and what comes through it."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.sshd import Sshd, SshNetwork
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.remote import ConnectOptions, Connector
from tflaunch.sessions.wires import Wire

LOCAL = Host(name="here", connection="local")
MIB = 1 << 20
SESAME = "open sesame"


class Client:
    """A connector over the test's network that is closed with its wires at the end."""

    def __init__(self, network: SshNetwork) -> None:
        self.network = network
        self._opened: list[Any] = []

    def connector(
        self,
        hosts: Sequence[Host],
        ask: Callable[[str], str] | None = None,
        *,
        timeout_s: float = 60,
        accept_new: bool = False,
    ) -> Connector:
        options = ConnectOptions(timeout_s, accept_new, self.network.config)
        connector = Connector(hosts, options, ask)
        self._opened.append(connector)
        return connector

    def host(self, kind: str, **options: Any) -> Host:
        """A new host that is reached in that way."""
        return LOCAL if kind == "local" else self.network.add(**options).host(connection=kind)

    def open(self, host: Host, command: str = "cat", first: bytes = b"", **options: Any) -> Line:
        wire = Line(self.connector([host], **options).open(host, command, first))
        self._opened.append(wire)
        return wire

    def refusal(self, host: Host, command: str = "cat", **options: Any) -> ConnectError:
        """The error that connecting ends with; every one has a message and a remedy, and names no host."""
        with pytest.raises(ConnectError) as caught:
            self.open(host, command, **options)
        assert caught.value.message
        assert caught.value.hint
        assert host.name not in caught.value.message
        return caught.value

    def close(self) -> None:
        for opened in reversed(self._opened):
            opened.close()


def at(server: socket.socket, **changes: Any) -> Host:
    return Host(name="gpu01", ssh_host="127.0.0.1", port=server.getsockname()[1], **changes)


class Line:
    """A wire from which what comes can be read, as from a socket."""

    def __init__(self, wire: Wire) -> None:
        self.send, self.send_now = wire.send, wire.send_now
        self.close, self.last_words = wire.close, wire.last_words
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = b""
        self._over = False
        wire.listen(self._came.put)

    def recv(self, size: int) -> bytes:
        if not self._rest and not self._over:
            self._rest = self._came.get(timeout=PATIENCE_S)
            self._over = not self._rest
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def read(wire: Line, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := wire.recv(65536)):
        data += more
    return data


def everything(wire: Line) -> bytes:
    return read(wire, sys.maxsize)


def serve(listener: socket.socket, *answers: bytes) -> threading.Thread:
    """Say one answer to each caller in turn, and hang up."""

    def loop() -> None:
        for answer in answers:
            caller, _ = listener.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(answer)
                caller.shutdown(socket.SHUT_WR)
                while caller.recv(65536):
                    pass

    thread = threading.Thread(target=loop)
    thread.start()
    return thread


def asked(client: Client, sshd: Sshd) -> subprocess.CompletedProcess[str]:
    """What ssh itself makes of that host."""
    argv = ["ssh", "-F", client.network.config, "-o", "BatchMode=yes", sshd.name, "echo in"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
