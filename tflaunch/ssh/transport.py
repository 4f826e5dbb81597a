"""Streams to a host and paramiko's transport on them, tuned for latency; every step keeps one deadline."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import queue
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paramiko import Channel, Message, Transport
from paramiko.packet import Packetizer
from paramiko.ssh_exception import SSHException

from tflaunch.ssh.config import Target

KEEPALIVE_S = (2, 1, 3)  # idle seconds, seconds between probes, how many (a count)
SILENCE_MS = 5000  # unacknowledged data for this long: the link is cut
POLL_S = 5.0  # paramiko looks this often whether it was closed; closing wakes it anyway
END_S = 1.0  # how long the exit status may lag behind the end of the stream
WORDS_LIMIT = 4096  # bytes of stderr that are kept
AHEAD_BYTES = 4096  # that are read at least, if they are there: most packets are smaller
AHEAD_IN_FLOOD = 256 * 1024
AT_ONCE = 16 * 1024  # bytes for which a socket has room that has any
HEAD = 255  # bytes that are kept: the longest identification string of RFC 4253


class Deadline:
    """A point in time that every step has to keep; printed as the seconds that there were."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def __str__(self) -> str:
        return f"{self._seconds:g} s"

    def left(self) -> float:
        """Seconds, never zero: a socket would take that for "do not wait"."""
        return max(0.001, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        # Those who waited until it must find it passed, whatever their clock.
        return time.monotonic() >= self._at - 0.01


class NameTimeout(TimeoutError):
    """The name look-up took too long."""


class Child:
    """A command on a socket, in a session and the home directory of its own; its stderr is kept.

    It may outlive `hang_up`, as a command may outlive its SSH connection; `end` asks it to go.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        home = Path.home()
        self._lock = threading.Lock()
        self._words: str | None = None  # since it ended
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has ended
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._stderr,
                    cwd=home if home.is_dir() else "/",
                    start_new_session=True,  # Ctrl-C is for the launcher
                )
        except OSError:
            self.socket.close()
            self._stderr.close()
            raise
        self._reaper = threading.Thread(target=self._reap, daemon=True)  # no zombie, whoever ends first
        try:
            self._reaper.start()
        except RuntimeError:  # no more threads are to be had
            self._process.kill()
            self._process.wait()
            self.socket.close()
            self._stderr.close()
            raise

    def last_words(self) -> str:
        """How it ended, after a short wait, and the end of what it said on stderr."""
        self._reaper.join(END_S)
        with self._lock:
            return self._say() if self._words is None else self._words

    def failed(self) -> bool:
        """Whether it has ended by itself, or is about to, with anything but success."""
        self._reaper.join(END_S)
        return self._process.returncode not in (None, 0, -signal.SIGTERM)

    def end(self) -> None:
        """Ask it to end, by SIGTERM."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def hang_up(self) -> None:
        """End the stream and wake whoever waits in it; the socket itself is closed by its user."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _reap(self) -> None:
        self._process.wait()
        with self._lock, self._stderr:
            self._words = self._say()

    def _say(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        said = os.pread(self._stderr.fileno(), WORDS_LIMIT, max(0, size - WORDS_LIMIT))
        code = self._process.returncode
        ended = "" if code is None else f"exit status {code}" if code >= 0 else f"killed by signal {-code}"
        return words(ended, said)


class Stream:
    """What paramiko takes for a socket: tuned, closed with a wake-up, remembering how it began and ended.

    Most of a handshake's time is Nagle's algorithm in wait of delayed ACKs: hence TCP_NODELAY, and TCP_QUICKACK
    after each read because Linux forgets it; `calm` ends the latter.
    """

    def __init__(self, endpoint: socket.socket | Channel, child: Child | None = None) -> None:
        self._endpoint = endpoint
        self.child = child
        self.reader: threading.Thread | None = None
        self.head = b""
        self.ended = False
        self._unacknowledged = False
        self._closed = False  # paramiko looks at it
        self._read, self._taken = b"", 0
        self._ahead = AHEAD_BYTES
        self._eager = False
        if isinstance(endpoint, socket.socket) and endpoint.family != socket.AF_UNIX:
            _tune(endpoint)
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
            if error.errno is None:  # paramiko only wanted to look around
                return error
            # The link is cut; paramiko would take it for the same.
            self._unacknowledged = True
            error = ConnectionAbortedError(error.errno, error.strerror)
        self.ended = True
        return error

    @property
    def unacknowledged(self) -> bool:
        """Whether the last of what was sent has not arrived for a while; where that cannot be known, False."""
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
    def ready(self) -> bool:
        """Whether it takes AT_ONCE without waiting; of a channel through a jump host that is not known."""
        return isinstance(self._endpoint, socket.socket) and has_room(self._endpoint)

    def settimeout(self, seconds: float | None) -> None:
        self._endpoint.settimeout(seconds)

    def calm(self) -> None:
        """The handshake is over: acknowledge as the system likes."""
        self._eager = False

    def close(self) -> None:
        """Wake whoever reads; the descriptor goes when paramiko's thread, the reader, has come out of it.

        Closed under a reader, its number could be another connection's by the time that the reader looks.
        """
        first, self._closed = not self._closed, True
        reading = self.reader is not None and self.reader.is_alive()
        if self.reader is threading.current_thread():
            reading = False
        elif self.child:
            self.child.end()  # not by the reader: whoever asks why the stream ended must find its own end
        if isinstance(self._endpoint, socket.socket):
            if first:
                with contextlib.suppress(OSError):
                    self._endpoint.shutdown(socket.SHUT_RDWR)
            if not reading:
                self._endpoint.close()
        elif first:  # with a farewell, for which a jump host that takes nothing lets nobody wait
            apart(self._leave)

    def _leave(self) -> None:
        with contextlib.suppress(OSError, EOFError, SSHException):
            self._endpoint.close()


class QuietPacketizer(Packetizer):
    """Without a timer thread per handshake, which could hold up the end of the process; see Deadline."""

    def start_handshake(self, timeout: float) -> None:
        pass


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
    offered: Mapping[str, list[str]] | None = None  # what the server can do, as it said itself

    def _parse_kex_init(self, message: Message) -> None:
        self.offered = self._really_parse_kex_init(message)  # type: ignore[attr-defined]
        message.rewind()
        macs: tuple[str, ...] = self._preferred_macs  # type: ignore[has-type]
        if self._aead(self.offered) and not set(macs) & set(self.offered["server_mac_algo_list"]):
            # Such a cipher needs no MAC; OpenSSH asks for none in common then, and paramiko would.
            unused = self.offered["server_mac_algo_list"][:1] + self.offered["client_mac_algo_list"][:1]
            self._preferred_macs = (*macs, *unused)
            self._mac_info = {**dict.fromkeys(unused, self._mac_info[macs[0]]), **self._mac_info}  # type: ignore[has-type]
        super()._parse_kex_init(message)  # type: ignore[misc]

    def _aead(self, offered: Mapping[str, list[str]]) -> bool:
        """Whether the ciphers for both ways will be of the kind that authenticates, too."""
        for way in ("client", "server"):
            theirs = offered[f"{way}_encrypt_algo_list"]
            first = next((name for name in self._preferred_ciphers if name in theirs), "")
            if not self._cipher_info.get(first, {}).get("is_aead", False):  # type: ignore[attr-defined]
                return False
        return True

    def lacking(self) -> tuple[str, list[str], list[str]] | None:
        """(the keyword of sshd_config, what the server offers, what is known here) for what has nothing in common."""
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
            # What is no algorithm but a sign that something else is understood.
            theirs = [name for name in self.offered[key] if not name.startswith(("ext-info-", "kex-strict-"))]
            if not set(theirs) & set(known):
                return keyword, theirs, [*known]
        return None

    def _parse_debug(self, message: Message) -> None:
        """Nothing: sshd tells each login about authorized_keys, and paramiko spells that out letter by letter."""


def dial_tcp(target: Target, deadline: Deadline, dialling: Callable[[], None]) -> socket.socket:
    """A connection to the first address that answers; raises OSError, NameTimeout when no name server did.

    `dialling()` is called when only the last address is left to answer.
    """
    addresses = _resolve(target, deadline)
    last: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        if tried == len(addresses) - 1:
            dialling()
        connecting = socket.socket(family, kind, protocol)
        try:
            # An address that does not answer leaves time for the next one.
            connecting.settimeout(deadline.left() / (len(addresses) - tried))
            connecting.connect(address)
            return connecting
        except OSError as error:
            connecting.close()
            last = error
    raise last


def _resolve(target: Target, deadline: Deadline) -> list[Any]:
    families = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
    query = (target.hostname, target.port, families[target.family], socket.SOCK_STREAM)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(target.hostname)
        return socket.getaddrinfo(*query)
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(*query))
        except Exception as error:
            answers.put(error)

    # The system's resolver has no time limit; a thread that hangs in it is left behind.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.left())
    except queue.Empty:
        raise NameTimeout from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def apart(work: Callable[..., None], *arguments: object) -> None:
    """Have a thread of its own do what may have to wait."""
    try:
        threading.Thread(target=work, args=arguments, name="apart", daemon=True).start()
    except RuntimeError:  # no more threads are to be had
        work(*arguments)


def has_room(endpoint: socket.socket) -> bool:
    """Whether AT_ONCE bytes can be sent without waiting."""
    poll = select.poll()
    try:
        poll.register(endpoint, select.POLLOUT)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # closed
        return False


def _tune(tcp: socket.socket) -> None:
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Linux and macOS; the first of each pair that the platform has.
    wanted = (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), KEEPALIVE_S[0]),
        (("TCP_KEEPINTVL",), KEEPALIVE_S[1]),
        (("TCP_KEEPCNT",), KEEPALIVE_S[2]),
        (("TCP_USER_TIMEOUT",), SILENCE_MS),
        (("TCP_QUICKACK",), 1),
    )
    for names, value in wanted:
        for name in names:
            if hasattr(socket, name):
                with contextlib.suppress(OSError):  # macOS: of a connection that was reset already
                    tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                break


def text(error: Exception) -> str:
    """The error in words, whatever library it comes from."""
    if isinstance(error, EOFError):
        return "the other side hung up"
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def words(ended: str, stderr: bytes) -> str:
    """`exit status 1; it said: ...`, of which either half may be missing."""
    said = stderr.decode(errors="replace").strip()
    return "; it said: ".join(word for word in (ended, said) if word)
