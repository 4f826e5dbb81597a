"""A command on a host by a process of the system's `ssh`: its stream, its log, and its end.

ssh writes its log into a pipe of ours (-E), for into its stderr others write as well: the server's banner, the host's
command, and whoever leads to a jump host.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tflaunch.protocol.errors import WireClosed
from tflaunch.sessions.child import WAIT_S
from tflaunch.sessions.socket_tools import RECV_BYTES, has_room, text
from tflaunch.sessions.wires import OF_SSH
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.openssh_log import SshLog

LOG_BYTES = 16 * 1024


class LogPipe:
    """The pipe into which ssh writes its log; it has a name in a directory of ours until ssh has opened it.

    Raises OSError.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="tflaunch-ssh-"))
        self.path = self._directory / "log"
        try:
            os.mkfifo(self.path, 0o600)
            # Ours to write, too: it has no end before we close it.
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        except BaseException:
            self.unlink()
            raise
        self._named = True

    def read(self) -> bytes:
        """What is there; b"" where nothing is."""
        try:
            data = os.read(self.descriptor, LOG_BYTES)
        except OSError:
            return b""
        if data and self._named:
            self.unlink()
        return data

    def unlink(self) -> None:
        """Take its name away."""
        self._named = False
        shutil.rmtree(self._directory, ignore_errors=True)

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)
        if self._named:
            self.unlink()


class OpenSshWire:
    """A command on a host, by an `ssh` process whose output one thread hands on.

    The process has a session of its own, so that Ctrl-C reaches the launcher alone; it ends with its input, also when
    the launcher is killed.  Raises OSError and RuntimeError when it cannot be started.
    """

    advice = OF_SSH

    def __init__(self, program: str, words: Sequence[str], command: str) -> None:
        """Start `program` with these words, before which it is told where its log goes, and with the command."""
        self.log = SshLog(command)
        self._early: list[bytes] = []  # what came before `listen`
        self._listener: Callable[[bytes], None] | None = None
        self._taking = threading.Lock()
        self._stream_ended = False  # nothing more comes
        self.closed = False  # by us
        self._decided = threading.Event()  # ssh has logged in, or ended
        self._gone = threading.Event()  # the process has ended
        self._pipe = LogPipe()
        try:
            self._socket, theirs = socket.socketpair()
            self._stderr, stderr = os.pipe()
        except BaseException:
            self._pipe.close()
            raise
        os.set_blocking(self._stderr, False)
        self._stderr_open = True
        try:
            self._process = subprocess.Popen(
                [program, "-E", str(self._pipe.path), *words, command],
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

    def log_in(self, first: bytes, deadline: Deadline) -> bool:
        """Wait for the login, while the first bytes wait in the socket; whether there is one."""
        if first:
            with contextlib.suppress(OSError):  # ssh has ended already: its log says why
                self._socket.settimeout(deadline.left())
                self._socket.sendall(first)
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)
        self._decided.wait(deadline.left())
        return self.log.logged_in or self._came

    @property
    def exit_status(self) -> int | None:
        """What ssh has ended with, a negative number for a signal; None while it runs."""
        return self._process.returncode if self._gone.is_set() else None

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
        if not has_room(self._socket, len(data)):
            return False
        self.send(data)
        return True

    @property
    def acknowledged(self) -> bool:
        return False

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
        ours, log = self._socket.fileno(), self._pipe.descriptor
        poll = select.poll()
        for descriptor in (log, self._stderr, ours):
            poll.register(descriptor, select.POLLIN)
        data = b"."
        while data:
            for descriptor, _ in poll.poll():
                if descriptor == log:
                    self._take_log()
                elif descriptor == self._stderr:
                    self._take_stderr()
                    if not self._stderr_open:
                        poll.unregister(descriptor)
                else:
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
        """Read what is there of the log; False where nothing is."""
        data = self._pipe.read()
        self.log.feed(data)
        if self.log.logged_in:
            self._decided.set()
        return bool(data)

    def _take_stderr(self) -> bool:
        """Read what is there of stderr; False where nothing is."""
        try:
            data = os.read(self._stderr, LOG_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._stderr_open = bool(data)
        self.log.hear(data)
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
        while self._drain(0):
            pass
        self.log.end()
        self._gone.set()
        self._decided.set()

    def _wait(self, seconds: float) -> bool:
        """Whether the process ends in time; what it writes is read meanwhile, lest it waits for that."""
        until, pause = time.monotonic() + seconds, 0.001
        while self._process.poll() is None:
            if time.monotonic() > until:
                return False
            self._drain(pause)
            pause = min(2 * pause, 0.05)
        return True

    def _drain(self, seconds: float) -> bool:
        """Read the log and stderr, after waiting for them that long; whether there was anything."""
        poll = select.poll()
        poll.register(self._pipe.descriptor, select.POLLIN)
        if self._stderr_open:
            poll.register(self._stderr, select.POLLIN)
        poll.poll(1000 * seconds)
        came = self._take_log()  # first: what is on stderr after the login is the command's
        return (self._stderr_open and self._take_stderr()) or came

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _release(self) -> None:
        self._hang_up()
        self._socket.close()
        self._pipe.close()
        os.close(self._stderr)
