"""paramiko's transport, and the stream below it, tuned for latency."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

from paramiko import Channel, Message, Transport
from paramiko.packet import Packetizer
from paramiko.ssh_exception import SSHException

from tflaunch.protocol.tcp_info import tcp_info
from tflaunch.sessions.child import Child
from tflaunch.sessions.socket_tools import has_room, in_thread, tune

POLL_S = 5.0  # paramiko looks this often whether it was closed; closing wakes it anyway
AHEAD_BYTES = 4096  # to read at least, if so many are there: most packets are smaller
AHEAD_IN_FLOOD = 256 * 1024
PACKET_BYTES = 256 * 1024
BANNER_BYTES = 64 * 1024  # the banner, with the lines that may come before it
ACKED_S = 6.0  # something is sent every 5 s (RENEW_S), and acknowledged at once where the other side lives
HEAD = 255  # bytes that are kept: the longest identification string of RFC 4253


class SshStream:
    """What paramiko takes for a socket; it keeps how the stream began, and whether the other side ended it.

    `endpoint` is a socket, or the channel of a jump host's connection; `child` the ProxyCommand behind a socket.
    Most of a handshake's time is Nagle's algorithm, waiting for delayed ACKs: hence TCP_NODELAY, and TCP_QUICKACK
    after each read because Linux forgets it; `calm` ends the latter.
    """

    def __init__(self, endpoint: socket.socket | Channel, child: Child | None = None) -> None:
        self._endpoint = endpoint
        self.child = child
        self.reader: threading.Thread | None = None  # paramiko's, once there is a transport
        self.head = b""  # the first bytes that came
        self.ended = False  # the other side has closed the stream, or broken it
        self._unacknowledged = False
        self._closed = False  # paramiko looks at it
        self._read, self._taken = b"", 0
        self._ahead = AHEAD_BYTES
        self._eager = False
        if isinstance(endpoint, socket.socket) and endpoint.family != socket.AF_UNIX:
            tune(endpoint)
            self._eager = hasattr(socket, "TCP_QUICKACK")

    def recv(self, size: int) -> bytes:
        # paramiko takes a packet in two pieces or three; the system is asked once for as many packets as there are.
        if self._taken == len(self._read):
            self._read, self._taken = self._receive(max(size, self._ahead)), 0
            self._ahead = AHEAD_IN_FLOOD if len(self._read) >= self._ahead else AHEAD_BYTES
        data = self._read[self._taken : self._taken + size]
        self._taken += len(data)
        return data

    def _receive(self, size: int) -> bytes:
        try:
            data = self._endpoint.recv(size)
            if self._eager:
                self._endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # type: ignore[union-attr]
        except OSError as error:
            raise self._failed(error) from None
        if not data:
            self.ended = True
        elif len(self.head) < HEAD:
            self.head += data[:HEAD]
        return data

    def send(self, data: bytes) -> int:
        try:
            return self._endpoint.send(data)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> OSError:
        if isinstance(error, TimeoutError):
            if error.errno is None:  # the end of a settimeout: paramiko looks whether it was closed
                return error
            # The kernel has cut the connection; paramiko would take that for the end of a settimeout.
            self._unacknowledged = True
            error = ConnectionAbortedError(error.errno, error.strerror)
        self.ended = True
        return error

    @property
    def unacknowledged(self) -> bool:
        """Whether the other side does not acknowledge what was sent last; False where the system does not tell."""
        if (
            self._unacknowledged
            or not hasattr(socket, "TCP_INFO")
            or not isinstance(self._endpoint, socket.socket)
        ):
            return self._unacknowledged
        with contextlib.suppress(OSError):
            about = self._endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
            return (
                len(about) == 28 and about[2] > 1 and about[24:28] != bytes(4)
            )  # retransmits; unacknowledged
        return False

    @property
    def acknowledged(self) -> bool:
        """Whether the server's kernel has acknowledged all, or anything lately; False through a jump host."""
        about = tcp_info(self._endpoint) if isinstance(self._endpoint, socket.socket) else None
        return about is not None and (not about.unacked or about.acked_ago_s < ACKED_S)

    def has_room(self, size: int) -> bool:
        """Whether that many bytes can be sent without waiting; False for a jump host's channel, which does not tell."""
        return isinstance(self._endpoint, socket.socket) and has_room(self._endpoint, size)

    def settimeout(self, seconds: float | None) -> None:
        self._endpoint.settimeout(seconds)

    def calm(self) -> None:
        """The handshake is over: stop acknowledging each packet at once."""
        self._eager = False

    def close(self) -> None:
        """End the stream, which wakes paramiko's thread, the reader; its socket is closed when the reader has left it.

        If the socket were closed under the reader, its descriptor's number could already be another connection's.
        """
        first, self._closed = not self._closed, True
        reading = self.reader is not None and self.reader.is_alive()
        if self.reader is threading.current_thread():
            reading = False
        elif self.child:
            self.child.end()  # not by the reader: `explained` asks why the child ended by itself
        if isinstance(self._endpoint, socket.socket):
            if first:
                with contextlib.suppress(OSError):
                    self._endpoint.shutdown(socket.SHUT_RDWR)
            if not reading:
                self._endpoint.close()
        elif first:  # a channel says goodbye, and would wait for a jump host that takes nothing
            in_thread(self._close_channel)

    def _close_channel(self) -> None:
        with contextlib.suppress(OSError, EOFError, SSHException):
            self._endpoint.close()


