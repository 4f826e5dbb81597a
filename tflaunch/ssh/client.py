"""tflaunch's own SSH client, by fabric and paramiko: it opens wires to the hosts whose `connection:` is `ssh`.

Before a server has answered the dial neither of the two libraries is loaded: it takes a quarter of a second.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.child import Child
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.dropped import patiently
from tflaunch.ssh.failures import SILENT, SLOW, unreached
from tflaunch.ssh.host_key import HostKeyCheck
from tflaunch.ssh.keys import Keys
from tflaunch.ssh.known_hosts import KnownHosts, fingerprint
from tflaunch.ssh.sockets import dial_tcp
from tflaunch.ssh.ssh_config import SshConfig
from tflaunch.ssh.target import Target

if TYPE_CHECKING:
    from tflaunch.sessions.wires import Wire
    from tflaunch.ssh.connection import HostConnection

# Errors reach the user as ConnectError; paramiko would print them with tracebacks on stderr as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class SshClient:
    """Opens wires to the given hosts; one per command.

    Made in the main thread: here ssh_config, every key and every known_hosts file are read, once, and
    passphrases are asked for through `ask` (None: there is no terminal).  `notes` are things the user should
    know.  `StrictHostKeyChecking no` is taken for `accept-new`, with a note: a changed key is always refused.
    Raises ConnectError when the ssh_config itself cannot be used; `open` raises what concerns one host.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        config: Path | None,
        ask: Callable[[str], str] | None,
        *,
        accept_new: bool,
        timeout_s: float,
    ) -> None:
        self._accept_new = accept_new
        self._timeout_s = timeout_s
        self._targets: dict[str, Target | ConnectError] = {}
        ssh_config = SshConfig(config)
        for host in hosts:
            try:
                self._targets[host.name] = ssh_config.target(host)
            except ConnectError as error:
                self._targets[host.name] = error
        reached = [target for target in self._targets.values() if isinstance(target, Target)]
        reached += [jump for target in reached for jump in target.jumps]
        self._keys = Keys(reached, ask)
        self._known = _known_hosts(reached)
        self.notes = (*_notes(reached), *self._keys.notes)
        self._fingerprints: dict[str, str] = {}
        # Targets that have not answered yet, each with the message that says so.
        self._awaited: dict[Target, str] = {}
        self._gateways: dict[Target, futures.Future[HostConnection]] = {}  # the connections to jump hosts
        self._gateways_lock = threading.Lock()

    def open(self, host: Host, command: str, first: bytes) -> Wire:
        """Log in, and have the login shell run `command`, with `first` as its first input; from any thread.

        Raises ConnectError.
        """
        target = self._target(host)
        deadline = Deadline(min(self._timeout_s, target.timeout_s or self._timeout_s))
        connection = self._connect(target, deadline)
        self._fingerprints[host.name] = fingerprint(connection.client.host_key)
        from tflaunch.ssh.command_wire import SshWire

        try:
            return SshWire(connection, command, first, deadline)
        except BaseException:
            connection.close()
            raise

    def unanswered(self, host: Host) -> ConnectError | None:
        """The error for a host that is being dialled if its network, or that of a jump host, has not answered yet."""
        target = self._targets.get(host.name)
        way = _way_to(target) if isinstance(target, Target) else ()
        message = next((message for hop in way if (message := self._awaited.get(hop))), "")
        return ConnectError(message, SILENT, absent=True) if message else None

    def hostname(self, host: Host) -> str:
        """What is dialled for that host, after HostName: a name or an address."""
        return self._target(host).hostname

    def user(self, host: Host) -> str:
        """The account that tflaunch logs in to."""
        return self._target(host).user

    def host_key(self, host: Host) -> str:
        """The SHA256 fingerprint of the host's key; "" before the first connection."""
        return self._fingerprints.get(host.name, "")

    def close(self) -> None:
        """Close the connections to jump hosts and ssh-agents; each caller of `open` closes its own wire."""
        with self._gateways_lock:
            gateways, self._gateways = self._gateways, {}
        for gateway in gateways.values():
            if gateway.done() and not gateway.exception():
                gateway.result().close()
        self._keys.close()

    def _target(self, host: Host) -> Target:
        target = self._targets[host.name]
        if isinstance(target, ConnectError):  # a new one: threads must not share an exception
            raise ConnectError(target.message, target.hint)
        return target

    def _connect(self, target: Target, deadline: Deadline) -> HostConnection:
        """A connection that has logged in; raises ConnectError."""
        return patiently(lambda: self._attempt(target, deadline), deadline)

    def _attempt(self, target: Target, deadline: Deadline) -> HostConnection:
        gateway = self._gateway_to(target, deadline) if target.jumps else None
        dialled = None if gateway else self._dial(target, deadline)
        with (
            deadline.paused()
        ):  # loading takes a quarter of a second, once; that is this machine's time, not the server's
            from tflaunch.ssh.login import LoginClient
            from tflaunch.ssh.transport import SshStream
        known = self._known[target.known_hosts, target.global_known_hosts]
        check = HostKeyCheck(known, target, self._accept_new)
        client = LoginClient(target, check, self._keys.offers, deadline)
        stream = None
        if dialled:
            stream = SshStream(dialled.socket, dialled) if isinstance(dialled, Child) else SshStream(dialled)
            client.start(stream)
        if gateway:
            jump = gateway.target.name
            self._awaited[target] = f"jump host {jump} gets no answer on port {target.port} behind it"
        with deadline.paused():  # fabric, while the server begins
            from tflaunch.ssh.connection import HostConnection
        connection = HostConnection(
            client,
            target,
            deadline,
            stream=stream,
            gateway=gateway,
            on_stream=lambda: self._answered(target),
        )
        connection.open()
        return connection

    def _dial(self, target: Target, deadline: Deadline) -> socket | Child:
        """A TCP connection to the target, or its ProxyCommand; raises ConnectError."""
        try:
            if target.proxy_command:
                shell = os.environ.get("SHELL", "/bin/sh")
                return Child([shell, "-c", f"exec {target.proxy_command}"])
            silent = f"no answer on port {target.port}"
            return dial_tcp(target, deadline, lambda: self._awaited.update({target: silent}))
        except (OSError, ValueError, OverflowError) as error:
            raise unreached(error, target, deadline) from None
        finally:
            self._answered(target)

    def _answered(self, target: Target) -> None:
        self._awaited.pop(target, None)

    def _gateway_to(self, target: Target, deadline: Deadline) -> HostConnection:
        """The connection to the last jump host before a target, which all hosts behind it share.

        Raises ConnectError, which names the jump host.
        """
        jump = _last_jump(target)
        with deadline.paused():  # here, so that other threads that wait for this jump host do not count it
            import tflaunch.ssh.command_wire  # noqa: F401
        with self._gateways_lock:
            future = self._gateways.get(jump)
            if future and future.done() and (future.exception() or not future.result().is_connected):
                future = None  # dial it again
            mine = future is None
            if future is None:
                future = self._gateways[jump] = futures.Future()
        if mine:
            try:
                future.set_result(self._connect(jump, deadline))
            except _JumpError as error:  # of a jump host before it
                future.set_exception(error)
            except ConnectError as error:
                reason = f"jump host {jump.name}: {error.message}"
                future.set_exception(_JumpError(reason, error.hint, absent=error.absent, again=error.again))
            except BaseException as error:
                future.set_exception(error)
                raise
        try:
            return future.result(deadline.left())
        except futures.TimeoutError:  # another thread is still dialling it
            raise ConnectError(f"jump host {jump.name}: no connection within {deadline}", SLOW) from None
        except _JumpError as error:  # a new one: threads must not share an exception
            raise _JumpError(error.message, error.hint, absent=error.absent, again=error.again) from None


class _JumpError(ConnectError):
    """A jump host could not be used; the message names it."""


def _last_jump(target: Target) -> Target:
    """The last jump host before a target, with the jump hosts before it."""
    *before, last = target.jumps
    return replace(last, jumps=tuple(before))


def _way_to(target: Target) -> Iterator[Target]:
    """The target and each jump host on the way to it, from the last to the first."""
    yield target
    if target.jumps:
        yield from _way_to(_last_jump(target))


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
