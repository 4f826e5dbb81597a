"""The wires: duplex byte streams to the hosts, by SSH, by the system's `ssh`, or by a local subprocess.

    connector = Connector(hostfile.hosts, ConnectOptions(), ask=getpass.getpass)   # main thread: reads files
    wire = connector.open(host, "exec python3 -c ...", source)                     # from any thread
    wire.listen(take); wire.send(b"...")

With `tflaunch.ssh` below it, this is the only place that knows fabric and paramiko: every exception of theirs,
of a socket or of the system leaves as a ConnectError with a cause and a remedy.  Host keys are always checked;
nothing ever prompts while connecting; one deadline covers it all.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import tflaunch.ssh  # noqa: F401 - before what follows

# isort: split
from fabric import Config, Connection
from paramiko.config import SSHConfig
from paramiko.ssh_exception import ChannelException, SSHException

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError, NoThreads, WireClosed
from tflaunch.ssh.channel import Link, SshWire
from tflaunch.ssh.config import SshConfig, Target
from tflaunch.ssh.keys import Keys
from tflaunch.ssh.known_hosts import KnownHosts, fingerprint
from tflaunch.ssh.login import SILENT, SLOW, Client, Dropped, HostKeyCheck, explained, log_in, unreached
from tflaunch.ssh.openssh import OpenSsh
from tflaunch.ssh.transport import AT_ONCE, Child, Deadline, Stream, dial_tcp, has_room, text

RETRY_FIRST_S = 0.1
RETRY_CAP_S = 2.0
RECV_BYTES = 64 * 1024  # for more the C library asks the kernel for memory each time

_T = TypeVar("_T")

# RFC 4254: SSH_OPEN_ADMINISTRATIVELY_PROHIBITED, SSH_OPEN_CONNECT_FAILED
_FORBIDDEN_CHANNEL, _FAILED_CHANNEL = 1, 2

# Errors reach the user as ConnectError; paramiko would print them with tracebacks on stderr as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class ConnectOptions:
    """How to connect; the same for every host of one command."""

    timeout_s: float = 30.0  # one hard deadline over name look-up, TCP, banner, authentication and retries
    accept_new: bool = False  # unknown host keys are written to known_hosts; changed ones are still refused
    ssh_config: Path | None = None  # None: ~/.ssh/config and /etc/ssh/ssh_config


class Wire(Protocol):
    """Any duplex byte stream to an agent; any thread may send or close."""

    def listen(self, take: Callable[[bytes], None]) -> None:
        """From now on, once: `take` gets what comes, in order, and b"" at the end of the stream, however it ended.

        It is called by one thread at a time, of the wire's own or (what has come already) this one.  It must not
        send, nor wait: nothing more comes meanwhile.
        """

    def send(self, data: bytes) -> None:
        """Hand all of `data` to the stream, waiting while it is full; raises WireClosed."""

    def send_now(self, data: bytes) -> bool:
        """Send it if that takes no waiting, in one piece; else nothing of it.  Raises WireClosed."""

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
        hosts = tuple(hosts)
        self._openssh: OpenSsh | ConnectError | None = None
        if any(host.connection == "openssh" for host in hosts):
            try:
                self._openssh = OpenSsh(options.ssh_config, options.accept_new)
            except ConnectError as error:
                self._openssh = error
        remote = [host for host in hosts if host.connection == "ssh"]
        if remote:
            config = SshConfig(options.ssh_config)
        for host in remote:
            try:
                self._targets[host.name] = config.target(host)
            except ConnectError as error:
                self._targets[host.name] = error
        reached = [target for target in self._targets.values() if isinstance(target, Target)]
        reached += [jump for target in reached for jump in target.jumps]
        self._keys = Keys(reached, ask)
        self._known = _known_hosts(reached)
        self.notes = (*_notes(reached), *self._keys.notes)
        self._fingerprints: dict[str, str] = {}
        self._dialled: dict[
            Target, str
        ] = {}  # that wait for TCP's answer, each with what is to be said of it
        self._hops: dict[Target, futures.Future[Link]] = {}
        self._hops_lock = threading.Lock()
        # One for all: each takes a millisecond to make.  ssh_config is settled; what fabric would make of it (hops in
        # reverse) is kept out.
        self._config = Config(ssh_config=SSHConfig(), lazy=True)
        self._build_lock = threading.Lock()  # it is not made for threads

    def open(self, host: Host, command: str, first: bytes = b"") -> Wire:
        """Run `command` on `host` and return the stream to it; `first` is sent behind it, before any reply.

        By SSH: connect, authenticate, one channel; the login shell runs the command.  Locally: `sh -c
        command` in its own session, in the home directory as sshd does.  For many threads at once.
        Raises ConnectError, whose message leaves the host's name out so that equal causes fold.
        """
        if host.connection == "local":
            return LocalWire(command, first)
        if host.connection == "openssh":
            return self._open_by_ssh(host, command, first)
        target = self._target(host)
        deadline = Deadline(min(self._options.timeout_s, target.timeout_s or self._options.timeout_s))
        link = self._connect(target, deadline)
        self._fingerprints[host.name] = fingerprint(link.host_key)
        try:
            return SshWire(link, command, first, deadline)
        except BaseException:
            link.close()
            raise

    def unanswered(self, host: Host) -> ConnectError | None:
        """What to say of a host whose network has not answered yet; None: it has, or it is not being dialled.

        Then no TCP connection to it stands, or none to a jump host on the way.
        """
        if host.connection == "openssh":
            return self._openssh.unanswered(host) if isinstance(self._openssh, OpenSsh) else None
        target = self._targets.get(host.name)
        hops = _way_to(target) if isinstance(target, Target) else ()
        said = next((said for hop in hops if (said := self._dialled.get(hop))), "")
        return ConnectError(said, SILENT, absent=True) if said else None

    def dial_address(self, host: Host) -> str:
        """What SSH dials, after HostName: a name or an address without the port; "" for a local host."""
        if host.connection == "openssh":
            return self._ssh().hostname(host)
        return "" if host.connection == "local" else self._target(host).hostname

    def user(self, host: Host) -> str:
        """The account that is logged in to there."""
        if host.connection == "openssh":
            return self._ssh().user(host)
        if host.connection != "local":
            return self._target(host).user
        import getpass

        try:
            return getpass.getuser()
        except (KeyError, OSError):  # an account without a name
            return ""

    def host_key(self, host: Host) -> str:
        """The SHA256 fingerprint of the key that the host showed; "" before it was connected, and locally.

        Nor is it known when `ssh` went through a master's connection.
        """
        return self._fingerprints.get(host.name, "")

    def close(self) -> None:
        """End the connections to jump hosts and ssh-agents; the wires belong to those who opened them."""
        with self._hops_lock:
            hops, self._hops = self._hops, {}
        for hop in hops.values():
            if hop.done() and not hop.exception():
                hop.result().close()
        self._keys.close()
        if isinstance(self._openssh, OpenSsh):
            self._openssh.close()

    def _ssh(self) -> OpenSsh:
        if isinstance(self._openssh, ConnectError):
            raise ConnectError(self._openssh.message, self._openssh.hint)  # threads share no exception
        assert self._openssh is not None  # noqa: S101
        return self._openssh

    def _open_by_ssh(self, host: Host, command: str, first: bytes) -> Wire:
        ssh, deadline = self._ssh(), Deadline(self._options.timeout_s)
        wire = _patiently(lambda: ssh.open(host, command, first, deadline), deadline)
        if wire.log.host_key:
            self._fingerprints[host.name] = wire.log.host_key
        return wire

    def _target(self, host: Host) -> Target:
        target = self._targets[host.name]
        if isinstance(target, ConnectError):
            raise ConnectError(
                target.message, target.hint
            )  # threads share no exception; it was never dialled
        return target

    def _connect(self, target: Target, deadline: Deadline) -> Link:
        """An authenticated connection."""

        def attempt() -> Link:
            stream = self._dial(target, deadline)
            try:
                return self._login(target, stream, deadline)
            except BaseException:
                stream.close()
                raise

        return _patiently(attempt, deadline)

    def _dial(self, target: Target, deadline: Deadline) -> Stream:
        try:
            if target.jumps:
                return self._dial_through(target, deadline)
            if target.proxy_command:
                shell = os.environ.get("SHELL", "/bin/sh")
                child = Child([shell, "-c", f"exec {target.proxy_command}"])
                return Stream(child.socket, child)
            silent = f"no answer on port {target.port}"
            return Stream(dial_tcp(target, deadline, lambda: self._dialled.update({target: silent})))
        except (OSError, ValueError, OverflowError) as error:
            raise unreached(error, target, deadline) from None
        finally:
            self._dialled.pop(target, None)

    def _dial_through(self, target: Target, deadline: Deadline) -> Stream:
        *before, last = target.jumps
        hop = replace(last, jumps=tuple(before))
        transport = None
        try:
            transport = self._hop(hop, deadline).transport
            place = (target.hostname, target.port)
            self._dialled[target] = f"jump host {last.name} gets no answer on port {target.port} behind it"
            channel = transport.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=deadline.left())
        except futures.TimeoutError:  # another thread is still at it
            raise ConnectError(f"jump host {last.name}: no connection within {deadline}", SLOW) from None
        except ChannelException as error:
            if error.code == _FORBIDDEN_CHANNEL:
                raise ConnectError(
                    f"jump host {last.name} forbids forwarding to port {target.port}",
                    "its sshd must allow it: AllowTcpForwarding, PermitOpen",
                ) from None
            raise ConnectError(
                f"jump host {last.name} could not reach port {target.port} behind it",
                f"try it from there: `{last.ssh} ssh-keyscan -p {target.port} {target.hostname}`",
                absent=error.code == _FAILED_CHANNEL,
            ) from None
        except (SSHException, OSError, EOFError) as error:
            if deadline.passed and transport is not None and transport.is_active():
                raise ConnectError(
                    f"jump host {last.name} got no answer on port {target.port} behind it within {deadline}",
                    SILENT,
                    absent=True,
                ) from None
            cause = f"no answer within {deadline}" if deadline.passed else text(error)
            raise ConnectError(f"jump host {last.name}: its connection broke ({cause})", SLOW) from None
        return Stream(channel)

    def _hop(self, hop: Target, deadline: Deadline) -> Link:
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
            except _HopError as error:
                future.set_exception(error)
            except ConnectError as error:
                reason = f"jump host {hop.name}: {error.message}"
                future.set_exception(_HopError(reason, error.hint, absent=error.absent))
            except BaseException as error:
                future.set_exception(error)
                raise
        try:
            return future.result(deadline.left())
        except _HopError as error:
            # Threads share no exception.
            raise _HopError(error.message, error.hint, absent=error.absent) from None

    def _login(self, target: Target, stream: Stream, deadline: Deadline) -> Link:
        known = self._known[target.known_hosts, target.global_known_hosts]
        check = HostKeyCheck(known, target, self._options.accept_new)
        transport = check.transport(stream)
        client = Client(transport, deadline)
        try:
            with self._build_lock:
                connection = Connection(
                    target.hostname, user=target.user, port=target.port, gateway=False, config=self._config
                )
                connection.client = client
                connection.open()
            client.exchange_keys()
            key = transport.get_remote_server_key()
            check.accept(key)
            log_in(transport, target, self._keys.offers(target), deadline)
        except Exception as error:
            reason = explained(error, transport, target, stream, deadline)
            stream.close()
            transport.close()
            raise reason from None
        return Link(target, transport, stream, key.asbytes())


def _way_to(target: Target) -> Iterator[Target]:
    """The target and each jump host on the way to it, as `_dial_through` has them."""
    yield target
    if target.jumps:
        *before, last = target.jumps
        yield from _way_to(replace(last, jumps=tuple(before)))


class _HopError(ConnectError):
    """A jump host could not be used; the message names it."""


class LocalWire:
    """The same command on this machine, with `sh`, on a socket as sshd's commands are."""

    def __init__(self, command: str, first: bytes = b"") -> None:
        try:
            self._child = Child(["/bin/sh", "-c", command])
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise NoThreads from None
            raise ConnectError(
                f"/bin/sh could not be started here: {error.strerror}",
                "is this machine out of memory or of file descriptors? see `ulimit -n`",
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
        if len(data) > AT_ONCE or not has_room(self._child.socket):
            return False
        self.send(data)
        return True

    def close(self) -> None:
        self._child.hang_up()
        with self._reading:  # a descriptor closed under its reader could be another's when the reader looks
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


def _patiently(attempt: Callable[[], _T], deadline: Deadline) -> _T:
    """What `attempt` brings, which is made for as long as sshd drops the connection before its banner."""
    tries = 0
    while not deadline.passed:
        with contextlib.suppress(Dropped):
            return attempt()
        # Full jitter: clients that were dropped together must not come back together.
        longest = min(RETRY_CAP_S, RETRY_FIRST_S * 2**tries, deadline.left())
        time.sleep(random.uniform(0, longest))  # noqa: S311
        tries += 1
    raise ConnectError(
        f"sshd dropped the connection before its banner, {tries} times in {deadline}",
        "too many log in at once (raise MaxStartups there, or --connect-timeout), or it bars this address",
    )


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
        f"StrictHostKeyChecking no ({len(lax)} hosts) is taken for accept-new: unknown host keys are written to "
        "known_hosts, changed ones refused",
    )
