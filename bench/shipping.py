"""Shipping: 50 MB of code to all hosts, the first time, again, and after a change."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator

from bench.beds import TFLAUNCH, Lab
from bench.measure import Figures, Table, interleave
from bench.plan import Plan

FILES, FILE_KB = 500, 100
TFLAUNCH_RUN, RSYNC = "tflaunch run", "rsync, xargs -P 64"


def shipping(plan: Plan) -> Iterator[Table]:
    """Half of it text, half of it what no compression makes smaller."""
    count = plan.size(64)
    lab = plan.lab
    hosts = lab.hosts(count)
    megabytes = FILES * FILE_KB / 1000
    tables = [
        Table(
            f"{megabytes:.0f} MB of code to {count} hosts, {what}",
            TFLAUNCH_RUN,
            ("wall s", "client CPU s"),
            count,
        )
        for what in ("the first time", "again", "one file of it changed")
    ]
    tables[0].remarks.append(
        f"{FILES} files; tflaunch run HOSTS main.py --ps 0 --workers {count}, whole: with the start of a task a host"
    )
    if plan.rounds > 1:
        tables[0].remarks.append(
            "all three are measured one after the other in each round, with other files in each"
        )
    make = _Tree(lab)
    each: dict[str, list[list[Figures]]] = {TFLAUNCH_RUN: [], RSYNC: []}

    def method(name: str, step: Callable[[str], list[str]]) -> Callable[[], Figures]:
        def measure() -> Figures:
            figures = []
            tree = make.new(name)
            try:
                for change in (False, False, True):
                    if change:
                        make.change(tree)
                    figures.append(lab.run(*step(tree)).figures())
            finally:
                _wipe(plan, count)
            each[name].append(figures)
            return figures[0]

        return measure

    def ours(tree: str) -> list[str]:
        return [TFLAUNCH, "run", lab.hostfile(count), f"{tree}/main.py", "--ps", "0", "--workers", str(count)]

    def rsync(tree: str) -> list[str]:
        each_host = ["rsync", "-a", f"{tree}/", "{}:/var/tmp/rsynced/"]
        return ["xargs", "-a", lab.names_file(hosts), "-P", "64", "-I{}", *each_host]

    methods = {TFLAUNCH_RUN: method(TFLAUNCH_RUN, ours)}
    if plan.wants(RSYNC):
        methods[RSYNC] = method(RSYNC, rsync)
    interleave(tables[0], methods, plan.rounds, plan.tell)
    for index, table in enumerate(tables[1:], 1):
        table.rows = {name: [figures[index] for figures in each[name]] for name in methods}
    yield from tables


class _Tree:
    """Directories of code, never the same twice."""

    def __init__(self, lab: Lab) -> None:
        self._random = random.Random(1)  # noqa: S311 - the same in each run of the measurements
        self._place = lab.home / "code"

    def new(self, name: str) -> str:
        """A new one; the one before it is gone."""
        shutil.rmtree(self._place, ignore_errors=True)
        tree = self._place / name.partition(" ")[0].strip(",")
        tree.mkdir(parents=True)
        words = [self._random.randbytes(4).hex() for _ in range(500)]
        for number in range(FILES):
            size = FILE_KB * 1000
            data = self._random.randbytes(size)
            if number % 2:
                data = " ".join(self._random.choices(words, k=size // 9)).encode()
            place = tree / f"package{number % 20}"
            place.mkdir(exist_ok=True)
            (place / f"part{number}.py").write_bytes(data)
        (tree / "main.py").write_text("pass\n")
        return str(tree)

    def change(self, tree: str) -> None:
        """A line more in the program."""
        with open(f"{tree}/main.py", "a") as file:  # noqa: PTH123
            file.write(f"# {self._random.random()}\n")


def _wipe(plan: Plan, count: int) -> None:
    """Nothing of it stays on the hosts; and a host that has forgotten all is a new one."""
    for host in plan.lab.machines(count):
        for path in host.disk.iterdir():
            shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(plan.lab.home / ".local/state/tflaunch", ignore_errors=True)
