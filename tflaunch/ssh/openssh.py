"""The system's `ssh` as a client: it obeys all of the user's configuration, and can do what paramiko cannot.

One process for each host.  It logs in by whatever asks no question: a ControlMaster's connection, an ssh-agent,
Kerberos, a certificate, a token; a question is refused (BatchMode).  A ControlMaster is used, never started or ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError, NoThreads, WireClosed
from tflaunch.ssh.child import WAIT_S
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.dropped import patiently
from tflaunch.ssh.failures import text
from tflaunch.ssh.openssh_failures import why_not
from tflaunch.ssh.openssh_log import SshLog
from tflaunch.ssh.sockets import AT_ONCE, RECV_BYTES, has_room
from tflaunch.ssh.target import SSH_PORT, Target, check_host

KEEPALIVE_S = (3, 2)  # seconds idle, and how many questions may stay unanswered: after 9 s ssh hangs up
ANSWERS_S = 10.0  # what `ssh -V` and `ssh -G` may take
LOG_BYTES = 16 * 1024

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
        options = [*_NEEDED, *(option for since, option in _SINCE if self._version() >= since)]
        if accept_new:
            options.append("StrictHostKeyChecking=accept-new")
        self._options = tuple(word for option in options for word in ("-o", option))
        self._timeout_s = timeout_s
        self._hostnames: dict[str, str] = {}
        self._fingerprints: dict[str, str] = {}
        # Not logged in yet.  A host may have two: one that was given up, and one that dials it again.
        self._dialling: dict[OpenSshWire, tuple[str, Target]] = {}
        self._wires: list[OpenSshWire] = []
        self._lock = threading.Lock()
        self._closed = False

    def open(self, host: Host, command: str, first: bytes) -> OpenSshWire:
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
                self._configured("hostname", host) or host.ssh_host or host.name
            )
        return found

    def user(self, host: Host) -> str:
        """The account that `ssh` logs in to; "" where it does not tell."""
        return host.user or self._configured("user", host)

    def host_key(self, host: Host) -> str:
        """The SHA256 fingerprint of the host's key; "" before the first connection, or through a ControlMaster."""
        return self._fingerprints.get(host.name, "")

    def _attempt(self, host: Host, command: str, first: bytes, deadline: Deadline) -> OpenSshWire:
        target = self._target(host)
        argv = [
            self._program,
            *self._named,
            "-T",
            *self._options,
            *_options_of(host),
            "--",
            target.name,
            command,
        ]
        with self._lock:
            if self._closed:
                raise ConnectError("it was not dialled: tflaunch is ending")
            try:
                wire = OpenSshWire(argv)
            except OSError as error:
                raise _not_started(error) from None
            self._wires = [*(other for other in self._wires if not other.wait(0)), wire]
            self._dialling[wire] = host.name, target
        try:
            wire.log_in(first, target, deadline)
        except BaseException:
            wire.close()
            raise
        finally:
            with self._lock:
                del self._dialling[wire]
        return wire

    def _configured(self, key: str, host: Host) -> str:
        """What ssh's configuration says of that host; "" where ssh does not tell."""
        answer = self._ask("-G", *self._named, *_options_of(host), "--", self._target(host).name)
        found = re.search(rf"^{key} (\S+)$", answer, re.MULTILINE)
        return found[1] if found else ""

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

    def _version(self) -> tuple[int, ...]:
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


