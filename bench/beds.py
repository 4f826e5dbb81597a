"""The test bed of a measurement: hosts with an sshd each, and a launcher's machine on which every client is at home.

All clients find the same ~/.ssh (known hosts, one key) by themselves, and no option of theirs is needed to log in.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Command, Cost, started
from tests.support.bed import Bed
from tests.support.bed.machines import BedHost
from tests.support.nvml import build

TFLAUNCH = str(Path(sys.executable).with_name("tflaunch"))
MANY = 256  # hosts: to boot the agents of more, two cores need longer than the usual --connect-timeout
GPU = 'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-{host}-{gpu} mem=81559 used={used} util={used} power=71000'


class Lab:
    """A bed that grows, a user's home on its launcher's machine, and what is typed there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.shared = directory / "shared"  # which all hosts see
        self.shared.mkdir()
        self.bed = Bed(directory / "bed")
        self._move_home()

    def _move_home(self) -> None:
        """ssh takes root's home from /etc/passwd, not from $HOME: the launcher's machine gets its own."""
        lines = Path("/etc/passwd").read_text().splitlines()
        mine = f"root:x:0:0:root:{self.home}:/bin/sh"
        passwd = self.directory / "passwd"
        passwd.write_text("".join(f"{mine if line.startswith('root:') else line}\n" for line in lines))
        self.bed.launcher.do("mount", "--bind", str(passwd), "/etc/passwd")

    def hosts(self, count: int) -> list[str]:
        """The names of the first `count` hosts; those that are not there yet are booted."""
        if (more := count - len(self.bed.hosts)) > 0:
            self.bed.up(more, share=[str(self.shared)])
            self.bed.ssh_directory(self.home)
            for host in self.bed.hosts:
                self._let_in(host)
        return [host.name for host in self.bed.hosts[:count]]

    def _let_in(self, host: BedHost) -> None:
        """The user may go on from this host to all others: mpirun starts its daemons along a tree."""
        place = host.directory / "home/root/.ssh"
        shutil.copytree(self.home / ".ssh", place, dirs_exist_ok=True)
        shutil.copy(self.bed.key, place / "id_ed25519")
        (place / "config").write_text("")

    def machines(self, count: int) -> list[BedHost]:
        """The hosts themselves."""
        return self.bed.hosts[: len(self.hosts(count))]

    def give_gpus(self, count: int, gpus: int) -> None:
        """The first hosts get so many simulated GPUs each."""
        library = self.directory / "nvml"
        if not library.exists():
            library.mkdir()
            build(library)
        for host in self.machines(count):
            lines = [GPU.format(host=host.name, gpu=gpu, used=gpu * 7) for gpu in range(gpus)]
            host.give_gpus(library, *lines)

    # -- what is typed

    @property
    def env(self) -> dict[str, str]:
        """Of the user's shell; what this one says to Python would tell on some clients more than on others."""
        words = ("TFLAUNCH_", "XDG_", "SSH_", "LD_", "PYTHON")
        env = {name: value for name, value in os.environ.items() if not name.startswith(words)}
        return {**env, "HOME": str(self.home), "COLUMNS": "120"}

    def argv(self, *words: str) -> list[str]:
        """The command line that runs `words` on the launcher's machine, in the user's home."""
        return self.bed.launcher.inside(*words, cwd=self.home)

    @contextmanager
    def start(self, *words: str, stdout: int | None = None, name: str = "output") -> Iterator[Command]:
        """Start a command there; its output goes into a file of that name."""
        output = self.directory / name
        with started(self.argv(*words), env=self.env, output=output, stdout=stdout) as command:
            yield command

    def run(self, *words: str, codes: Sequence[int] = (0,)) -> Cost:
        """Run a command there to its end; raises Failed."""
        with self.start(*words) as command:
            return command.wait(codes)

    def file(self, name: str, text: str) -> str:
        """Write a file below the user's home; returns its path."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def hostfile(self, count: int) -> str:
        """A hostfile of the first hosts that says nothing but their names."""
        names = "".join(f"  - {name}\n" for name in self.hosts(count))
        return self.file(f"hosts-{count}.yaml", f"hosts:\n{names}")

    def launch(self, count: int, program: str, *options: str, tasks: int = 0) -> tuple[str, ...]:
        """The words of `tflaunch run` with one task on each of the first hosts, or so many `tasks` on them."""
        cluster = ("--ps", "0", "--workers", str(tasks or count))
        waits = (*patience(count), *patience(count, "--lease"))
        return (TFLAUNCH, "run", self.hostfile(count), program, *cluster, *waits, *options)

    def names_file(self, names: Sequence[str]) -> str:
        """A file with a host's name in each line, for the peers."""
        return self.file(f"names-{len(names)}", "".join(f"{name}\n" for name in names))


def patience(count: int, option: str = "--connect-timeout") -> tuple[str, ...]:
    """The options with which tflaunch waits for so many hosts of one machine."""
    return (option, "300") if count > MANY else ()


@contextmanager
def lab() -> Iterator[Lab]:
    """A lab without hosts yet; nothing of it is left afterwards."""
    with TemporaryDirectory(prefix="bench-") as directory:
        made = Lab(Path(directory))
        try:
            yield made
        finally:
            made.bed.close()
