"""The wires: duplex byte streams to the hosts, by SSH, by the system's `ssh`, or by a local subprocess.

    connector = Connector(hostfile.hosts, ConnectOptions(), ask=getpass.getpass)   # main thread: reads files
    wire = connector.open(host, "exec python3 -c ...", source)                     # from any thread
    wire.listen(take); wire.send(b"...")

Every exception of fabric, paramiko, a socket or the system leaves here as a ConnectError with a cause and a remedy.
Host keys are always checked; nothing asks a question while connecting; one deadline covers it all.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError, NoThreads, WireClosed
from tflaunch.sessions.wires import Wire
from tflaunch.ssh.child import Child
from tflaunch.ssh.client import SshClient
from tflaunch.ssh.failures import text
from tflaunch.ssh.openssh import OpenSsh
from tflaunch.ssh.sockets import AT_ONCE, RECV_BYTES, has_room


@dataclass(frozen=True)
class ConnectOptions:
    """How to connect; the same for every host of one command."""

    timeout_s: float = 30.0  # one hard deadline over name look-up, TCP, banner, authentication and retries
    accept_new: bool = False  # unknown host keys are written to known_hosts; changed ones are still refused
    ssh_config: Path | None = None  # None: ~/.ssh/config and /etc/ssh/ssh_config


class Connector:
    """Opens wires to the given hosts, each by the way that its `connection:` names; one per command.

    Made in the main thread: here ssh_config, every key and every known_hosts file are read, once, and
    passphrases are asked for through `ask` (None: there is no terminal).  `notes` are things the user should
    know.  Raises ConnectError when the ssh_config itself cannot be used; `open` raises what concerns one host.
    """

    def __init__(
        self, hosts: Iterable[Host], options: ConnectOptions, ask: Callable[[str], str] | None
    ) -> None:
        self._openssh: OpenSsh | ConnectError | None = None
        self._ssh: SshClient | None = None
        hosts = tuple(hosts)
        if any(host.connection == "openssh" for host in hosts):
            try:
                self._openssh = OpenSsh(
                    options.ssh_config, accept_new=options.accept_new, timeout_s=options.timeout_s
                )
            except ConnectError as error:
                self._openssh = error
        if by_ssh := [host for host in hosts if host.connection == "ssh"]:
            self._ssh = SshClient(
                by_ssh,
                options.ssh_config,
                ask,
                accept_new=options.accept_new,
                timeout_s=options.timeout_s,
            )
        self.notes = self._ssh.notes if self._ssh else ()

    def open(self, host: Host, command: str, first: bytes = b"") -> Wire:
        """Run `command` on `host` and return the stream to it; `first` is sent behind it, before any reply.

        By SSH: connect, authenticate, one channel; the login shell runs the command.  Locally: `sh -c
        command` in its own session, in the home directory as sshd does.  For many threads at once.
        Raises ConnectError, whose message leaves the host's name out so that equal causes fold.
        """
        client = self._client(host)
        if client is None:
            return LocalWire(command, first)
        return client.open(host, command, first)

    def unanswered(self, host: Host) -> ConnectError | None:
        """The error for a host that is being dialled and whose network has not answered yet; None for any other.

        So long there is no TCP connection to it, or none to a jump host on the way.
        """
        if host.connection == "openssh":
            return self._openssh.unanswered(host) if isinstance(self._openssh, OpenSsh) else None
        return self._ssh.unanswered(host) if host.connection == "ssh" and self._ssh else None

    def dial_address(self, host: Host) -> str:
        """What SSH dials, after HostName: a name or an address without the port; "" for a local host."""
        client = self._client(host)
        return client.hostname(host) if client else ""

    def user(self, host: Host) -> str:
        """The account that runs the tasks there; "" for one without a name."""
        if client := self._client(host):
            return client.user(host)
        import getpass

        try:
            return getpass.getuser()
        except (KeyError, OSError):  # an account without a name
            return ""

    def host_key(self, host: Host) -> str:
        """The SHA256 fingerprint of the host's key; "" before the first connection, and for a local host.

        "", too, when `ssh` went through a connection of a ControlMaster.
        """
        client = {"ssh": self._ssh, "openssh": self._openssh}.get(host.connection)
        return client.host_key(host) if isinstance(client, SshClient | OpenSsh) else ""

    def close(self) -> None:
        """End the connections to jump hosts and ssh-agents; each caller of `open` closes its own wire."""
        if self._ssh:
            self._ssh.close()
        if isinstance(self._openssh, OpenSsh):
            self._openssh.close()

    def _client(self, host: Host) -> SshClient | OpenSsh | None:
        """The SSH client for a host; None for a local one.  Raises ConnectError where `ssh` is not installed."""
        if host.connection == "openssh":
            if isinstance(self._openssh, ConnectError):  # a new one: threads must not share an exception
                raise ConnectError(self._openssh.message, self._openssh.hint)
            assert self._openssh is not None  # noqa: S101
            return self._openssh
        return None if host.connection == "local" else self._ssh


class LocalWire:
    """A command on this machine: `sh` runs it on a socket, as sshd does."""

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
