"""TCP between the agents of a detached run, which has no launcher: only the run's own agents can speak it.

Through SSH, the launcher gives each agent a secret of its own, and the coordinator's host the secrets of all agents.
So only the coordinator can speak to the other agents; an intruder on one of their hosts cannot speak to a third.  Both
ends first prove that they have the secret.  Then every record carries a number and a MAC, made with a key of this
connection: an attacker cannot insert, change, repeat or drop a record.  Nothing is encrypted: the agents only say which
tasks started and ended, which any user of the host can see anyway.  An agent listens on its address in the cluster, on
a port that it holds.
"""

import hashlib
import hmac
import os
import socket
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

HELLO = b"tflaunch-peer 1\n"
NONCE = 32
MAC = 32
RECORD_LIMIT = 256 * 1024
WAITING_LIMIT = 16  # connections that have not yet proved themselves ...
PROOF_S = 10.0  # ... and how long each of them may take to do so
_HEAD = struct.Struct("!I")


class PeerError(Exception):
    """The other end is not an agent of this run, or an attacker is in between."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


class SealedStream:
    """A socket with a MAC on every record; it sends and receives like a socket that does not block."""

    def __init__(self, connection: socket.socket, key_out: bytes, key_in: bytes) -> None:
        self._socket = connection
        self._keys = (key_out, key_in)
        self._counts = [0, 0]
        self._out = bytearray()
        self._in = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: "bytes | bytearray") -> int:
        """Take bytes of `data` and return how many; raises BlockingIOError for none, OSError when the peer is gone."""
        self._flush()
        piece = bytes(data[:RECORD_LIMIT])
        self._out += _HEAD.pack(len(piece)) + _mac(self._keys[0], self._next(0), piece) + piece
        try:
            self._flush()
        except BlockingIOError:
            pass  # the record is taken; `flush` or the next `send` sends the rest
        return len(piece)

    @property
    def pending(self) -> bool:
        """Whether `send` has taken bytes that are still to be sent."""
        return bool(self._out)

    def _flush(self) -> None:
        while self._out:
            del self._out[: self._socket.send(self._out)]

    def flush(self) -> None:
        """Send what is pending, as far as the socket takes it; raises OSError when the peer is gone."""
        try:
            self._flush()
        except BlockingIOError:
            pass

    def recv(self, size: int) -> bytes:
        """The bytes that came, b"" at the end; raises BlockingIOError for no complete record, OSError for a forgery."""
        data = self._socket.recv(size)
        if not data:
            return b""
        self._in += data
        found = self.opened()
        if not found:
            raise BlockingIOError
        return found

    def opened(self) -> bytes:
        """The contents of the complete records that have come; raises OSError for a forged one."""
        found = b""
        while len(self._in) >= _HEAD.size:
            length = _HEAD.unpack_from(self._in)[0]
            end = _HEAD.size + MAC + length
            if length > RECORD_LIMIT:
                raise ConnectionError("a record of %d bytes: not an agent's" % length)
            if len(self._in) < end:
                break
            mac, piece = (
                bytes(self._in[_HEAD.size : _HEAD.size + MAC]),
                bytes(self._in[_HEAD.size + MAC : end]),
            )
            if not hmac.compare_digest(mac, _mac(self._keys[1], self._next(1), piece)):
                raise ConnectionError("a record that no agent of this run has sent")
            del self._in[:end]
            found += piece
        return found

    def _next(self, way: int) -> bytes:
        self._counts[way] += 1
        return struct.pack("!Q", self._counts[way])

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def close(self) -> None:
        self._socket.close()


class Handshake:
    """One end of a connection, until both have proved themselves; call `step` whenever something can be read."""

    def __init__(self, connection: socket.socket, secret: bytes, answers: bool) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.since = time.monotonic()
        self._secret = secret
        self._answers = answers  # this end has accepted the connection
        self._nonce = os.urandom(NONCE)
        self._theirs = b""
        self._buffer = b""
        if answers:
            self._send(HELLO + self._nonce)

    def step(self) -> "Optional[SealedStream]":
        """The stream once both ends have proved themselves, None before; raises PeerError, OSError."""
        try:
            data = self.connection.recv(512)
        except BlockingIOError:
            return None
        if not data:
            raise PeerError("it hung up before it said who it is")
        self._buffer += data
        if self._answers:
            return self._step_answering()
        if not self._theirs:
            if not self._buffer.startswith(HELLO[: len(self._buffer)]):
                raise PeerError("something else answers there: %r" % self._buffer[:40])
            if len(self._buffer) < len(HELLO) + NONCE:
                return None
            self._theirs = self._take(len(HELLO) + NONCE)[len(HELLO) :]
            self._send(self._nonce + _mac(self._secret, b"client", self._theirs, self._nonce))
        if len(self._buffer) < MAC:
            return None
        self._check(self._take(MAC), b"server", self._nonce, self._theirs)
        return self._stream(self._theirs, self._nonce)

    def _step_answering(self) -> "Optional[SealedStream]":
        if len(self._buffer) < NONCE + MAC:
            return None
        self._theirs = self._take(NONCE)
        self._check(self._take(MAC), b"client", self._nonce, self._theirs)
        self._send(_mac(self._secret, b"server", self._theirs, self._nonce))
        return self._stream(self._nonce, self._theirs)

    def _stream(self, server_nonce: bytes, client_nonce: bytes) -> SealedStream:
        keys = [_mac(self._secret, way, server_nonce, client_nonce) for way in (b"down", b"up")]
        key_out, key_in = keys if self._answers else reversed(keys)
        stream = SealedStream(self.connection, key_out, key_in)
        stream._in += self._buffer
        return stream

    def _check(self, mac: bytes, *parts: bytes) -> None:
        if not hmac.compare_digest(mac, _mac(self._secret, *parts)):
            raise PeerError("it does not know the secret of this run")

    def _take(self, size: int) -> bytes:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _send(self, data: bytes) -> None:
        # The empty buffer of a new connection takes a few dozen bytes as a whole.
        if self.connection.send(data) != len(data):
            raise PeerError("it takes no bytes")


class Door:
    """The port by which the coordinator reaches this agent."""

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        """Listen at a port that this agent holds; raises OSError."""
        self._secret = secret
        self.listener, self.wide = _listen(address, port)
        self._waiting = {}  # type: Dict[int, Handshake]

    def change_secret(self, secret: bytes) -> None:
        """From now on only who knows this secret may come in."""
        self._secret = secret

    def welcome(self, connection: socket.socket) -> bool:
        """Begin the handshake; call `proved` whenever there is something to read.  False if it has hung up already."""
        try:
            self._waiting[connection.fileno()] = Handshake(connection, self._secret, answers=True)
        except (OSError, PeerError):
            connection.close()
            return False
        return True

    def proved(self, connection: socket.socket) -> "Optional[SealedStream]":
        """The stream once the handshake is done, None before; if it fails, closes it, raises PeerError or OSError."""
        handshake = self._waiting[connection.fileno()]
        try:
            stream = handshake.step()
        except (OSError, PeerError):
            self.drop(connection)
            raise
        if stream is not None:
            del self._waiting[connection.fileno()]
        return stream

    def drop(self, connection: socket.socket) -> None:
        self._waiting.pop(connection.fileno(), None)
        connection.close()

    def late(self, now: float) -> "List[socket.socket]":
        """The connections to drop: those whose time is over and, if too many wait, the oldest of them.

        The coordinator proves itself at once.  So an attacker who only holds connections open cannot keep it out.
        """
        waiting = sorted(self._waiting.values(), key=lambda each: each.since)
        over = max(0, len(waiting) - WAITING_LIMIT)
        return [
            each.connection
            for number, each in enumerate(waiting)
            if number < over or now - each.since > PROOF_S
        ]


def _listen(address: str, port: int) -> "Tuple[socket.socket, bool]":
    """The listener, and whether it listens on all addresses because this host does not have `address`."""
    error = OSError("%s is no address" % address)
    # A host behind NAT does not have the address by which others reach it.
    for host in (address, "", "0.0.0.0"):  # noqa: S104
        try:
            family = (
                socket.AF_INET6 if not host else socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            )
        except OSError as failure:
            error = failure
            continue
        try:
            listener = socket.socket(family)
        except OSError as failure:
            error = failure
            continue
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if not host:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((host, port))
            listener.listen(16)
            listener.setblocking(False)
            return listener, host != address
        except OSError as failure:
            error = failure
            listener.close()
    raise error
