"""The wires: duplex byte streams to the hosts, by SSH or by a local subprocess.

    connector = Connector(hostfile.hosts, ConnectOptions(), ask=getpass.getpass)   # main thread: reads files
    wire = connector.open(host, "exec python3 -c ...", source)                     # from any thread
    wire.send(b"..."); wire.recv(65536)

With ssh_config.py, ssh_keys.py and known_hosts.py beside it, this is the only place that knows fabric and
paramiko: every exception of theirs, of a socket or of the system leaves as a ConnectError with a cause and a
remedy.  Host keys are always checked; nothing ever prompts while connecting; one deadline covers it all.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import queue
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fabric import Config, Connection
from paramiko import Channel, Message, PKey, SSHClient, Transport
from paramiko.auth_strategy import AuthStrategy
from paramiko.client import MissingHostKeyPolicy
from paramiko.common import cMSG_CHANNEL_REQUEST
from paramiko.config import SSHConfig
from paramiko.packet import Packetizer
from paramiko.ssh_exception import (
    AuthenticationException,
    BadAuthenticationType,
    ChannelException,
    IncompatiblePeer,
    SSHException,
)

from tflaunch.errors import ConnectError
from tflaunch.hosts import Host
from tflaunch.known_hosts import KnownHosts, KnownKey, fingerprint
from tflaunch.ssh_config import SSH_PORT, SshConfig, Target, known_hosts_name
from tflaunch.ssh_keys import Keys, Offers

RETRY_FIRST_S = 0.1
RETRY_CAP_S = 2.0
KEEPALIVE_S = (2, 1, 3)  # idle seconds, seconds between probes, how many (a count)
SILENCE_MS = 5000  # unacknowledged data for this long: the link is cut
POLL_S = 5.0  # paramiko looks this often whether it was closed; closing wakes it anyway
END_S = 1.0  # how long the exit status may lag behind the end of the stream
WORDS_LIMIT = 4096  # bytes of stderr that are kept

# sshd says this instead of a banner when it has too many connections that did not log in yet.
_DROPPED = (b"MaxStartups", b"Not allowed at this time")
_FORBIDDEN_CHANNEL = 1  # RFC 4254, SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
_HEAD = 255  # bytes: the longest identification string of RFC 4253

# Errors reach the user as ConnectError; paramiko would print them with tracebacks on stderr as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class ConnectOptions:
    """How to connect; the same for every host of one command."""

    timeout_s: float = 30.0  # one hard deadline over name look-up, TCP, banner, authentication and retries
    accept_new: bool = False  # unknown host keys are written to known_hosts; changed ones are still refused
    ssh_config: Path | None = None  # None: ~/.ssh/config and /etc/ssh/ssh_config


class WireClosed(ConnectError):
    """The stream has ended: nothing can be sent any more."""


class Wire(Protocol):
    """Any duplex byte stream to an agent; one thread may receive while others send or close."""

    def send(self, data: bytes) -> None:
        """Hand all of `data` to the stream, waiting while it is full; raises WireClosed."""

    def recv(self, size: int) -> bytes:
        """Wait for at most `size` bytes; b"" at the end of the stream, however it ended."""

    def close(self) -> None:
        """End the stream and wake whoever waits in it; idempotent, from any thread."""

    def last_words(self) -> str:
        """What the far side said on stderr and how it ended, for messages; "" when nothing is known."""


class Connector:
    """Opens wires to the given hosts; one per command.

    Made in the main thread: here ssh_config, every key and every known_hosts file are read, once, and
    passphrases are asked for through `ask` (None: there is no terminal).  `notes` are things the user should
    know.  `StrictHostKeyChecking no` is taken for `accept-new`, with a note: a changed key is always refused.
    Raises ConnectError when the ssh_config itself cannot be used; what concerns one host is raised by `open`.
    """

    def __init__(
        self, hosts: Iterable[Host], options: ConnectOptions, ask: Callable[[str], str] | None
    ) -> None:
        self._options = options
        self._targets: dict[str, Target | ConnectError] = {}
        remote = [host for host in hosts if host.connection == "ssh"]
        config = SshConfig(options.ssh_config) if remote else None
        for host in remote:
            assert config is not None  # noqa: S101 - for the type checker
            try:
                self._targets[host.name] = config.target(host)
            except ConnectError as error:
                self._targets[host.name] = error
        reached = [target for target in self._targets.values() if isinstance(target, Target)]
        reached += [jump for target in reached for jump in target.jumps]
        self._keys = Keys(reached, ask)
        self._known = _known_hosts(reached)
        self.notes = _notes(reached)
        self._fingerprints: dict[str, str] = {}
        self._hops: dict[Target, futures.Future[_Link]] = {}
        self._hops_lock = threading.Lock()
        self._build_lock = threading.Lock()  # fabric's configuration is not made for threads

    def open(self, host: Host, command: str, first: bytes = b"") -> Wire:
        """Run `command` on `host` and return the stream to it; `first` is sent right behind, before any reply.

        By SSH: connect, authenticate, one channel; the login shell runs the command.  Locally: `sh -c command`
        in its own session, in the home directory as sshd does.  May be called from many threads at once.
        Raises ConnectError, whose message leaves the host's name out so that equal causes fold.
        """
        if host.connection == "local":
            return LocalWire(command, first)
        target = self._target(host)
        deadline = _Deadline(min(self._options.timeout_s, target.timeout_s or self._options.timeout_s))
        link = self._connect(target, deadline)
        self._fingerprints[host.name] = fingerprint(link.host_key)
        try:
            return SshWire(link, command, first, deadline)
        except BaseException:
            link.close()
            raise

    def dial_address(self, host: Host) -> str:
        """What SSH dials, after HostName: a name or an address without the port; "" for a local host."""
        return "" if host.connection == "local" else self._target(host).hostname

    def host_key(self, host: Host) -> str:
        """The SHA256 fingerprint of the key that the host showed when it was connected; "" before, and locally."""
        return self._fingerprints.get(host.name, "")

    def close(self) -> None:
        """End the connections to jump hosts and ssh-agents; the wires belong to those who opened them."""
        with self._hops_lock:
            hops, self._hops = self._hops, {}
        for hop in hops.values():
            if hop.done() and not hop.exception():
                hop.result().close()
        self._keys.close()

    def _target(self, host: Host) -> Target:
        target = self._targets[host.name]
        if isinstance(target, ConnectError):
            raise target
        return target

    def _connect(self, target: Target, deadline: _Deadline) -> _Link:
        """An authenticated connection; retried for as long as sshd drops it before its banner."""
        tries = 0
        while not deadline.passed:
            stream = self._dial(target, deadline)
            try:
                return self._login(target, stream, deadline)
            except _Dropped:
                stream.close()
            except BaseException:
                stream.close()
                raise
            # Full jitter: clients that were dropped together must not come back together.
            longest = min(RETRY_CAP_S, RETRY_FIRST_S * 2**tries, deadline.left())
            time.sleep(random.uniform(0, longest))  # noqa: S311
            tries += 1
        raise ConnectError(
            f"sshd dropped the connection before its banner, {tries} times in {deadline}",
            "too many log in at once (raise MaxStartups there), or it bars this address; --timeout waits longer",
        )

    def _dial(self, target: Target, deadline: _Deadline) -> _Stream:
        try:
            if target.jumps:
                return self._dial_through(target, deadline)
            if target.proxy_command:
                shell = os.environ.get("SHELL", "/bin/sh")
                child = _Child([shell, "-c", f"exec {target.proxy_command}"])
                return _Stream(child.socket, child)
            return _Stream(_dial_tcp(target, deadline))
        except (OSError, ValueError, OverflowError) as error:
            raise _unreached(error, target, deadline) from None

    def _dial_through(self, target: Target, deadline: _Deadline) -> _Stream:
        *before, last = target.jumps
        hop = replace(last, jumps=tuple(before))
        try:
            transport = self._hop(hop, deadline).transport
            place = (target.hostname, target.port)
            channel = transport.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=deadline.left())
        except futures.TimeoutError:  # another thread is still at it
            raise ConnectError(f"jump host {last.name}: no connection within {deadline}", _SLOW) from None
        except ChannelException as error:
            if error.code == _FORBIDDEN_CHANNEL:
                raise ConnectError(
                    f"jump host {last.name} forbids forwarding to port {target.port}",
                    "its sshd must allow it: AllowTcpForwarding, PermitOpen",
                ) from None
            raise ConnectError(
                f"jump host {last.name} could not connect to port {target.port} of the host",
                f"try it from there: `{last.ssh} ssh-keyscan -p {target.port} {target.hostname}`",
            ) from None
        except (SSHException, OSError, EOFError) as error:
            cause = f"no answer within {deadline}" if deadline.passed else _text(error)
            raise ConnectError(f"jump host {last.name}: its connection broke ({cause})", _SLOW) from None
        return _Stream(channel)

    def _hop(self, hop: Target, deadline: _Deadline) -> _Link:
        """The one connection to a jump host that all hosts behind it share; raises TimeoutError."""
        with self._hops_lock:
            future = self._hops.get(hop)
            if future and future.done() and (future.exception() or not future.result().transport.is_active()):
                future = None
            mine = future is None
            if future is None:
                future = self._hops[hop] = futures.Future()
        if mine:
            try:
                link = self._connect(hop, deadline)
                future.set_result(link)
            except ConnectError as error:
                said = (
                    error.message
                    if error.message.startswith("jump host")
                    else f"jump host {hop.name}: {error}"
                )
                future.set_exception(ConnectError(said, error.hint))
            except BaseException as error:
                future.set_exception(error)
                raise
        try:
            return future.result(deadline.left())
        except ConnectError as error:
            raise ConnectError(
                error.message, error.hint
            ) from None  # one exception is not raised in two threads

    def _login(self, target: Target, stream: _Stream, deadline: _Deadline) -> _Link:
        known = self._known[target.known_hosts, target.global_known_hosts]
        policy = _HostKeyPolicy(known, target, self._options.accept_new)
        with self._build_lock:
            # ssh_config is settled: what fabric would make of it (AutoAddPolicy, hops in reverse) is kept out.
            config = Config(ssh_config=SSHConfig(), lazy=True)
            connection = Connection(
                target.hostname, user=target.user, port=target.port, gateway=False, config=config
            )
        connection.client.set_missing_host_key_policy(policy)
        connection.connect_kwargs = {
            "sock": stream,
            "timeout": deadline.left(),
            "banner_timeout": deadline.left(),
            "transport_factory": policy.transport,
            "auth_strategy": _PublicKeys(target, self._keys.offers(target), deadline),
        }
        try:
            connection.open()
        except Exception as error:
            explained = _explained(error, policy.made, target, stream, deadline)
            stream.close()
            connection.client.close()
            raise explained from None
        return _Link(target, connection.client, stream, connection.transport, policy.seen)


@dataclass(frozen=True)
class _Link:
    """An authenticated connection."""

    target: Target
    client: SSHClient
    stream: _Stream
    transport: Transport
    host_key: bytes

    def close(self) -> None:
        # The stream first: paramiko's own farewell would wait for a peer that does not read.
        self.stream.close()
        self.client.close()


class SshWire:
    """A command on a host, behind its own SSH connection."""

    def __init__(self, link: _Link, command: str, first: bytes, deadline: _Deadline) -> None:
        self._link = link
        self._stderr = b""
        self._closed = False
        try:
            self._channel = link.transport.open_session(timeout=deadline.left())
            self._channel.settimeout(deadline.left())
            _exec(link.transport, self._channel, command)
            if first:
                self._channel.sendall(first)
            self._channel.settimeout(None)
        except ChannelException as error:
            raise ConnectError(
                f"the server logged in but refused a session ({error.text})",
                f"raise MaxSessions there; does `{link.target.ssh} true` work?",
            ) from None
        except (SSHException, OSError, EOFError) as error:
            if deadline.passed:
                raise ConnectError(f"the command did not start within {deadline}", _SLOW) from None
            if self._refused():
                raise ConnectError(_REFUSED, f"does `{link.target.ssh} true` work?") from None
            raise ConnectError(
                f"the connection broke while the command was started ({_text(error)})",
                self.last_words() or _SLOW,
            ) from None

    def send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (SSHException, OSError, EOFError) as error:
            reason = self.last_words() or _text(error)
            raise WireClosed(f"the connection is closed: {reason}") from None

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._channel.recv(size)
        except (SSHException, OSError, EOFError):
            data = b""
        self._link.stream.calm()
        self._drain()
        return data

    def close(self) -> None:
        self._closed = True
        self._link.close()

    def last_words(self) -> str:
        broken = self._link.transport.saved_exception
        if not self._closed and not broken and self._link.transport.is_active():
            self._channel.status_event.wait(END_S)
        self._drain()
        ended = ""
        if self._channel.exit_status >= 0:
            ended = f"exit status {self._channel.exit_status}"
        elif self._refused():
            ended = _REFUSED
        elif broken and not self._closed:
            ended = f"the connection broke ({_text(broken)})"
        elif self._channel.closed and not self._closed:
            ended = "ended by a signal"  # paramiko drops the message that says by which
        return _words(ended, self._stderr)

    def _refused(self) -> bool:
        # paramiko answers a request that failed by closing the channel, without a word.
        channel = getattr(self, "_channel", None)
        return (
            channel is not None
            and channel.closed
            and not channel.event_ready
            and channel.exit_status < 0
            and self._link.transport.is_active()
        )

    def _drain(self) -> None:
        # Unread stderr would fill the window that stdout shares.
        while self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(WORDS_LIMIT))[-WORDS_LIMIT:]


class LocalWire:
    """The same command on this machine, with `sh`, on a socket as sshd's commands are."""

    def __init__(self, command: str, first: bytes = b"") -> None:
        try:
            self._child = _Child(["/bin/sh", "-c", command])
        except OSError as error:
            raise ConnectError(
                f"/bin/sh could not be started here: {error.strerror}",
                "is this machine out of memory or processes? see `ulimit -u`",
            ) from None
        if first:
            with contextlib.suppress(WireClosed):  # recv and last_words tell why
                self.send(first)

    def send(self, data: bytes) -> None:
        try:
            self._child.socket.sendall(data)
        except OSError as error:
            reason = self.last_words() or _text(error)
            raise WireClosed(f"the connection is closed: {reason}") from None

    def recv(self, size: int) -> bytes:
        try:
            return self._child.socket.recv(size)
        except OSError:
            return b""

    def close(self) -> None:
        self._child.close()

    def last_words(self) -> str:
        return self._child.last_words()


