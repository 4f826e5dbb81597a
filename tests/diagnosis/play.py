"""Play one cause on a bed of its own: `python -m tests.diagnosis.play NAME [--record FILE] [--patience S]`.

The last line on stdout is the result, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.diagnosis import recorder
from tests.diagnosis.catalogue import CAUSES
from tests.diagnosis.causes import HEALTHY, Cause
from tests.diagnosis.score import prevented, score, warnings
from tests.support import nvml
from tests.support.bed import Bed, FarLauncher
from tests.support.bed.machines import BedHost
from tests.support.launcher import Running

START_S = 180.0  # until the fault must have come about: TensorFlow starts slowly on a busy machine
HEALTHY_S = 420.0
SHARED = Path("/run/tflaunch-diagnosis")  # what the hosts of a cause share: a directory of each run
LATE_S = 4.0  # to say something misleading after the right thing
MEMORY, FREEZER, CPU, DISK = (Path("/sys/fs/cgroup") / each for each in ("memory", "freezer", "cpu", "blkio"))
ZRAM = Path("/sys/class/zram-control")


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of it."""

    name: str
    group: str
    score: int | None  # None: the fault did not come about, or it is a healthy run
    verdict: str
    code: int | None  # of tflaunch; None: it was stopped
    seconds: float
    said_s: float | None  # from the fault to the last point of the score
    said: str  # stderr
    log: str  # the end of stdout


class Far(FarLauncher):
    """tflaunch on the launcher's machine, noting what its watchdog is told."""

    record: Path | None = None

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        argv = super().argv(verb, *words)
        if self.record is None or verb != "run":
            return argv
        at = argv.index("-c")
        return [*argv[:at], recorder.__file__, self.record, *argv[at + 2 :]]

    def env(self, **more: str) -> dict[str, str]:
        return {**super().env(**more), "PYTHONPATH": str(Path(__file__).parents[2])}


