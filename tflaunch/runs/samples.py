"""What the tasks of a run used while it went on: `samples.jsonl` of its record, which stays small however long it runs.

Time is cut into bins of equal length, from the first release of the tasks on.  A bin has, of each task, one value for
each of COLUMNS, and of each host one for each of HOST_COLUMNS.  When the file has as many bins as it may have, each two
become one that is twice as long: a run of 1,000 tasks keeps below 5 MB.

    {"format": 1, "began": 1764.5, "every_s": 5.0, "most": 46, "tasks": ["ps/0", "worker/0"], "hosts": ["gpu01"]}
                                                  always the first line
    {"at": 3.2, "task": 1, "first": "listens"}    how many seconds after that a task did something for the first time
    [7, [0, 0.98, 120000, 90000], [1, 0.99]]      a bin: its number, and a row for each task with its values
    {"hosts": [7, [0, 12.5, 0, 0.3]]}             the same of hosts

Missing values are null, those at the end of a row are left out.  A line that was torn when the disk was full, or the
launcher was killed, or that is damaged otherwise, is passed over.  Older files have nothing of hosts.
"""

from __future__ import annotations

import json
import math
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.lifecycle.tallies import EVERY_S
from tflaunch.protocol.errors import RecordError
from tflaunch.protocol.fields import a_number
from tflaunch.runs.record_files import sentence

SAMPLES = "samples.jsonl"
FORMAT = 1
MOST_BYTES = 4_500_000
ROW_BYTES = 95  # of a task that has all values
HOST_ROW_BYTES = 22
MOST_BINS, LEAST_BINS = 720, 16
MOST_BINS_OF_TRIALS = 5760  # of a sweep: few of its trials run at a time, and each in some of the bins alone

Values = list[float | None]
Rows = dict[str, Values]  # by task, or by host


class SampleColumn(NamedTuple):
    """A value of a task, and how several that follow each other become one."""

    name: str
    says: str
    one: Callable[[Sequence[float]], float]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _last(values: Sequence[float]) -> float:
    return values[-1]


COLUMNS = (
    SampleColumn("cores", "processor time used in a second: 2 is two whole cores", _mean),
    SampleColumn("sent", "bytes sent a second, over all connections", _mean),
    SampleColumn("received", "bytes received a second", _mean),
    SampleColumn("peers", "bytes a second to and from tasks of the run", _mean),
    SampleColumn("files", "bytes read and written a second", _mean),
    SampleColumn("quiet_s", "seconds since the last line of the log", max),
    SampleColumn("step", "the last step that the log named", _last),
    SampleColumn("loss", "the last loss that the log named", _last),
    SampleColumn("gpu", "percent of the time in which its GPUs computed, their mean", _mean),
    SampleColumn("watts", "power of its GPUs together", _mean),
    SampleColumn("gpu_bytes", "memory in use on its GPUs together", max),
    # By NVML's GPM: Hopper and newer, while no other program uses it.
    SampleColumn("sm", "percent of the SMs of its GPUs that computed, their mean", _mean),
    SampleColumn("tensor", "percent of the time in which their tensor cores computed", _mean),
    SampleColumn("dram", "percent of the speed of their memory that was used", _mean),
)
NAMES = tuple(column.name for column in COLUMNS)
# By the kernel's PSI; of the programs in the agent's cgroup, where it has one of its own, else of all of the host.
HOST_COLUMNS = (
    SampleColumn("cpu_pressure", "percent of the time in which programs waited for a processor", _mean),
    SampleColumn("memory_pressure", "percent of the time in which programs waited for memory", _mean),
    SampleColumn("io_pressure", "percent of the time in which programs waited for a disk", _mean),
)
HOST_NAMES = tuple(column.name for column in HOST_COLUMNS)


