"""Hosts with simulated GPUs, and `tflaunch gpus` on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyte

from tests.support.launcher import Launcher
from tests.support.nvml import Fleet
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import Sshd, SshNetwork


class Lab:
    """Hosts with simulated GPUs, a user who looks at them."""

    def __init__(self, library: Path, directory: Path, network: SshNetwork, launcher: Launcher) -> None:
        self.network = network
        self.launcher = launcher
        self.fleets: list[Fleet] = []
        self.leases = directory / "leases"
        self._library = library
        self._directory = directory

    def add(self, *lines: str) -> Sshd:
        """A host with that fleet; without lines one that has no driver."""
        fleet = Fleet(self._library, self._directory / f"fleet{len(self.fleets)}", *lines)
        self.fleets.append(fleet)
        # A call of NVML may take half of what a host may take to answer.
        env = {"TFLAUNCH_LEASES": str(self.leases), "TFLAUNCH_NVML_CALL_S": "600"}
        return self.network.add(env={**fleet.env, **env} if lines else env)

    def words(self, *more: str) -> tuple[str | Path, ...]:
        """`gpus` with the test's hosts and ssh_config."""
        hostfile = self.launcher.hostfile([sshd.name for sshd in self.network.sshds])
        return ("gpus", hostfile, "-F", self.network.config, *more)

    def gpus(self, *more: str, **env: str) -> Any:
        """Run it to its end."""
        verb, *words = self.words(*more)
        return self.launcher.run(str(verb), *words, env=env)


class Terminal:
    """`tflaunch` on a terminal of its own; `text` is everything that it has written there."""

    def __init__(
        self,
        argv: list[Any],
        env: dict[str, str],
        columns: int = 100,
        rows: int = 30,
        *,
        keys: bool = True,
        term: str = "xterm-256color",
    ) -> None:
        """Without `keys`, stdin is no terminal."""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {**env, "TERM": term, "LC_ALL": "C.UTF-8"}
        env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        stdin = theirs if keys else subprocess.DEVNULL
        self.process = subprocess.Popen(
            argv, stdin=stdin, stdout=theirs, stderr=theirs, env=env, process_group=0
        )
        self._theirs = theirs if keys else None  # kept open: to ask how the terminal is set
        if not keys:
            os.close(theirs)
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._drawn = 0  # parts that the screen has
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 65536):
                self._parts.append(data)
        except OSError:  # EIO: its other end is closed
            pass
        os.close(self._ours)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", b"".join(self._parts).decode("utf-8", "replace"))

    def wait_for(self, pattern: str) -> None:
        """Until what came after the last call holds it."""
        until(lambda: re.search(pattern, self.text[self._seen :]), pattern)
        self._seen = len(self.text)

    _seen = 0

    @property
    def written(self) -> int:
        """How many bytes it has written."""
        return sum(map(len, self._parts))

    @property
    def lines(self) -> list[str]:
        """What a terminal shows now."""
        parts = self._parts[self._drawn :]
        self._drawn += len(parts)
        self._stream.feed(b"".join(parts))
        return [line.rstrip() for line in self._screen.display]

    def shows(self, pattern: str) -> None:
        """Wait until a line of the screen has it."""
        self._until(lambda: any(re.search(pattern, line) for line in self.lines), pattern)

    def shows_not(self, pattern: str) -> None:
        """Wait until no line of the screen has it."""
        self._until(lambda: not any(re.search(pattern, line) for line in self.lines), f"no {pattern}")

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        try:
            until(happened, what)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.lines])) from None

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size, and tell the program as a terminal does."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.wipe(columns, rows)
        self.process.send_signal(signal.SIGWINCH)

    def wipe(self, columns: int, rows: int) -> None:
        """Forget what the screen shows: a shell may have written over it."""
        self._screen.reset()
        self._screen.resize(rows, columns)

    @property
    def cooked(self) -> bool:
        """Whether the terminal is set as a shell sets it: it echoes, and a line is sent by Enter."""
        if self._theirs is not None:
            self._flags = termios.tcgetattr(self._theirs)[3]
        return bool(self._flags & termios.ICANON and self._flags & termios.ECHO)

    _flags = 0

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        if self._theirs is not None:
            self._flags = termios.tcgetattr(self._theirs)[3]
            os.close(self._theirs)
            self._theirs = None
        self._reader.join()
        return code