class _Child:
    """A command on a socket, in a session and the home directory of its own; its stderr is kept.

    It may outlive `close`, as a command may outlive its SSH connection; `end` asks it to go.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        home = Path.home()
        self._lock = threading.Lock()
        self._words: str | None = None  # since it was closed
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs,
                    stdout=theirs,
                    stderr=self._stderr,
                    cwd=home if home.is_dir() else "/",
                    start_new_session=True,  # Ctrl-C is for the launcher
                )
        except OSError:
            self.socket.close()
            self._stderr.close()
            raise
        self._end = threading.Thread(target=self._process.wait, daemon=True)  # no zombie, whoever ends first
        self._end.start()

    def last_words(self) -> str:
        if self._words is not None:
            return self._words
        self._end.join(END_S)
        with self._lock:
            return self._say() if self._words is None else self._words

    def failed(self) -> bool:
        """Whether it has ended, or is about to, with anything but success."""
        self._end.join(END_S)
        return bool(self._process.returncode)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def close(self) -> None:
        with self._lock:
            if self._words is not None:
                return
            self._words = self._say()
            self._stderr.close()
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in it
            self.socket.close()

    def _say(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        said = os.pread(self._stderr.fileno(), WORDS_LIMIT, max(0, size - WORDS_LIMIT))
        code = self._process.returncode
        ended = "" if code is None else f"exit status {code}" if code >= 0 else f"killed by signal {-code}"
        return _words(ended, said)


class _Stream:
    """What paramiko takes for a socket: tuned, closed with a wake-up, and remembering how it began and ended.

    Most of the time of a handshake is Nagle's algorithm in wait of delayed ACKs, hence TCP_NODELAY and, re-armed
    after each read because Linux forgets it, TCP_QUICKACK; `calm` ends the latter.
    """

    def __init__(self, endpoint: socket.socket | Channel, child: _Child | None = None) -> None:
        self._endpoint = endpoint
        self.child = child
        self.reader: threading.Thread | None = None
        self.head = b""
        self.ended = False
        self._closed = False  # paramiko looks at it
        self._eager = False
        if isinstance(endpoint, socket.socket) and child is None:
            _tune(endpoint)
            self._eager = hasattr(socket, "TCP_QUICKACK")

    def recv(self, size: int) -> bytes:
        try:
            data = self._endpoint.recv(size)
            if self._eager:
                self._endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # type: ignore[union-attr]
        except TimeoutError:
            raise
        except OSError:
            self.ended = True
            raise
        if not data:
            self.ended = True
        elif len(self.head) < _HEAD:
            self.head += data[:_HEAD]
        return data

    def send(self, data: bytes) -> int:
        return self._endpoint.send(data)

    def settimeout(self, seconds: float | None) -> None:
        self._endpoint.settimeout(seconds)

    def calm(self) -> None:
        self._eager = False

    def close(self) -> None:
        """Wake whoever reads; the descriptor itself goes when paramiko's thread, the reader, has come out of it.

        Closed under a reader, its number could be another connection's by the time that the reader looks.
        """
        first, self._closed = not self._closed, True
        if first and self.child:
            self.child.close()
            self.child.end()
        elif isinstance(self._endpoint, socket.socket):
            if first:
                with contextlib.suppress(OSError):
                    self._endpoint.shutdown(socket.SHUT_RDWR)
            if self.reader is None or not self.reader.is_alive() or self.reader is threading.current_thread():
                self._endpoint.close()
        elif first:
            with contextlib.suppress(OSError, EOFError, SSHException):
                self._endpoint.close()


class _QuietPacketizer(Packetizer):
    """Without the timer thread of every handshake, which would hold up the end of the process; see _Deadline."""

    def start_handshake(self, timeout: float) -> None:
        pass


class _Transport(Transport):
    """paramiko's, with the cheapest cipher first and without the key exchange that costs seconds of CPU."""

    _active_check_timeout = POLL_S
    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    )
    _preferred_kex = tuple(name for name in Transport._preferred_kex if "group-exchange" not in name)


