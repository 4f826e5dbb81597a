"""Servers that say and do what no sshd does: a relay before a real sshd, and servers of their own.

Both listen on 127.0.0.1, each connection in a thread, until `close()`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko
from paramiko import Channel, Message, ServerInterface, Transport, common
from paramiko.server import InteractiveQuery


class Listener:
    """Hands each caller to a function, in a thread of its own."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def serve(self, caller: socket.socket) -> None:
        """Speak with one caller."""
        raise NotImplementedError

    def close(self) -> None:
        """Take no more callers."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._socket.accept()
                threading.Thread(target=self.serve, args=(caller,), daemon=True).start()


class Relay(Listener):
    """Whoever stands between: it says something before the banner of the sshd behind it, and carries all else."""

    def __init__(self, address: tuple[str, int], before: bytes) -> None:
        self._address, self._before = address, before
        super().__init__()

    def serve(self, caller: socket.socket) -> None:
        with socket.create_connection(self._address) as server, caller:
            caller.sendall(self._before)
            back = threading.Thread(target=_carry, args=(server, caller), daemon=True)
            back.start()
            _carry(caller, server)
            back.join()


class HostileSshd(Listener):
    """A server of its own, with its own key, which says what it is given and lets nobody in."""

    def __init__(
        self,
        key: Path,
        *,
        debug: str = "",
        banner: str = "",
        methods: str = "publickey",
        disconnect: str = "",
        before_keys: bool = False,
    ) -> None:
        """`debug`: an SSH_MSG_DEBUG before the key exchange; `disconnect`: how it hangs up, `before_keys` or after."""
        self._key = paramiko.Ed25519Key.from_private_key_file(str(key))
        self._debug, self._banner, self._methods = debug, banner, methods
        self._disconnect, self._before_keys = disconnect, before_keys
        super().__init__()

    def serve(self, caller: socket.socket) -> None:
        transport = _Talkative(caller, self._debug, self._disconnect if self._before_keys else "")
        transport.add_server_key(self._key)
        with contextlib.suppress(Exception):
            transport.start_server(
                server=_Refusing(
                    self._banner, self._methods, self._hang_up(transport) if self._disconnect else None
                )
            )
            transport.join()

    def _hang_up(self, transport: _Talkative) -> Callable[[], None]:
        return lambda: transport.hang_up(self._disconnect)


class Talker(Listener):
    """A server of one function: whatever it says to its caller, no SSH need be in it."""

    def __init__(self, talk: Callable[[socket.socket], None]) -> None:
        self._talk = talk
        super().__init__()

    def serve(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError), caller:
            self._talk(caller)


class WelcomingSshd(Listener):
    """A server that lets everybody in, and then does with the channel of each command what `behave` does."""

    def __init__(
        self,
        key: Path,
        behave: Callable[[Transport, Channel], None],
        *,
        before: Callable[[Transport], None] = lambda _: None,
        opens: int = 0,
    ) -> None:
        """`before`: what it does once the caller offers a key; `opens`: why it opens no channel, if not 0."""
        self.key = key
        self._behave, self._before, self._opens = behave, before, opens
        super().__init__()

    def serve(self, caller: socket.socket) -> None:
        transport = Transport(caller)
        transport.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(self.key)))
        with contextlib.suppress(Exception):
            transport.start_server(server=_Welcoming(transport, self._behave, self._before, self._opens))
            transport.join()


class _Welcoming(ServerInterface):
    def __init__(
        self,
        transport: Transport,
        behave: Callable[[Transport, Channel], None],
        before: Callable[[Transport], None],
        opens: int,
    ) -> None:
        self._transport, self._behave, self._before, self._opens = transport, behave, before, opens

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        self._before(self._transport)
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined,no-any-return]

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return self._opens

    def check_channel_exec_request(self, channel: Channel, command: bytes) -> bool:  # noqa: ARG002
        def behave() -> None:
            with contextlib.suppress(Exception):
                self._behave(self._transport, channel)

        threading.Thread(target=behave, daemon=True).start()
        return True


class _Talkative(Transport):
    def __init__(self, caller: socket.socket, debug: str, disconnect: str) -> None:
        super().__init__(caller, strict_kex=False)
        self._debug, self._disconnect = debug, disconnect

    def _send_kex_init(self) -> None:
        if self._debug:
            message = Message()
            message.add_byte(common.cMSG_DEBUG)
            message.add_boolean(True)
            message.add_string(self._debug)
            message.add_string("")
            self._send_message(message)  # type: ignore[attr-defined]
        if self._disconnect:
            self.hang_up(self._disconnect)
        super()._send_kex_init()  # type: ignore[misc]

    def hang_up(self, text: str) -> None:
        """Send an SSH_MSG_DISCONNECT."""
        message = Message()
        message.add_byte(common.cMSG_DISCONNECT)
        message.add_int(2)
        message.add_string(text)
        message.add_string("")
        self._send_message(message)  # type: ignore[attr-defined]


class _Refusing(ServerInterface):
    def __init__(self, banner: str, methods: str, hang_up: Callable[[], None] | None) -> None:
        self._banner, self._methods, self._hang_up = banner, methods, hang_up

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return self._methods

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        if self._hang_up:
            self._hang_up()
        return paramiko.AUTH_FAILED  # type: ignore[attr-defined,no-any-return]

    def check_auth_interactive(self, username: str, submethods: str) -> int | InteractiveQuery:  # noqa: ARG002
        return InteractiveQuery(self._banner, self._banner, self._banner, (self._banner, True))

    def check_auth_interactive_response(self, responses: list[str]) -> int | InteractiveQuery:  # noqa: ARG002
        return self.check_auth_interactive("", "")

    def get_banner(self) -> tuple[str, str]:
        return self._banner, "en"


def _carry(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