class Play:
    """A cause that happens."""

    def __init__(self, cause: Cause, directory: Path, record: Path | None = None) -> None:
        self.cause = cause
        self.directory = directory
        self.bed = Bed(directory / "bed")
        self.far = Far(directory, self.bed)
        self.far.record = record
        SHARED.mkdir(exist_ok=True)
        self.hosts = self.bed.up(cause.hosts, share=[str(SHARED)])
        self.command = list(cause.command)
        self.settings: dict[str, Any] = {"python": sys.executable, **cause.settings}
        self.entries: list[object] = list(self.hosts)  # of the hostfile
        self.env: dict[str, str] = {}  # of tflaunch itself
        self.running: Running
        self._groups: list[Path] = []
        self._ends: list[Callable[[], object]] = []

    # -- for `fault` and `prepare`

    def host(self, task: str) -> BedHost:
        """Where a task runs."""
        return next(host for host in self.hosts if self._find(host, task))

    def pid(self, task: str) -> int:
        """The Python of a task, in the numbers of this machine."""
        return next(pid for host in self.hosts if (pid := self._find(host, task)))

    def at_the_end(self, end: Callable[[], object]) -> None:
        """Call it when all is over."""
        self._ends.append(end)

    def kill(self, task: str, number: signal.Signals) -> None:
        """Signal the Python of a task."""
        os.kill(self.pid(task), number)

    def gpus(self, *lines: str) -> None:
        """Give each host these simulated GPUs, {host} in them replaced."""
        library = nvml.build(self.directory)
        for host in self.hosts:
            host.give_gpus(library, *(line.format(host=host.name) for line in lines))
        self.settings["gpus"] = None

    def freeze(self, task: str) -> None:
        """Freeze the Python of a task, as a container that is paused."""
        group = self._group(FREEZER, task.replace("/", "-"))
        (group / "cgroup.procs").write_text(str(self.pid(task)))
        (group / "freezer.state").write_text("FROZEN")

    def _group(self, controller: Path, name: str) -> Path:
        group = controller / f"tflaunch-bed-{os.getpid()}-{name}"
        group.mkdir()
        self._groups.append(group)
        return group

    def limit_disk(self, task: str, bytes_s: int) -> None:
        """The disk gives the Python of a task no more than that, past the page cache."""
        group = self._group(DISK, task.replace("/", "-"))
        device = self.directory.stat().st_dev
        limit = f"{os.major(device)}:{os.minor(device)} {bytes_s}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(self.pid(task)))

    def swap(self, size_bytes: int) -> None:
        """Give this machine that much swap more, in compressed memory."""
        number = (ZRAM / "hot_add").read_text().strip()
        device = f"/dev/zram{number}"

        def end() -> None:
            subprocess.run(["swapoff", device], check=False)
            (ZRAM / "hot_remove").write_text(number)

        self._ends.append(end)
        Path(f"/sys/block/zram{number}/disksize").write_text(str(size_bytes))
        subprocess.run(["mkswap", device], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", device], check=True)

    def limit_memory_of(self, task: str, size_bytes: int) -> None:
        """What the Python of a task takes from now on is swapped out where it is more."""
        group = self._group(MEMORY, task.replace("/", "-"))
        (group / "memory.limit_in_bytes").write_text(str(size_bytes))
        (group / "cgroup.procs").write_text(str(self.pid(task)))

    def limit_memory(self, host: BedHost, size_bytes: int) -> None:
        """The kernel kills something there when all its processes together need more."""
        group = self._group(MEMORY, host.name)
        (group / "memory.limit_in_bytes").write_text(str(size_bytes))
        for pid in host.pids():
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(pid))

    def limit_cpu(self, task: str, cores: float) -> None:
        """The Python of a task gets no more than that, as a container with a quota."""
        group = self._group(CPU, task.replace("/", "-"))
        period = int((group / "cpu.cfs_period_us").read_text())
        (group / "cpu.cfs_quota_us").write_text(str(int(period * cores)))
        (group / "cgroup.procs").write_text(str(self.pid(task)))

    def _find(self, host: BedHost, task: str) -> int:
        found = [
            each.pid
            for each in host.processes()
            if each.env.get("TFLAUNCH_TASK") == task
            and any(word.endswith("trainer.py") for word in each.words)
            and "python" in each.words[0]
        ]
        return min(found, default=0)

    # -- the run

    def run(self, patience_s: float | None) -> Result:
        """Play it, score it, end it."""
        cause, began = self.cause, time.monotonic()
        if cause.prepare is not None:
            cause.prepare(self)
        trainer = self.far.script(cause.trainer)
        for name, text in cause.files.items():
            path = self.far.code / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        hostfile = self.far.hostfile(self.entries, **self.settings)
        self.running = self.far.start("run", hostfile, trainer, *self.command, env=self.env)
        since = self._until_fault(began + (HEALTHY_S if cause.group == HEALTHY else START_S))
        proven = since is not None
        if cause.group == HEALTHY:
            self._until_end(began + HEALTHY_S, said=False)
        elif since is not None:
            self._until_end(since + (patience_s or cause.patience_s), said=True)
        end = time.monotonic()
        return self._result(proven, end - began, end - (since or began))

    def _until_fault(self, deadline: float) -> float | None:
        """Wait for the fact, and have the fault happen; when the fault came about, None if it did not."""
        cause = self.cause
        if cause.fault is not None:
            if not self._wait(cause.after, deadline):
                return None
            cause.fault(self)
            return time.monotonic()
        return time.monotonic() if self._wait(cause.proof, deadline) else None

    def _wait(self, pattern: str, deadline: float) -> bool:
        """Until the run has printed that; False when it ends, or it gets late, without."""
        while time.monotonic() < deadline:
            ended = self.running.process.poll() is not None
            if _found(pattern, self.running.out + self.running.err):
                return True
            if ended:
                return prevented(self.running.err)
            time.sleep(0.3)
        return False

    def _until_end(self, deadline: float, *, said: bool) -> None:
        """Until the run has ended or, if it `said` all that there is to say, a little longer."""
        while time.monotonic() < deadline and self.running.process.poll() is None:
            if said and score(self.cause, self.running.err) == 2:
                deadline, said = min(deadline, time.monotonic() + LATE_S), False
            time.sleep(0.3)

    def _result(self, proven: bool, seconds: float, said_s: float) -> Result:
        cause, code = self.cause, self.running.process.poll()
        said, log = self.running.err, self.running.out
        seen = log + said
        proven = proven and (
            prevented(said) or (_found(cause.proof, seen) and not _found(cause.absent, seen))
        )
        points: int | None = None
        if cause.group == HEALTHY:
            well = proven and code == 0
            verdict = "warned" if warnings(said) else "healthy" if well else "broken"
        elif not proven:
            verdict = "did not happen"
        else:
            points = score(cause, said)
            verdict = "prevented" if points == 2 and prevented(said) else ""
        return Result(
            name=cause.name,
            group=cause.group,
            score=points,
            verdict=verdict,
            code=code,
            seconds=round(seconds, 1),
            said_s=round(said_s, 1) if points == 2 else None,
            said=said,
            log=log[-8000:],
        )

    def close(self) -> None:
        """End everything."""
        for end in self._ends:
            end()
        for group in self._groups:
            if group.parent == FREEZER:
                (group / "freezer.state").write_text("THAWED")
        for host in self.hosts:
            for pid in host.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(AssertionError):
            for running in self.far._started:
                running.close()
        self.bed.close()
        for run in re.findall(r"^run (\S+)$", self.running.err, re.MULTILINE):
            shutil.rmtree(SHARED / run, ignore_errors=True)
        for group in self._groups:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.2)


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None


def main() -> int:
    """Play the cause of that name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--patience", type=float)
    asked = parser.parse_args()
    cause = next(each for each in CAUSES if each.name == asked.name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="tflaunch-diagnosis-") as directory:
        play: Any = Play(cause, Path(directory), asked.record)
        try:
            result = play.run(asked.patience)
        finally:
            play.close()
    print(json.dumps(dataclasses.asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