class _HostKeyPolicy(MissingHostKeyPolicy):
    """Decides about the key that a server shows.

    paramiko's own tables stay empty, so that it asks here about every key: they know neither patterns nor
    revoked keys, and take time that grows with the square of the file.
    """

    def __init__(self, known: KnownHosts, target: Target, accept_new: bool) -> None:
        self._known = known
        self._target = target
        self._accept_new = accept_new or target.strict != "check"
        self.made: Transport | None = None
        self.seen = b""

    def transport(self, stream: Any, disabled_algorithms: Any = None) -> Transport:
        """A transport that asks first for the kinds of key by which the server is known."""
        made = _Transport(stream, disabled_algorithms=disabled_algorithms, packetizer_class=_QuietPacketizer)
        kinds = {key.kind for key in self._lines() if not key.marker}
        options = made.get_security_options()
        # An RSA key is shown under the name of a signature: rsa-sha2-512.
        options.key_types = sorted(
            options.key_types,
            key=lambda name: name not in kinds and not ("rsa" in name and "ssh-rsa" in kinds),
        )
        self.made = stream.reader = made
        return made

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        """Accept the key or raise ConnectError."""
        self.seen = blob = key.asbytes()
        kind = key.get_name()
        lines = self._lines()
        revoked = [line for line in lines if line.marker == "@revoked" and line.blob == blob]
        if revoked:
            raise ConnectError(
                f"the server shows a {kind} host key that {revoked[0]} has revoked",
                "do not use this host before its administrator has explained it",
            )
        own = [line for line in lines if not line.marker]
        if any(line.blob == blob for line in own or self._portless()):
            return
        if own:
            line = next((line for line in own if line.kind == kind), own[0])
            raise ConnectError(
                f"the server's {kind} host key is not the one in {line}",
                "either it was set up anew or someone stands between: ask its administrator for the fingerprint "
                f"({fingerprint(blob)} is shown), then `ssh-keygen -R '{self._target.host_key_name}' "
                f"-f {line.path}` and `{self._target.ssh}` once",
            )
        if not self._accept_new:
            authority = any(line.marker == "@cert-authority" for line in lines)
            raise ConnectError(
                f"the server's {kind} host key is unknown"
                + (
                    " (a @cert-authority line speaks of it, but certificates are not checked)"
                    if authority
                    else ""
                ),
                f"compare {fingerprint(blob)} with what its administrator says, then `{self._target.ssh}` once, "
                "or use --accept-new",
            )
        try:
            self._known.add(self._target.host_key_name, kind, blob, hashed=self._target.hash_known_hosts)
        except OSError as error:
            raise ConnectError(
                f"the new host key could not be written to {error.filename}: {error.strerror}",
                "make the file writable, or name another with UserKnownHostsFile",
            ) from None

    def _lines(self) -> list[KnownKey]:
        return self._known.lookup(self._target.host_key_name)

    def _portless(self) -> list[KnownKey]:
        # OpenSSH, too, takes a key for a name without a port as good on every port of that name.
        plain = known_hosts_name(self._target.hostname, SSH_PORT)
        return [line for line in self._known.lookup(plain) if not line.marker]