class OpenSshWire:
    """A command on a host, by an `ssh` process whose output one thread hands on.

    The process has a session of its own, so that Ctrl-C reaches the launcher alone; it ends with its input, also when
    the launcher is killed.  Raises OSError and RuntimeError when it cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.log = SshLog()
        self._early: list[bytes] = []  # what came before `listen`
        self._listener: Callable[[bytes], None] | None = None
        self._taking = threading.Lock()
        self._stream_ended = False  # nothing more comes
        self.closed = False  # by us
        self._decided = threading.Event()  # ssh has logged in, or ended
        self._gone = threading.Event()  # the process has ended
        self._socket, theirs = socket.socketpair()
        self._stderr, stderr = os.pipe()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=stderr,
                env={
                    **os.environ,
                    "SSH_ASKPASS_REQUIRE": "never",
                },  # nor does the ssh that leads to a jump host ask
                start_new_session=True,
            )
        except BaseException:
            self._release()
            raise
        finally:
            theirs.close()
            os.close(stderr)
        try:
            threading.Thread(target=self._pump, name="ssh", daemon=True).start()
        except RuntimeError:  # the system lets the user start no more threads
            self.kill()
            self._process.wait()
            self._release()
            raise

    def log_in(self, first: bytes, target: Target, deadline: Deadline) -> None:
        """Wait for the login, while the first bytes wait in the socket; raises ConnectError, Dropped."""
        if first:
            self._socket.settimeout(deadline.left())
            with contextlib.suppress(OSError):  # its log says why
                self._socket.sendall(first)
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)
        self._decided.wait(deadline.left())
        if (self.log.logged_in or self._came) and not self.log.changed:
            return
        code = self._process.returncode if self._gone.is_set() else None
        raise why_not(self.log, code, self.log.known(target), deadline)

    def listen(self, take: Callable[[bytes], None]) -> None:
        with self._taking:
            self._listener = take
            for data in self._early:
                take(data)
            self._early.clear()
            ended = self._stream_ended
        if ended:
            take(b"")

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            reason = self.last_words() or text(error)
            raise WireClosed(f"the connection is closed: {reason}") from None

    def send_now(self, data: bytes) -> bool:
        if len(data) > AT_ONCE or not has_room(self._socket):
            return False
        self.send(data)
        return True

    def close(self) -> None:
        # ssh still sends on what it was given, and ends; if it does not, our thread ends it.
        self.closed = True
        self._hang_up()

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Whether the process ends within that time."""
        return self._gone.wait(seconds)

    def last_words(self) -> str:
        if not self.closed:
            self._gone.wait(WAIT_S)
        return self.log.last_words(self._process.returncode, closed=self.closed)

    _came = False  # anything on its stdout: then it has logged in, whatever its log says

    # -- called by the wire's thread --------------------------------------------------------------------------

    def _pump(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stderr, select.POLLIN)
        ours = self._socket.fileno()
        data = b"."
        while data:
            for descriptor, _ in poll.poll():
                if descriptor != ours:
                    if not self._take_log():
                        poll.unregister(descriptor)
                    continue
                try:
                    data = self._socket.recv(RECV_BYTES)
                except OSError:
                    data = b""
                if data:
                    self._hand_on(data)
        closed = self.closed
        if closed:
            self._report_end()  # without its last words: for those we would wait for a process that hangs
        self._reap()
        if not closed:
            self._report_end()
        self._release()

    def _take_log(self) -> bool:
        """Read what is there of stderr; False at its end."""
        try:
            data = os.read(self._stderr, LOG_BYTES)
        except OSError:
            data = b""
        self.log.feed(data)
        if self.log.changed:
            self.kill()
        if self.log.logged_in:
            self._decided.set()
        return bool(data)

    def _hand_on(self, data: bytes) -> None:
        if not self._came:
            self._came = True
            self._decided.set()
        with self._taking:
            if self._listener is None:
                self._early.append(data)
            else:
                self._listener(data)

    def _report_end(self) -> None:
        with self._taking:
            self._stream_ended = True
            listener = self._listener
        if listener is not None:
            listener(b"")

    def _reap(self) -> None:
        """Wait for the process; end one that does not end by itself, for its streams are closed."""
        for end in (None, self._process.terminate, self._process.kill):
            if end is not None:
                end()
            if self._wait(WAIT_S):
                break
        else:
            self._process.wait()  # no zombie
        # Not until stderr ends: a ControlMaster that the `ssh` to a jump host has started may hold stderr open.
        while self._readable(0) and self._take_log():
            pass
        self.log.end()
        self._gone.set()
        self._decided.set()

    def _wait(self, seconds: float) -> bool:
        """Whether the process ends in time; stderr is read meanwhile, lest the process waits for that."""
        until, pause = time.monotonic() + seconds, 0.001
        stderr_open = True
        while self._process.poll() is None:
            if time.monotonic() > until:
                return False
            if stderr_open and self._readable(pause):
                stderr_open = self._take_log()
            elif not stderr_open:
                time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True

    def _readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._stderr, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _release(self) -> None:
        self._hang_up()
        self._socket.close()
        os.close(self._stderr)


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
