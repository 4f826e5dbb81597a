"""A command on a terminal of its own, as a user sits before it: what is shown is read, what is said is typed.

with Terminal(launcher.argv("run", ...), launcher.env(), launcher.code) as terminal:
    terminal.wait_for("[y/N]")
    terminal.type("y\\n")
    assert terminal.end() == 0
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.launcher import started
from tests.support.patience import PATIENCE_S

CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The command has the terminal as its controlling one: Ctrl-C and Ctrl-Z do what they do."""

    def __init__(
        self, argv: Sequence[str | bytes | Path], env: Mapping[str, str], cwd: Path, columns: int = 100
    ) -> None:
        self._main, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        streams = (theirs, theirs, theirs)
        self._process = started(argv, cwd, env, streams=streams, controls=True)
        os.close(theirs)
        self._raw = b""

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._process.pid

    @property
    def shown(self) -> str:
        """All that was written so far, without colours and moves of the cursor."""
        return _ESCAPES.sub("", self._raw.decode("utf-8", "replace")).replace("\r\n", "\n")

    @property
    def raw(self) -> str:
        """The same as it came, with colours and moves."""
        return self._raw.decode("utf-8", "replace")

    @property
    def sentences(self) -> str:
        """The same on one line."""
        return " ".join(self.shown.split())

    def type(self, text: str) -> None:
        """What the user types; nothing is added to it."""
        os.write(self._main, text.encode())

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until `text` was shown so many times, whatever broke the lines; fails when it ends without."""
        deadline = time.monotonic() + PATIENCE_S
        while self.sentences.count(text) < count:
            assert time.monotonic() < deadline, f"never showed {text!r}\n{self.shown}"
            assert self._read(0.2), f"ended, and never showed {text!r}\n{self.shown}"

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(0.2):
            assert time.monotonic() < deadline, f"does not end\n{self.shown}"
        return self._process.wait()

    def _read(self, wait_s: float) -> bool:
        """Take what is there; False: nothing more will come."""
        if not select.select([self._main], [], [], wait_s)[0]:
            return True
        try:
            data = os.read(self._main, 65_536)
        except OSError:  # a terminal ends like that
            return False
        self._raw += data
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, traceback: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
        os.close(self._main)