class _PublicKeys(AuthStrategy):
    """Offers one key after another; every end but success is a ConnectError."""

    def __init__(self, target: Target, offers: Offers, deadline: _Deadline) -> None:
        super().__init__(ssh_config=None)
        self._target = target
        self._offers = offers
        self._deadline = deadline

    def authenticate(self, transport: Transport) -> Any:
        tried: list[str] = []
        user = self._target.user
        for offer in self._offers.keys:
            transport.auth_timeout = self._deadline.left()
            try:
                if more := transport.auth_publickey(user, offer.key):
                    raise ConnectError(
                        f"user {user}: the server wants more than a key ({', '.join(more)})",
                        "tflaunch asks nothing while connecting: allow the key alone for this account",
                    )
                return None
            except BadAuthenticationType as error:
                raise ConnectError(
                    f"user {user}: the server takes no keys, only {', '.join(error.allowed_types)}",
                    "set PubkeyAuthentication yes in its sshd_config",
                ) from None
            except (SSHException, OSError, EOFError) as error:
                tried.append(offer.label)
                if self._deadline.passed:
                    raise ConnectError(
                        f"user {user}: no answer to key {offer.label} within {self._deadline}",
                        "a server under load, or an ssh-agent that does not answer: try --timeout, or without it",
                    ) from None
                if not transport.is_active():
                    raise self._ended(tried, error) from None
        raise self._refused(tried)

    def _ended(self, tried: list[str], error: Exception) -> ConnectError:
        user = self._target.user
        if isinstance(error, AuthenticationException):
            return ConnectError(
                f"user {user}: the server hung up after {_keys(tried)} (too many authentication failures?)",
                "name the right one with `identity_file:`, and set IdentitiesOnly yes for an ssh-agent full of keys",
            )
        return ConnectError(f"user {user}: the login broke off at {tried[-1]} ({_text(error)})", _SLOW)

    def _refused(self, tried: list[str]) -> ConnectError:
        user = self._target.user
        skipped = "".join(f"; skipped {reason}" for reason in self._offers.skipped)
        if not tried:
            return ConnectError(
                f"user {user}: there is no key to offer{skipped}",
                "name one with `identity_file:` or IdentityFile, or make one with `ssh-keygen`",
            )
        return ConnectError(
            f"user {user}: the server refused {_keys(tried)}{skipped}",
            f"put its public half into the authorized_keys of {user} there, or set `user:` or `identity_file:`",
        )


