"""One measurement: run a command and see what it cost; run all methods in turn, round by round."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

LIMIT_S = 600.0  # for one command
SETTLE_S = 0.5  # after a command: what hosts still do then is theirs, not of the next one
Figures = dict[str, float]


class Failed(Exception):
    """A command did not do what it was measured for."""


@dataclass
class Table:
    """The figures of several methods: for each method those of every round, None where it failed."""

    title: str
    reference: str  # the method that the others are divided by
    compared: tuple[str, ...]  # the figures of which ratios are told
    hosts: int = 0
    rows: dict[str, list[Figures | None]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def columns(self) -> list[str]:
        """The names of all figures, in the order in which they first came."""
        return list(dict.fromkeys(name for row in self.rows.values() for each in row for name in each or ()))

    def median(self, method: str, column: str) -> float | None:
        """Of the rounds in which the method gave this figure."""
        values = [each[column] for each in self.rows.get(method, ()) if each and column in each]
        return median(values) if values else None

    def ratio(self, method: str, column: str) -> float | None:
        """To the reference: the median of the ratios within each round, for a machine's mood changes between them."""
        pairs = zip(self.rows.get(method, ()), self.rows.get(self.reference, ()), strict=False)
        ratios = [
            one[column] / other[column]
            for one, other in pairs
            if one and other and column in one and other.get(column, 0) > 0
        ]
        return median(ratios) if ratios else None


@dataclass
class Cost:
    """What one command has cost; the hosts' part is what this machine did beside the command."""

    wall_s: float
    client_s: float  # CPU of the command and of all children it has waited for
    hosts_s: float

    def figures(self) -> Figures:
        """As they stand in a table."""
        return {"wall s": self.wall_s, "client CPU s": self.client_s, "hosts' CPU s": self.hosts_s}


def busy_s() -> float:
    """The CPU time that this machine has spent since it booted, other machines' on the same iron left out.

    Where this process is in a control group that counts it, of the processes in that group: the bench alone, then.
    """
    if (counted := _group_s()) is not None:
        return counted
    total = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _, _, irq, softirq, *_ = map(int, total.split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _group_s() -> float | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if path == "/":
            continue
        if "cpuacct" in kinds.split(","):
            return int(Path(f"/sys/fs/cgroup/cpuacct{path}/cpuacct.usage").read_text()) / 1e9
        if not kinds and (stat := Path(f"/sys/fs/cgroup{path}/cpu.stat")).exists():
            return int(stat.read_text().split()[1]) / 1e6
    return None


def others_share(seconds: float = 2.0) -> float:
    """How much of this machine's cores somebody uses while nothing is measured."""
    before = busy_s()
    time.sleep(seconds)
    return (busy_s() - before) / seconds / (os.cpu_count() or 1)


@dataclass
class Command:
    """A command that runs; `wait` tells what it cost."""

    process: subprocess.Popen[bytes]
    output: Path
    started: float
    busy: float

    def wait(self, codes: Sequence[int] = (0,)) -> Cost:
        """Wait for its end; raises Failed when its exit code is not one of `codes`."""
        timer = threading.Timer(LIMIT_S, self.process.kill)
        timer.daemon = True  # Ctrl-C does not wait for it
        timer.start()
        _, status, usage = os.wait4(self.process.pid, 0)
        wall_s = time.monotonic() - self.started
        timer.cancel()
        code = self.process.returncode = os.waitstatus_to_exitcode(status)
        time.sleep(SETTLE_S)
        client_s = usage.ru_utime + usage.ru_stime
        cost = Cost(wall_s, client_s, busy_s() - self.busy - client_s)
        if code not in codes:
            said = self.output.with_suffix(".err").read_text(errors="replace").strip()
            raise Failed(f"exit code {code} after {wall_s:.1f} s: {said[-300:]}")
        return cost


@contextmanager
def started(
    argv: Sequence[str], *, env: Mapping[str, str], output: Path, stdout: int | None = None
) -> Iterator[Command]:
    """Start a command that does not outlive the context, its output in `output` and beside it, or on a terminal."""
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        terminal = stdout if stdout is not None and os.isatty(stdout) else None
        busy, begun = busy_s(), time.monotonic()
        process = subprocess.Popen(
            # The terminal is that of the session, so that what is asked of it is answered.
            argv if terminal is None else ["setsid", "--ctty", *argv],
            env=env,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=out if stdout is None else stdout,
            stderr=err if terminal is None else terminal,
            start_new_session=terminal is None,
        )
    try:
        yield Command(process, output, begun, busy)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def interleave(
    table: Table, methods: Mapping[str, Callable[[], Figures]], rounds: int, tell: Callable[[str], None]
) -> Table:
    """Run each method once in each of so many rounds; one that fails is told of, and the others go on."""
    share = others_share()
    if share > 0.05:
        table.remarks.append(f"before it began, others used {share:.0%} of this machine")
    for round_ in range(1, rounds + 1):
        for name, method in methods.items():
            tell(f"{table.title}: round {round_} of {rounds}, {name}")
            try:
                figures: Figures | None = method()
            except Failed as failure:
                figures = None
                table.remarks.append(f"{name} failed in round {round_}: {failure}")
            table.rows.setdefault(name, []).append(figures)
    return table