class QuietPacketizer(Packetizer):
    """paramiko's, with limits for what a server sends, as OpenSSH has them.

    Without the timer thread of each handshake, which could delay our exit: Deadline replaces it.
    """

    _before_keys = 0  # bytes up to the end of the server's banner

    def start_handshake(self, timeout: float) -> None:
        pass

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        # paramiko would have as much memory set aside as the server says.
        if n > PACKET_BYTES:
            raise SSHException(f"the server sends a packet of {n} bytes, and {PACKET_BYTES} are the most")
        return super().read_all(n, check_rekey)

    def _read_timeout(self, timeout: float) -> bytes:
        data: bytes = super()._read_timeout(timeout)  # type: ignore[misc]
        self._before_keys += len(data)
        if self._before_keys > BANNER_BYTES:
            raise SSHException(f": it is longer than {BANNER_BYTES} bytes")
        return data


# The key exchange with two names, of which paramiko knows the older; none where OpenSSL has no such curve (FIPS).
_CURVE = {
    name.removesuffix("@libssh.org"): kex
    for name, kex in Transport._kex_info.items()  # type: ignore[attr-defined]
    if name == "curve25519-sha256@libssh.org"
}


class TunedTransport(Transport):
    """paramiko's, with the cheapest cipher first and without the key exchange that costs seconds of CPU."""

    _active_check_timeout = POLL_S
    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    )
    _kex_info = {**Transport._kex_info, **_CURVE}  # type: ignore[attr-defined]  # noqa: RUF012
    _preferred_kex = (
        *(
            name
            for name in Transport._preferred_kex  # type: ignore[attr-defined]
            if "group-exchange" not in name
        ),
        *_CURVE,
    )
    offered: Mapping[str, list[str]] | None = None  # the server's algorithms, once it has sent them

    def _really_parse_kex_init(self, message: Message, ignore_first_byte: bool = False) -> dict[str, Any]:
        parsed: dict[str, Any] = super()._really_parse_kex_init(message, ignore_first_byte)  # type: ignore[misc]
        if not ignore_first_byte:  # else it is ours
            self._take_offer(parsed)
        return parsed

    def _take_offer(self, offered: dict[str, Any]) -> None:
        """Keep what the server offers, before paramiko chooses."""
        self.offered = {name: [*value] for name, value in offered.items() if isinstance(value, list)}
        macs: tuple[str, ...] = self._preferred_macs  # type: ignore[has-type]
        if self._aead(offered) and not set(macs) & set(offered["server_mac_algo_list"]):
            # Such a cipher needs no MAC; OpenSSH asks for none in common then, and paramiko would.
            unused = offered["server_mac_algo_list"][:1] + offered["client_mac_algo_list"][:1]
            self._preferred_macs = (*macs, *unused)
            self._mac_info = {**dict.fromkeys(unused, self._mac_info[macs[0]]), **self._mac_info}  # type: ignore[has-type]

    def _filter_algorithm(self, kind: str) -> tuple[str, ...]:
        return tuple(getattr(self, f"_preferred_{kind}"))  # none is disabled: those left out are not in it

    def _send_user_message(self, message: Message) -> None:
        # paramiko's waits, even where nothing is to be waited for: for the end of a key exchange.
        with self.clear_to_send_lock:
            if at_once := self.is_active() and self.clear_to_send.is_set():
                self._send_message(message)  # type: ignore[attr-defined]
        if not at_once:
            super()._send_user_message(message)  # type: ignore[misc]

    def _log(self, level: int, msg: object, *args: object) -> None:
        if self.logger.isEnabledFor(level):
            super()._log(level, msg, *args)  # type: ignore[misc]

    def _aead(self, offered: Mapping[str, list[str]]) -> bool:
        """Whether the ciphers for both directions will also authenticate (AEAD)."""
        for way in ("client", "server"):
            theirs = offered[f"{way}_encrypt_algo_list"]
            first = next((name for name in self._preferred_ciphers if name in theirs), "")
            if not self._cipher_info.get(first, {}).get("is_aead", False):  # type: ignore[attr-defined]
                return False
        return True

    def lacking(self) -> tuple[str, list[str], list[str]] | None:
        """A kind of algorithm that the two have none of in common: its keyword in sshd_config, the server's, ours."""
        if self.offered is None:
            return None
        options = self.get_security_options()
        kinds = (
            ("KexAlgorithms", "kex_algo_list", options.kex),
            ("HostKeyAlgorithms", "server_key_algo_list", options.key_types),
            ("Ciphers", "server_encrypt_algo_list", options.ciphers),
            ("Ciphers", "client_encrypt_algo_list", options.ciphers),
            ("MACs", "server_mac_algo_list", options.digests),
            ("MACs", "client_mac_algo_list", options.digests),
        )
        for keyword, key, known in kinds:
            # Without the names that are no algorithms: they say that something else is understood.
            theirs = [name for name in self.offered[key] if not name.startswith(("ext-info-", "kex-strict-"))]
            if not set(theirs) & set(known):
                return keyword, theirs, [*known]
        return None

    def _parse_debug(self, message: Message) -> None:
        """Do nothing: sshd sends a line about authorized_keys at each login, which paramiko formats byte by byte."""