class _Dropped(Exception):
    """sshd closed the connection before its banner: it has too many at the moment."""


class _NameTimeout(TimeoutError):
    """The name look-up took too long."""


class _Deadline:
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


_SLOW = "check the network between, or give --timeout"
_REFUSED = "the server logged in but refused to run a command"


def _dial_tcp(target: Target, deadline: _Deadline) -> socket.socket:
    addresses = _resolve(target, deadline)
    last: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
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


def _resolve(target: Target, deadline: _Deadline) -> list[Any]:
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
        raise _NameTimeout from None
    if isinstance(answer, Exception):
        raise answer
    return answer


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
                tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                break


def _exec(transport: Transport, channel: Channel, command: str) -> None:
    """Ask for `command` without waiting for the answer, as Channel.exec_command would."""
    request = Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("exec")
    request.add_boolean(True)  # a refusal closes the channel
    request.add_string(command)
    transport._send_user_message(request)


def _known_hosts(targets: Iterable[Target]) -> dict[tuple[tuple[Path, ...], tuple[Path, ...]], KnownHosts]:
    read: dict[tuple[tuple[Path, ...], tuple[Path, ...]], KnownHosts] = {}
    for target in targets:
        files = (target.known_hosts, target.global_known_hosts)
        if files not in read:
            try:
                read[files] = KnownHosts(*files)
            except OSError as error:
                raise ConnectError(
                    f"{error.filename}: {error.strerror}", "make it readable, or remove it"
                ) from None
    return read


