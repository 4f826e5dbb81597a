"""A local command on a socket: a ProxyCommand, or the agent of a host that is this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

WAIT_S = 1.0  # how long the end of a process may lag behind the end of its stream
STDERR_BYTES = 4096  # the end of stderr, which messages quote


class Child:
    """A command whose input and output is a socket; it runs in the home directory, in a session of its own.

    Its stderr is kept for messages.  It may outlive `hang_up`, as a command may outlive its SSH connection; `end`
    asks it to go.  Raises OSError, and RuntimeError when the system lets the user start no more threads.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        home = Path.home()
        self._lock = threading.Lock()
        self._last_words: str | None = None  # once it has ended
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
        self._reaper = threading.Thread(target=self._reap, daemon=True)  # no zombie, whichever ends first
        try:
            self._reaper.start()
        except RuntimeError:  # no more threads are to be had
            self._process.kill()
            self._process.wait()
            self.socket.close()
            self._stderr.close()
            raise

    def last_words(self) -> str:
        """How the command ended and the end of its stderr; waits WAIT_S for its end."""
        self._reaper.join(WAIT_S)
        with self._lock:
            return self._describe() if self._last_words is None else self._last_words

    def failed(self) -> bool:
        """Whether the command has failed by itself; waits WAIT_S for its end."""
        self._reaper.join(WAIT_S)
        return self._process.returncode not in (None, 0, -signal.SIGTERM)

    def end(self) -> None:
        """Send SIGTERM."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def hang_up(self) -> None:
        """End the stream, which wakes a thread that waits in it; the socket itself is closed by its user."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _reap(self) -> None:
        self._process.wait()
        with self._lock, self._stderr:
            self._last_words = self._describe()

    def _describe(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        stderr = os.pread(self._stderr.fileno(), STDERR_BYTES, max(0, size - STDERR_BYTES))
        code = self._process.returncode
        ended = "" if code is None else f"exit status {code}" if code >= 0 else f"killed by signal {-code}"
        return last_words(ended, stderr)


def last_words(ended: str, stderr: bytes) -> str:
    """`exit status 1; it said: ...`: how a command ended and the end of its stderr, either of which may be empty."""
    said = stderr.decode(errors="replace").strip()
    return "; it said: ".join(word for word in (ended, said) if word)
