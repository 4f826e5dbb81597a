"""Hosts with simulated GPUs, and `tflaunch gpus` on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from pathlib import Path
from typing import Any

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
        env = {"TFLAUNCH_LEASES": str(self.leases)}
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
        term: str = "xterm-256color",
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {**env, "TERM": term, "LC_ALL": "C.UTF-8"}
        env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, process_group=0
        )
        os.close(theirs)
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

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code