def _notes(targets: Iterable[Target]) -> tuple[str, ...]:
    lax = sorted({target.name for target in targets if target.strict == "off"})
    if not lax:
        return ()
    return (
        f"StrictHostKeyChecking no ({len(lax)} hosts) is taken for accept-new: unknown host keys are written down, "
        "changed ones refused",
    )


def _unreached(error: Exception, target: Target, deadline: _Deadline) -> ConnectError:
    """Why no stream could be opened."""
    port = f"port {target.port}"
    if isinstance(error, _NameTimeout):
        return ConnectError(f"the name look-up took longer than {deadline}", "is the name server up?")
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConnectError(
            "the name does not resolve",
            f"check the spelling of {_name(target)}, or give it a HostName in ~/.ssh/config",
        )
    if isinstance(error, OSError):
        known = {
            errno.ECONNREFUSED: (f"{port} refuses the connection", "is sshd running there? else set `port:`"),
            errno.EHOSTUNREACH: ("there is no route to it", "is it switched on, and is the network up?"),
            errno.ENETUNREACH: ("there is no route to its network", "is the network or the VPN up?"),
            errno.ETIMEDOUT: (f"no answer on {port}", "is it switched on? does a firewall stand between?"),
            errno.EACCES: (f"this machine forbids the connection to {port}", "look at its own firewall"),
            errno.EPERM: (f"this machine forbids the connection to {port}", "look at its own firewall"),
            errno.EMFILE: ("this machine has no file descriptors left", "raise `ulimit -n`"),
        }
        if isinstance(error, TimeoutError):
            return ConnectError(
                f"no answer on {port} within {deadline}", "is it switched on? does a firewall stand between?"
            )
        if error.errno in known:
            return ConnectError(*known[error.errno])
    return ConnectError(f"{port} could not be dialled: {_text(error)}", f"does `{target.ssh} true` work?")


