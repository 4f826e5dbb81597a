"""The system's `ssh` as a client: it obeys all of the user's configuration, and can do what paramiko cannot.

One process for each host.  It logs in by whatever asks no question: a ControlMaster's connection, an ssh-agent,
Kerberos, a certificate, a token; a question is refused (BatchMode).  A ControlMaster is used, never started or ended.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shlex
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError, NoThreads
from tflaunch.sessions.child import WAIT_S
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.dropped import patiently
from tflaunch.ssh.openssh_failures import why_not
from tflaunch.ssh.openssh_key import shown_key
from tflaunch.ssh.openssh_log import SshLog
from tflaunch.ssh.openssh_wire import OpenSshWire
from tflaunch.ssh.target import SSH_PORT, Target, check_host

KEEPALIVE_S = (3, 2)  # seconds idle, and how many questions may stay unanswered: after 9 s ssh hangs up
ANSWERS_S = 10.0  # what `ssh -V` and `ssh -G` may take
SHOWS_S = 5.0  # at least, to show the server's key

# What tflaunch needs, whatever the user's configuration says; all else is as it says.
_NEEDED = (
    "BatchMode=yes",  # it asks nothing
    "LogLevel=DEBUG1",  # only its log tells how far it came
    "ControlMaster=no",  # an existing one is used; ours would outlive the run, or end while others use it
    "EscapeChar=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "Tunnel=no",
    "PermitLocalCommand=no",  # it would read from the stream and write to it
    f"ServerAliveInterval={KEEPALIVE_S[0]}",
    f"ServerAliveCountMax={KEEPALIVE_S[1]}",
)
# Options that ssh knows since that version.
_SINCE = (
    ((7, 6), "RemoteCommand=none"),
    ((8, 7), "SessionType=default"),
    ((8, 7), "StdinNull=no"),
    ((8, 7), "ForkAfterAuthentication=no"),
)


class OpenSsh:
    """Opens wires to hosts by the system's `ssh`; one per command.  Raises ConnectError where it is not installed."""

    def __init__(self, config: Path | None, *, accept_new: bool, timeout_s: float) -> None:
        program = shutil.which("ssh")
        if program is None:
            raise ConnectError(
                "there is no `ssh` on this machine, and the hostfile says `connection: openssh`",
                "install OpenSSH's client here (openssh-client), or take that line out: tflaunch needs no `ssh`",
            )
        self._program = program
        self._named = ("-F", str(config)) if config else ()
        self._version = self._ask_version()
        options = [*_NEEDED, *(option for since, option in _SINCE if self._version >= since)]
        self._options = tuple(word for option in options for word in ("-o", option))
        self._timeout_s = timeout_s
        self._accept_new = accept_new
        self._configurations: dict[str, dict[str, str]] = {}  # by the host's name
        self._hostnames: dict[str, str] = {}
        self._fingerprints: dict[str, str] = {}
        # Not logged in yet.  A host may have two: one that was given up, and one that dials it again.
        self._dialling: dict[OpenSshWire, tuple[str, Target]] = {}
        self._wires: list[OpenSshWire] = []
        self._lock = threading.Lock()
        self._closed = False

    def open(self, host: Host, command: str, first: bytes = b"") -> OpenSshWire:
        """Log in, and have the login shell run `command`, with `first` as its first input; from any thread.

        Raises ConnectError.
        """
        deadline = Deadline(self._timeout_s)
        wire = patiently(lambda: self._attempt(host, command, first, deadline), deadline)
        self._hostnames[host.name] = wire.log.hostname
        if wire.log.host_key:
            self._fingerprints[host.name] = wire.log.host_key
        return wire

    def close(self) -> None:
        """End the processes that are still logging in, and those of closed wires; the others end with their wires."""
        with self._lock:
            self._closed = True
            for wire in self._dialling:
                wire.close()
                wire.kill()
        deadline = Deadline(WAIT_S)
        for wire in self._wires:
            if wire.closed and not wire.wait(deadline.left()):
                wire.kill()  # it hangs, and would outlive us

    def unanswered(self, host: Host) -> ConnectError | None:
        """The error for a host that is being dialled and whose network has not answered yet."""
        with self._lock:
            dialled = [
                (wire.log, target) for wire, (name, target) in self._dialling.items() if name == host.name
            ]
        log, target = dialled[-1] if dialled else (None, None)
        return log.unanswered(log.known(target)) if log and target else None

    def hostname(self, host: Host) -> str:
        """What `ssh` dials for that host, after HostName."""
        found = self._hostnames.get(host.name, "")
        if not found:  # not dialled yet, or by a ControlMaster
            found = self._hostnames[host.name] = (
                self._configuration(host).get("hostname") or host.ssh_host or host.name
            )
        return found

    def user(self, host: Host) -> str:
        """The account that `ssh` logs in to; "" where it does not tell."""
        return host.user or self._configuration(host).get("user", "")

    def host_key(self, host: Host) -> str:
        """The SHA256 fingerprint of the host's key; "" before the first connection, or through a ControlMaster."""
        return self._fingerprints.get(host.name, "")

    def _attempt(self, host: Host, command: str, first: bytes, deadline: Deadline) -> OpenSshWire:
        configured = self._configuration(host)
        target = replace(self._target(host), host_key_name=configured.get("hostkeyalias", ""))
        words = [
            *self._named,
            "-T",
            *self._options,
            *self._strictness(configured.get("stricthostkeychecking", "")),
            *_options_of(host),
            "--",
            target.name,
        ]
        with self._lock:
            if self._closed:
                raise ConnectError("it was not dialled: tflaunch is ending")
            try:
                wire = OpenSshWire(self._program, words, command)
            except OSError as error:
                raise _not_started(error) from None
            self._wires = [*(other for other in self._wires if not other.wait(0)), wire]
            self._dialling[wire] = host.name, target
        try:
            if not wire.log_in(first, deadline):
                known = wire.log.known(target)
                raise why_not(
                    wire.log, wire.exit_status, known, deadline, lambda: self._shown(host, wire.log, deadline)
                )
        except BaseException:
            wire.close()
            raise
        finally:
            with self._lock:
                del self._dialling[wire]
        return wire

    def _strictness(self, configured: str) -> tuple[str, ...]:
        """What ssh is told of host keys: one that has changed it refuses in any case, by itself."""
        newer = self._version >= (7, 6)
        if self._accept_new:
            return ("-o", "StrictHostKeyChecking=accept-new")
        if configured in ("false", "no", "off"):  # it would go on with a key that has changed
            return ("-o", f"StrictHostKeyChecking={'accept-new' if newer else 'yes'}")
        return () if configured else ("-o", "StrictHostKeyChecking=yes")

    def _shown(self, host: Host, log: SshLog, deadline: Deadline) -> tuple[str, str]:
        """The kind and the fingerprint of the key that the host shows, by a connection that ends without a login."""
        seconds = min(max(deadline.left(), SHOWS_S), self._timeout_s)
        words = (*self._named, *_options_of(host))
        return shown_key(
            self._program,
            words,
            self._target(host).name,
            log.host_key_kind,
            seconds,
            command_known=self._version >= (8, 5),
        )

    def _configuration(self, host: Host) -> dict[str, str]:
        """What ssh's configuration says of that host, by keyword; nothing where ssh does not tell."""
        if host.name not in self._configurations:
            answer = self._ask("-G", *self._named, *_options_of(host), "--", self._target(host).name)
            lines = (line.partition(" ") for line in answer.splitlines())
            self._configurations[host.name] = {keyword: value for keyword, _, value in reversed([*lines])}
        return self._configurations[host.name]

    def _target(self, host: Host) -> Target:
        """What the hostfile says of that host; ssh itself finds out the rest."""
        name = host.ssh_host or host.name
        check_host(host, name)
        same = name == host.name
        words = shlex.join(("ssh", *self._named, *_options_of(host)))
        return Target(
            name=name,
            hostname=name,
            port=host.port or SSH_PORT,
            user=host.user or "",
            identities=(),
            identities_named=False,
            identities_only=False,
            agent="",
            known_hosts=(),
            global_known_hosts=(),
            host_key_name="",
            strict="check",
            hash_known_hosts=False,
            family="any",
            timeout_s=None,
            ssh=f"{words} {{host}}" if same else f"{words} {shlex.quote(name)}",
        )

    def _ask_version(self) -> tuple[int, ...]:
        found = re.search(r"OpenSSH_(?:for_Windows_)?(\d+)\.(\d+)", self._ask("-V"))
        return tuple(map(int, found.groups())) if found else (0, 0)

    def _ask(self, *words: str) -> str:
        """What `ssh` prints for these words, on stdout and stderr; "" where it fails."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=ANSWERS_S,
                start_new_session=True,
            )
            return (done.stdout + done.stderr).decode(errors="replace")
        return ""


def _options_of(host: Host) -> tuple[str, ...]:
    """The hostfile's own settings as options of `ssh`, which win over its configuration."""
    given = {
        "-l": host.user,
        "-p": host.port,
        "-i": host.identity_file,
        "-o": None if host.proxy_jump is None else f"ProxyJump={host.proxy_jump}",
    }
    return tuple(word for key, value in given.items() if value is not None for word in (key, str(value)))


def _not_started(error: OSError) -> ConnectError:
    if error.errno == errno.EAGAIN:
        return NoThreads()
    return ConnectError(
        f"ssh could not be started here: {error.strerror}",
        "is this machine out of memory or of file descriptors? see `ulimit -n`",
    )
