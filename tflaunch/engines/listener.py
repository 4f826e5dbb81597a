"""Where slots tell the launcher something: lines of JSON with the token each, over TLS with the slots' certificate."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import ssl
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import IO, Any

from tflaunch.slot.holder import addresses

PROOF_S = 10.0  # for a caller to say its first line
UNPROVED = 1024  # callers that have not said the token yet; one more drops the oldest
LINE_BYTES = 64 * 1024


class SlotListener(ABC):
    """Listens from its beginning until `close`; any thread may use it."""

    def __init__(self, certificate: str, key: str, token: str) -> None:
        self.certificate, self.token = certificate, token
        self.addresses = tuple(addresses())
        self.changed = threading.Condition()
        self._unproved: dict[socket.socket, None] = {}  # the oldest first
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        with tempfile.NamedTemporaryFile("w") as file:  # which no other user reads
            file.write(certificate + key)
            file.flush()
            self._context.load_cert_chain(file.name)
        try:
            self._listener = socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True
            )
        except (OSError, ValueError):
            self._listener = socket.create_server(("", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="slot listener", daemon=True).start()

    @abstractmethod
    def hear(self, said: Mapping[str, Any], line: ssl.SSLSocket, lines: IO[bytes]) -> None:
        """Do what a caller says first; `lines` are those that follow.  May raise whatever a stranger's words cause."""

    def close(self) -> None:
        """Answer nobody any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def said(self, text: bytes) -> Mapping[str, Any]:
        """What that line says; raises ValueError for one without the token."""
        said = json.loads(text)
        if not isinstance(said, dict) or not hmac.compare_digest(str(said.get("token", "")), self.token):
            raise ValueError
        return said

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with self.changed:
                self._unproved[caller] = None
                oldest = next(iter(self._unproved)) if len(self._unproved) > UNPROVED else None
            if oldest is not None:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._welcome, args=[caller], daemon=True).start()

    def _welcome(self, caller: socket.socket) -> None:
        try:
            with caller:
                caller.settimeout(PROOF_S)
                with self._context.wrap_socket(caller.dup(), server_side=True) as line:
                    lines = line.makefile("rb")
                    said = self.said(lines.readline(LINE_BYTES))
                    self._proved(caller)
                    self.hear(said, line, lines)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # a stranger, or one that has hung up
        finally:
            self._proved(caller)

    def _proved(self, caller: socket.socket) -> None:
        with self.changed:
            self._unproved.pop(caller, None)