def _explained(
    error: Exception, transport: Transport | None, target: Target, stream: _Stream, deadline: _Deadline
) -> Exception:
    """Why a stream did not become an SSH connection."""
    if isinstance(error, ConnectError):
        return error
    if transport is None or not transport.remote_version:
        return _bannerless(error, target, stream, deadline)
    stage = "the login" if transport.initial_kex_done else "the key exchange"
    if deadline.passed:
        return ConnectError(
            f"{stage} did not end within {deadline}", "is the host overloaded? give --timeout"
        )
    if isinstance(error, IncompatiblePeer):
        return ConnectError(
            f"the server has no algorithm in common with tflaunch: {error}", "update its sshd"
        )
    if stream.ended and not transport.is_active():
        return ConnectError(f"the server closed the connection during {stage}", "its own log says why")
    return ConnectError(f"{stage} failed: {_text(error)}", f"does `{target.ssh} true` work?")


def _bannerless(error: Exception, target: Target, stream: _Stream, deadline: _Deadline) -> Exception:
    head = stream.head
    if any(word in head for word in _DROPPED):
        return _Dropped()
    if head and b"SSH-" not in head:
        line = head.splitlines()[0][:80].decode(errors="replace")
        return ConnectError(f"what answers on port {target.port} is not SSH: it said {line!r}", "set `port:`")
    if stream.child and stream.ended and stream.child.failed():
        words = stream.child.last_words()
        return ConnectError(f"ProxyCommand failed: {words}", f"try it alone: `{target.proxy_command}`")
    if deadline.passed:
        return ConnectError(
            f"connected, but no SSH banner on port {target.port} within {deadline}",
            "is it sshd that listens there? is the host overloaded?",
        )
    if stream.ended:
        return _Dropped()
    return ConnectError(
        f"the SSH banner could not be read: {_text(error)}", f"does `{target.ssh} true` work?"
    )


def _name(target: Target) -> str:
    return "{host}" if target.hostname == target.name and target.ssh.endswith("{host}") else target.hostname


def _keys(tried: Sequence[str]) -> str:
    return f"key {tried[0]}" if len(tried) == 1 else f"{len(tried)} keys: {', '.join(tried)}"


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _words(ended: str, stderr: bytes) -> str:
    said = stderr.decode(errors="replace").strip()
    return "; it said: ".join(word for word in (ended, said) if word)