@dataclass
class Sampled:
    """The samples of a run: for each bin its number and, by task, its values in the order of COLUMNS; so of hosts."""

    began: float  # epoch seconds
    every_s: float
    most: int
    tasks: list[str]
    bins: list[tuple[int, Rows]] = field(default_factory=list)
    firsts: dict[str, dict[str, float]] = field(default_factory=dict)  # task -> what -> seconds after `began`
    hosts: list[str] = field(default_factory=list)
    host_bins: list[tuple[int, Rows]] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The number of the last bin; -1: there is none."""
        return max((bins[-1][0] for bins in (self.bins, self.host_bins) if bins), default=-1)

    def series(self, task: str, name: str) -> Iterator[tuple[float, float]]:
        """(middle of the bin in seconds after `began`, value) wherever that task has one."""
        at = NAMES.index(name)
        for number, rows in self.bins:
            row = rows.get(task, ())
            if at < len(row) and (value := row[at]) is not None:
                yield (number + 0.5) * self.every_s, value

    def every_series(self, name: str) -> dict[str, list[tuple[float, float]]]:
        """Task -> its `series`, of those that have any."""
        at, found = NAMES.index(name), dict[str, list[tuple[float, float]]]()
        for number, rows in self.bins:
            middle = (number + 0.5) * self.every_s
            for task, row in rows.items():
                if at < len(row) and (value := row[at]) is not None:
                    found.setdefault(task, []).append((middle, value))
        return found

    def only(self, task: str, host: str) -> Sampled:
        """Those of this task, and of its host at that time; they begin with its first bin."""
        bins = [(number, {task: rows[task]}) for number, rows in self.bins if task in rows]
        first, last = (bins[0][0], bins[-1][0]) if bins else (0, -1)
        later_s = first * self.every_s
        firsts = {what: max(0.0, at - later_s) for what, at in self.firsts.get(task, {}).items()}
        return Sampled(
            self.began + later_s,
            self.every_s,
            self.most,
            [task],
            [(number - first, rows) for number, rows in bins],
            {task: firsts},
            [host] if host in self.hosts else [],
            [
                (number - first, {host: rows[host]})
                for number, rows in self.host_bins
                if host in rows and first <= number <= last
            ],
        )

    def thin(self) -> None:
        """Make one bin of each two."""
        self.bins = _thinned(self.bins, COLUMNS)
        self.host_bins = _thinned(self.host_bins, HOST_COLUMNS)
        self.every_s *= 2


def _thinned(bins: Sequence[tuple[int, Rows]], columns: Sequence[SampleColumn]) -> list[tuple[int, Rows]]:
    merged: dict[int, Rows] = {}
    for number, rows in bins:
        into = merged.setdefault(number // 2, {})
        for name, row in rows.items():
            into[name] = merged_rows([into[name], row], columns) if name in into else row
    return list(merged.items())


def merged_rows(rows: Sequence[Sequence[float | None]], columns: Sequence[SampleColumn] = COLUMNS) -> Values:
    """One row for several that follow each other; they may be short."""
    made: Values = []
    for number, column in enumerate(columns):
        values = [value for row in rows if number < len(row) and (value := row[number]) is not None]
        made.append(column.one(values) if values else None)
    return made


def read_samples(path: Path) -> Sampled | None:
    """Return the samples in that file; None where there are none, or another version wrote them.  Raises OSError."""
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return None
    found = list(filter(None, map(_parsed, lines)))
    head = found[0] if found else None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        return None
    tasks: Any = head.get("tasks")
    hosts: Any = head.get("hosts", [])
    began: Any = head.get("began")
    every_s: Any = head.get("every_s")
    most: Any = head.get("most")
    if not (
        _are(tasks, str)
        and _are(hosts, str)
        and a_number(began)
        and a_number(every_s)
        and every_s >= 1
        and type(most) is int
        and LEAST_BINS <= most <= MOST_BINS_OF_TRIALS
    ):
        return None
    sampled = Sampled(began, every_s, most, tasks, hosts=hosts)
    for line in found[1:]:
        of_hosts: Any = line.get("hosts") if isinstance(line, dict) else None
        if _is_bin(line, most, tasks):
            sampled.bins.append((line[0], {tasks[row[0]]: row[1:] for row in line[1:]}))
        elif _is_bin(of_hosts, most, hosts):
            sampled.host_bins.append((of_hosts[0], {hosts[row[0]]: row[1:] for row in of_hosts[1:]}))
        elif isinstance(line, dict):
            task, what = line.get("task"), line.get("first")
            at: Any = line.get("at")
            if _is_one(task, tasks) and isinstance(what, str) and a_number(at):
                sampled.firsts.setdefault(tasks[task], {})[what] = at
    sampled.bins, sampled.host_bins = _rising(sampled.bins), _rising(sampled.host_bins)
    return sampled


def _rising(bins: Sequence[tuple[int, Rows]]) -> list[tuple[int, Rows]]:
    """As many of these bins as have numbers that rise: one with a damaged number is lost alone, be it high or low."""
    lowest: list[
        int
    ] = []  # by how many bins rise up to it: the lowest number that such a row of bins can end with ...
    ends: list[int] = []  # ... and where that one is
    before: list[int] = []  # of each bin: where the one before it in its row is
    for at, (number, _) in enumerate(bins):
        length = bisect_left(lowest, number)
        before.append(ends[length - 1] if length else -1)
        lowest[length : length + 1], ends[length : length + 1] = [number], [at]
    kept = []
    at = ends[-1] if ends else -1
    while at >= 0:
        kept.append(bins[at])
        at = before[at]
    return kept[::-1]


_NUMBER = (float, int)  # and not bool, which is a number to isinstance


def _are(values: Any, *types: type) -> bool:
    return isinstance(values, list | tuple) and {type(value) for value in values} <= {*types}


def _is_one(number: Any, names: Sequence[str]) -> bool:
    return type(number) is int and 0 <= number < len(names)


def _is_bin(line: Any, most: int, names: Sequence[str]) -> bool:
    whole = isinstance(line, list) and bool(line) and type(line[0]) is int and 0 <= line[0] < most
    return whole and all(_is_row(row, names) for row in line[1:])


def _is_row(row: Any, names: Sequence[str]) -> bool:
    whole = isinstance(row, list) and bool(row)
    return whole and _is_one(row[0], names) and _are(row[1:], *_NUMBER, type(None)) and _finite(row[1:])


def _finite(values: Iterable[float | None]) -> bool:
    # NaN compares as False; a whole number may be larger than any float.
    return all(-sys.float_info.max <= value <= sys.float_info.max for value in values if value is not None)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def most_bins(tasks: int, hosts: int, most: int = MOST_BINS) -> int:
    """How many bins a file may have in whose bins so many tasks and hosts have values."""
    bins = max(LEAST_BINS, min(most, MOST_BYTES // (ROW_BYTES * max(1, tasks) + HOST_ROW_BYTES * hosts)))
    return bins // 2 * 2  # even: what is thinned out ends where a new bin begins


class SampleFile:
    """The file of one run.  Raises RecordError the first time that the disk refuses, and writes nothing after that."""

    def __init__(self, path: Path, tasks: Sequence[str], now: float, at_once: int | None = None) -> None:
        """Go on with the file, if there is one; `now` in epoch seconds.

        at_once: so many of the tasks run at a time, as of the trials of a sweep; None: all.
        """
        self.path = path
        self.failure = ""
        self._at_once = at_once
        with self._writing():
            kept = read_samples(path) or Sampled(now, EVERY_S, MOST_BINS_OF_TRIALS, [])
            kept.tasks = list(dict.fromkeys([*kept.tasks, *tasks]))
            self._begin(kept)

    @property
    def every_s(self) -> float:
        """How long a bin is now."""
        return self._head.every_s

    @property
    def began(self) -> float:
        """Its beginning, in epoch seconds."""
        return self._head.began

    def bin_of(self, seconds: float) -> int:
        """The number of the bin in which that time is: never one before the last that was written."""
        return max(self._last + 1, int(seconds / self._head.every_s))

    def add(
        self,
        number: int,
        rows: Mapping[str, Sequence[float | None]],
        of_hosts: Mapping[str, Sequence[float | None]] | None = None,
    ) -> None:
        """Add a bin; where there is no room, thin out what is there.  Raises RecordError."""
        if self.failure:
            return
        middle_s = (
            number + 0.5
        ) * self._head.every_s  # whose bin has another number once the bins are longer
        with self._writing():
            if new := [host for host in of_hosts or {} if host not in self._host_numbers]:
                sampled = self._read()
                sampled.hosts += new
                self._begin(sampled)
            while (number := self.bin_of(middle_s)) >= self._head.most:
                sampled = self._read()
                sampled.thin()
                self._rewrite(sampled)
            self._append(*self._bin(number, rows), *self._bin_of_hosts(number, of_hosts or {}))
            self._last = number

    def first(self, task: str, what: str, seconds: float) -> None:
        """Note when a task did something for the first time.  Raises RecordError."""
        known = self._head.firsts.setdefault(task, {})
        if what not in known and task in self._numbers and not self.failure:
            known[what] = round(seconds, 1)
            with self._writing():
                self._append(self._first(task, what, known[what]))

    def _read(self) -> Sampled:
        sampled = read_samples(self.path)
        if sampled is None:
            raise OSError(5, "", str(self.path))
        return sampled

    def _begin(self, sampled: Sampled) -> None:
        """Go on with these tasks and hosts, for which there may be less room than before."""
        room = (self._at_once, MOST_BINS_OF_TRIALS) if self._at_once else (len(sampled.tasks), MOST_BINS)
        sampled.most = min(sampled.most, most_bins(room[0], len(sampled.hosts), room[1]))
        while sampled.last >= sampled.most:
            sampled.thin()
        self._rewrite(sampled)

    def _bin(self, number: int, rows: Mapping[str, Sequence[float | None]]) -> list[str]:
        return [_text(number, _numbered(rows, self._numbers))] if rows else []

    def _bin_of_hosts(self, number: int, rows: Mapping[str, Sequence[float | None]]) -> list[str]:
        text = _text(number, _numbered(rows, self._host_numbers)) if rows else ""
        return [f'{{"hosts":{text}}}'] if text else []

    def _first(self, task: str, what: str, at: float) -> str:
        return _dumped({"at": at, "task": self._numbers[task], "first": what})

    def _append(self, *lines: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self.path, flags, 0o600), "w", encoding="ascii") as file:
            file.writelines(line + "\n" for line in lines)

    def _rewrite(self, sampled: Sampled) -> None:
        head = {name: getattr(sampled, name) for name in ("began", "every_s", "most", "tasks", "hosts")}
        self._head = Sampled(**head, firsts=sampled.firsts)
        self._numbers = {task: number for number, task in enumerate(sampled.tasks)}
        self._host_numbers = {host: number for number, host in enumerate(sampled.hosts)}
        lines = [_dumped({"format": FORMAT, **head})]
        lines += [
            self._first(task, what, at)
            for task, firsts in sampled.firsts.items()
            for what, at in firsts.items()
        ]
        for number, rows in sampled.bins:
            lines += self._bin(number, rows)
        for number, rows in sampled.host_bins:
            lines += self._bin_of_hosts(number, rows)
        building = self.path.with_name(f".{self.path.name}")
        descriptor = os.open(
            building, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.writelines(line + "\n" for line in lines)
        building.replace(self.path)
        self._last = sampled.last

    def _writing(self) -> _Refused:
        return _Refused(self)


class _Refused:
    """Inside, an OSError becomes the one RecordError of that file."""

    def __init__(self, file: SampleFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            self._file.failure = sentence(error)
            raise RecordError(
                f"cannot write {self._file.path}: {self._file.failure}",
                "The run goes on; its report lacks what the tasks use from now on.",
            ) from error


def _numbered(
    rows: Mapping[str, Sequence[float | None]], numbers: Mapping[str, int]
) -> Iterator[list[float | None]]:
    """Each row behind its number, without what is missing at its end."""
    for name, row in rows.items():
        if name in numbers:
            values = list(row)
            while values and values[-1] is None:
                values.pop()
            yield [numbers[name], *values]


def _dumped(line: Mapping[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"))


def _text(number: int, rows: Iterable[Sequence[float | None]]) -> str:
    """A bin as JSON in few characters: three digits, and steps as they are."""
    text = "".join(f",[{','.join(map(_short, row))}]" for row in rows)
    return f"[{number}{text}]".replace("e+0", "e").replace("e+", "e")


def _short(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "null"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
