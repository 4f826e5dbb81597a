"""The wires: duplex byte streams to the hosts, by SSH, by the system's `ssh`, by a local subprocess, or to slots.

    connector = Connector(hostfile.hosts, ConnectOptions(), ask=getpass.getpass)   # main thread: reads files
    wire = connector.open(host, "exec python3 -c ...", source)                     # from any thread
    wire.listen(take); wire.send(b"...")

Every exception of fabric, paramiko, a socket or the system leaves here as a ConnectError with a cause and a remedy.
Host keys are always checked; nothing asks a question while connecting; one deadline covers it all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tflaunch.engines import registry
from tflaunch.engines.engine import Engine
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.sessions.process_wire import ProcessWire
from tflaunch.sessions.wires import Way, Wire
from tflaunch.ssh.client import SshClient
from tflaunch.ssh.openssh import OpenSsh


@dataclass(frozen=True)
class ConnectOptions:
    """How to connect; the same for every host of one command."""

    timeout_s: float = 30.0  # one hard deadline over name look-up, TCP, banner, authentication and retries
    accept_new: bool = False  # unknown host keys are written to known_hosts; changed ones are still refused
    ssh_config: Path | None = None  # None: ~/.ssh/config and /etc/ssh/ssh_config


class Connector:
    """Opens wires to the given hosts, each by the way that its `connection` names; one per command.

    Made in the main thread: here ssh_config, every key and every known_hosts file are read, once, and
    passphrases are asked for through `ask` (None: there is no terminal).  `notes` are things the user should
    know.  Raises ConnectError when the ssh_config itself cannot be used, UsageError for a `connection` that there is
    not; `open` raises what concerns one host.
    """

    def __init__(
        self, hosts: Iterable[Host], options: ConnectOptions, ask: Callable[[str], str] | None
    ) -> None:
        self.notes: tuple[str, ...] = ()
        by_way: dict[str, list[Host]] = {}
        for host in hosts:
            by_way.setdefault(host.connection, []).append(host)
        self._options, self._ask = options, ask
        self._ways = {connection: self._way(connection, those) for connection, those in by_way.items()}
        unknown = [name for name in self._ways if name not in ("ssh", "openssh", "local", *registry.names())]
        if unknown and len(unknown) == len(self._ways):  # else the others are reached all the same
            error = self._ways[unknown[0]]
            assert isinstance(error, ConnectError)  # noqa: S101 - what _way has made of it
            raise UsageError(f"{by_way[unknown[0]][0].name}: {error.message}", error.hint)

    def _way(self, connection: str, hosts: list[Host]) -> Way | ConnectError:
        """The way that `connection` names; a ConnectError where this machine lacks what it takes."""
        options = self._options
        match connection:
            case "ssh":
                client = SshClient(
                    hosts,
                    options.ssh_config,
                    self._ask,
                    accept_new=options.accept_new,
                    timeout_s=options.timeout_s,
                )
                self.notes = tuple(client.notes)
                return client
            case "openssh":
                try:
                    return OpenSsh(
                        options.ssh_config, accept_new=options.accept_new, timeout_s=options.timeout_s
                    )
                except ConnectError as error:
                    return error
            case "local":
                return ThisMachine()
        if (engine := registry.engine(connection)) is None:
            return ConnectError(
                f"there is no connection {connection!r}",
                "tflaunch of another version may have written the record; this one has "
                + ", ".join(("ssh", "openssh", "local", *registry.names())),
            )
        return SlotWay(engine, options.timeout_s)

    def open(self, host: Host, command: str, first: bytes = b"") -> Wire:
        """Run `command` on `host` and return the stream to it; `first` is sent behind it, before any reply.

        By SSH: connect, authenticate, one channel; the login shell runs the command.  Locally: `sh -c
        command` in its own session, in the home directory as sshd does.  For many threads at once.
        Raises ConnectError, whose message leaves the host's name out so that equal causes fold.
        """
        return self._client(host).open(host, command, first)

    def unanswered(self, host: Host) -> ConnectError | None:
        """The error for a host that is being dialled and whose network has not answered yet; None for any other.

        So long there is no TCP connection to it, or none to a jump host on the way.
        """
        way = self._ways.get(host.connection)
        return None if way is None or isinstance(way, ConnectError) else way.unanswered(host)

    def dial_address(self, host: Host) -> str:
        """What SSH dials, after HostName: a name or an address without the port; "" for a local host and a slot."""
        return self._client(host).hostname(host)

    def user(self, host: Host) -> str:
        """The account that runs the tasks there; "" for one without a name."""
        return self._client(host).user(host)

    def host_key(self, host: Host) -> str:
        """The SHA256 fingerprint of the host's key; "" before the first connection, for a local host and a slot.

        "", too, when `ssh` went through a connection of a ControlMaster.
        """
        way = self._ways.get(host.connection)
        return "" if way is None or isinstance(way, ConnectError) else way.host_key(host)

    def close(self) -> None:
        """End the connections to jump hosts and ssh-agents; each caller of `open` closes its own wire."""
        for way in self._ways.values():
            if not isinstance(way, ConnectError):
                way.close()

    def _client(self, host: Host) -> Way:
        """The way to a host.  Raises ConnectError where this machine lacks what it takes, as `ssh`."""
        way = self._ways[host.connection]
        if isinstance(way, ConnectError):  # a new one: threads must not share an exception
            raise ConnectError(way.message, way.hint)
        return way


class ThisMachine:
    """The way to a local host: `sh` runs the command on a socket, as sshd does."""

    def open(self, _host: Host, command: str, first: bytes = b"") -> Wire:
        return ProcessWire(["/bin/sh", "-c", command], first)

    def unanswered(self, _host: Host) -> ConnectError | None:
        return None

    def hostname(self, _host: Host) -> str:
        return ""

    def user(self, _host: Host) -> str:
        import getpass

        try:
            return getpass.getuser()
        except (KeyError, OSError):  # an account without a name
            return ""

    def host_key(self, _host: Host) -> str:
        return ""

    def close(self) -> None:
        pass


class SlotWay(ThisMachine):
    """The way to the slots of an engine, none of which is ever absent: all of them were given, or none."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._at_once = threading.Semaphore(engine.at_once)

    def open(self, host: Host, command: str, first: bytes = b"") -> Wire:
        with self._at_once:
            return self._engine.open(host, command, first, self._timeout_s)

    def user(self, _host: Host) -> str:
        return ""  # the engine decides
