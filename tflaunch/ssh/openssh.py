"""The system's `ssh` as a wire: for what paramiko cannot do, with the user's configuration whole.

One process a host.  What a master's connection (ControlMaster), an ssh-agent, Kerberos, a certificate or a token lets
in gets in here; what would ask a question is refused (BatchMode).  A master is used and never made or ended.
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
from tflaunch.ssh.config import SSH_PORT, Target, check_host
from tflaunch.ssh.openssh_log import SshLog
from tflaunch.ssh.transport import AT_ONCE, END_S, Deadline, has_room, text

KEEPALIVE_S = (3, 2)  # seconds without a word, and so many questions unanswered: after 9 s the link is cut
ANSWERS_S = 10.0  # what `ssh -V` and `ssh -G` may take
RECV_BYTES = 64 * 1024  # for more the C library asks the kernel for memory each time
LOG_BYTES = 16 * 1024

# What is needed, whatever the user's configuration says; all else is as it says.
_NEEDED = (
    "BatchMode=yes",  # it asks nothing
    "LogLevel=DEBUG1",  # how far it came is in its log alone
    "ControlMaster=no",  # a master there is is used; made here it would outlive the run, or end with it for others
    "EscapeChar=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "Tunnel=no",
    "PermitLocalCommand=no",  # it would read and write the stream
    f"ServerAliveInterval={KEEPALIVE_S[0]}",
    f"ServerAliveCountMax={KEEPALIVE_S[1]}",
)
# What ssh knows since that version.
_SINCE = (
    ((7, 6), "RemoteCommand=none"),
    ((8, 7), "SessionType=default"),
    ((8, 7), "StdinNull=no"),
    ((8, 7), "ForkAfterAuthentication=no"),
)


class OpenSsh:
    """`ssh` of this machine, told what one command of tflaunch wants of it.

    Raises ConnectError where there is none.
    """

    def __init__(self, config: Path | None, accept_new: bool) -> None:
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
        self._hostnames: dict[str, str] = {}
        # Those on their way; a host that was given up may be dialled again before the first attempt is over.
        self._dialling: dict[OpenSshWire, tuple[str, Target]] = {}
        self._wires: list[OpenSshWire] = []
        self._lock = threading.Lock()
        self._over = False

    def open(self, host: Host, command: str, first: bytes, deadline: Deadline) -> OpenSshWire:
        """Log in and run the command; raises ConnectError, Dropped."""
        target = self._target(host)
        argv = [self._program, *self._named, "-T", *self._options, *_asked(host), "--", target.name, command]
        with self._lock:
            if self._over:
                raise ConnectError("it was not dialled: the command is at its end")
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
        self._hostnames[host.name] = wire.log.hostname
        return wire

    def close(self) -> None:
        """End every process that is still on its way or let go of; those of wires in use belong to their users."""
        with self._lock:
            self._over = True
            for wire in self._dialling:
                wire.close()
                wire.kill()
        deadline = Deadline(END_S)
        for wire in self._wires:
            if wire.closed and not wire.wait(deadline.left()):
                wire.kill()  # it hangs, and would outlive us

    def unanswered(self, host: Host) -> ConnectError | None:
        """What to say of a host whose network has not answered yet; None: it has, or it is not being dialled."""
        with self._lock:
            of_it = [
                (wire.log, target) for wire, (name, target) in self._dialling.items() if name == host.name
            ]
        log, target = of_it[-1] if of_it else (None, None)
        return log.unanswered(log.known(target)) if log and target else None

    def hostname(self, host: Host) -> str:
        """What it dials for that host, after HostName."""
        found = self._hostnames.get(host.name, "")
        if not found:  # not dialled yet, or a master has
            found = self._hostnames[host.name] = (
                self._configured("hostname", host) or host.ssh_host or host.name
            )
        return found

    def user(self, host: Host) -> str:
        """The account there; "" where ssh does not tell."""
        return host.user or self._configured("user", host)

    def _configured(self, key: str, host: Host) -> str:
        """What ssh's configuration says of that host; "" where it does not tell."""
        said = self._ask("-G", *self._named, *_asked(host), "--", self._target(host).name)
        found = re.search(rf"^{key} (\S+)$", said, re.MULTILINE)
        return found[1] if found else ""

    def _target(self, host: Host) -> Target:
        """What is known before it is dialled; ssh itself finds out the rest."""
        name = host.ssh_host or host.name
        check_host(host, name)
        same = name == host.name
        words = shlex.join(("ssh", *self._named, *_asked(host)))
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
    """A command on a host behind a process of its own, whose output one thread hands on.

    The process has a session of its own, so that Ctrl-C is for the launcher; it ends with its input, also when the
    launcher is killed.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.log = SshLog()
        self._early: list[bytes] = []  # what came before anybody listened
        self._listener: Callable[[bytes], None] | None = None
        self._taking = threading.Lock()
        self._over = False  # nothing more comes
        self.closed = False  # nobody wants it any more
        self._in = threading.Event()  # it has logged in, or ended
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
        except RuntimeError:  # no more threads are to be had
            self.kill()
            self._process.wait()
            self._release()
            raise

    def log_in(self, first: bytes, target: Target, deadline: Deadline) -> None:
        """Hand over the first bytes, which wait in the socket meanwhile, and wait for the login.

        Raises ConnectError, Dropped.
        """
        if first:
            self._socket.settimeout(deadline.left())
            with contextlib.suppress(OSError):  # what follows tells why
                self._socket.sendall(first)
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)
        self._in.wait(deadline.left())
        if (self.log.logged_in or self._came) and not self.log.changed:
            return
        code = self._process.returncode if self._gone.is_set() else None
        raise self.log.why(code, self.log.known(target), deadline)

    def listen(self, take: Callable[[bytes], None]) -> None:
        with self._taking:
            self._listener = take
            for data in self._early:
                take(data)
            self._early.clear()
            over = self._over
        if over:
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
        # What was sent is still read by ssh, whose own end follows; if that does not come, the thread sees to it.
        self.closed = True
        self._hang_up()

    def kill(self) -> None:
        """End the process at once, whatever it is at."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Whether the process has ended, or does so within that time."""
        return self._gone.wait(seconds)

    def last_words(self) -> str:
        if not self.closed:
            self._gone.wait(END_S)
        return self.log.last_words(self._process.returncode, closed=self.closed)

    _came = False  # anything on its stdout: then it is in, whatever its log says

    # By the thread.

    def _pump(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stderr, select.POLLIN)
        ours = self._socket.fileno()
        data = b"."
        while data:
            for descriptor, _ in poll.poll():
                if descriptor != ours:
                    if not self._hear():
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
            self._tell_end()  # nobody waits for a process that hangs
        self._reap()
        if not closed:
            self._tell_end()
        self._release()

    def _hear(self) -> bool:
        """Take what is there of stderr; False at its end."""
        try:
            data = os.read(self._stderr, LOG_BYTES)
        except OSError:
            data = b""
        self.log.feed(data)
        if self.log.changed:
            self.kill()
        if self.log.logged_in:
            self._in.set()
        return bool(data)

    def _hand_on(self, data: bytes) -> None:
        if not self._came:
            self._came = True
            self._in.set()
        with self._taking:
            if self._listener is None:
                self._early.append(data)
            else:
                self._listener(data)

    def _tell_end(self) -> None:
        with self._taking:
            self._over = True
            listener = self._listener
        if listener is not None:
            listener(b"")

    def _reap(self) -> None:
        """Wait for the process; one that does not end by itself is ended, for it cannot be of use any more."""
        for end in (None, self._process.terminate, self._process.kill):
            if end is not None:
                end()
            if self._wait(END_S):
                break
        else:
            self._process.wait()  # no zombie
        # Who else holds its stderr (a master that the way to a jump host has made) must not hold us.
        while self._readable(0) and self._hear():
            pass
        self.log.end()
        self._gone.set()
        self._in.set()

    def _wait(self, seconds: float) -> bool:
        """Whether the process ends in time; what it says meanwhile is taken, lest it waits for that."""
        until, pause = time.monotonic() + seconds, 0.001
        speaks = True
        while self._process.poll() is None:
            if time.monotonic() > until:
                return False
            if speaks and self._readable(pause):
                speaks = self._hear()
            elif not speaks:
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


def _asked(host: Host) -> tuple[str, ...]:
    """The hostfile's own settings, which win over the configuration."""
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
