"""Hosts with simulated GPUs behind real sshd, and users who share them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.launcher import Launcher
from tests.support.nvml import Fleet
from tests.support.sshd import Sshd, SshNetwork

# The hosts' python3 is this one, which has a pynvml of its own: none is sent, which takes its time.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

# Writes down its name and its pid, says which GPUs it has, and holds them until the file $OUT/go-$NAME is there.
HOLD = """\
import os, time
out, name = os.environ["OUT"], os.environ["NAME"]
with open(out + "/order", "a") as file:
    file.write(name + "\\n")
with open(out + "/" + os.environ["TFLAUNCH_TASK"].replace("/", "-") + ".pid", "w") as file:
    file.write(str(os.getpid()))
print("has", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while not os.path.exists(out + "/go-" + name):
    time.sleep(0.05)
"""


class Gpus:
    """Hosts host1, host2, ... whose GPUs are GPU-<host><GPU>, all with one directory of leases."""

    def __init__(self, library: Path, directory: Path, network: SshNetwork, launcher: Launcher) -> None:
        self.launcher = launcher
        self.network = network
        self.leases = directory / "leases"
        self.out = directory / "out"
        self.out.mkdir()
        self.fleets: list[Fleet] = []
        self._library = library
        self._directory = directory
        self.trainer = launcher.script(HOLD)

    def add(self, gpus: int = 1) -> Sshd:
        """A host with so many free GPUs."""
        number = len(self.fleets) + 1
        lines = [f"gpu uuid={uuid(number, gpu)} mem=16384" for gpu in range(gpus)]
        self.fleets.append(Fleet(self._library, self._directory / f"fleet{number}", *lines))
        env = {**self.fleets[-1].env, "TFLAUNCH_LEASES": str(self.leases)}
        return self.network.add(env=env, path=PATH)

    @property
    def hostfile(self) -> Path:
        """All of them."""
        return self.launcher.hostfile([sshd.name for sshd in self.network.sshds], gpus="auto")

    def words(self, name: str, workers: int, *more: str) -> tuple[str | Path, ...]:
        """A run whose tasks are called `name`."""
        env = (f"--env=OUT={self.out}", f"--env=NAME={name}")
        return ("run", self.hostfile, self.trainer, "--ps=0", f"--workers={workers}", *env, *more)

    def let_end(self, *names: str) -> None:
        """Let the tasks of these runs end, now or once they have begun."""
        for name in names:
            (self.out / f"go-{name}").touch()

    @property
    def order(self) -> list[str]:
        """The names of the tasks that have begun, in their order."""
        path = self.out / "order"
        return path.read_text().split() if path.exists() else []

    @property
    def tickets(self) -> list[str]:
        """The tickets in the queue."""
        queue = self.leases / "queue"
        files = queue.iterdir() if queue.exists() else ()
        return sorted(path.name for path in files if path.suffix != ".until")


def uuid(host: int, gpu: int = 0) -> str:
    """The UUID of a GPU."""
    return f"GPU-{host}{gpu}"
