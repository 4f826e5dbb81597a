"""What the tasks of a run used while it went on: `samples.jsonl` of its record, which stays small however long it runs.

Time is cut into bins of equal length, from the first release of the tasks on.  A bin has, of each task, one value for
each of COLUMNS.  When the file has as many bins as it may have, each two become one that is twice as long: a run of
1,000 tasks keeps below 5 MB.

    {"format": 1, "began": 1764.5, "every_s": 5.0, "most": 56, "tasks": ["ps/0", "worker/0"]}     always the first line
    {"at": 3.2, "task": 1, "first": "listens"}    how many seconds after that a task did something for the first time
    [7, [0, 0.98, 120000, 90000], [1, 0.99]]      a bin: its number, and a row for each task with its values

Missing values are null, those at the end of a row are left out.  A line that was torn when the disk was full, or the
launcher was killed, or that is damaged otherwise, is passed over.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.lifecycle.tallies import EVERY_S
from tflaunch.protocol.errors import RecordError
from tflaunch.runs.record_files import sentence

SAMPLES = "samples.jsonl"
FORMAT = 1
MOST_BYTES = 4_500_000
ROW_BYTES = 80  # of a task that has all values
MOST_BINS, LEAST_BINS = 720, 16
MOST_BINS_OF_TRIALS = 5760  # of a sweep: few of its trials run at a time, and each in some of the bins alone

Values = list[float | None]


class SampleColumn(NamedTuple):
    """A value of a task, and how two become one."""

    name: str
    says: str
    merge: Callable[[float, float], float]


def _mean(first: float, second: float) -> float:
    return (first + second) / 2


def _last(_: float, second: float) -> float:
    return second


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
)
NAMES = tuple(column.name for column in COLUMNS)


@dataclass
class Sampled:
    """The samples of a run: for each bin its number and, by task, its values in the order of COLUMNS."""

    began: float  # epoch seconds
    every_s: float
    most: int
    tasks: list[str]
    bins: list[tuple[int, dict[str, Values]]] = field(default_factory=list)
    firsts: dict[str, dict[str, float]] = field(default_factory=dict)  # task -> what -> seconds after `began`

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

    def only(self, task: str) -> Sampled:
        """Those of this task; they begin with its first bin."""
        bins = [(number, {task: rows[task]}) for number, rows in self.bins if task in rows]
        first = bins[0][0] if bins else 0
        later_s = first * self.every_s
        firsts = {what: max(0.0, at - later_s) for what, at in self.firsts.get(task, {}).items()}
        return Sampled(
            self.began + later_s,
            self.every_s,
            self.most,
            [task],
            [(number - first, rows) for number, rows in bins],
            {task: firsts},
        )

    def thin(self) -> None:
        """Make one bin of each two."""
        merged: dict[int, dict[str, Values]] = {}
        for number, rows in self.bins:
            into = merged.setdefault(number // 2, {})
            for task, row in rows.items():
                into[task] = merged_rows(into[task], row) if task in into else row
        self.bins = list(merged.items())
        self.every_s *= 2


def merged_rows(first: Sequence[float | None], second: Sequence[float | None]) -> Values:
    """One row for two that follow each other."""
    made: Values = []
    for number, column in enumerate(COLUMNS):
        one = first[number] if number < len(first) else None
        two = second[number] if number < len(second) else None
        made.append(
            column.merge(one, two) if one is not None and two is not None else one if two is None else two
        )
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
    times: Any = (head.get("began"), head.get("every_s"))
    most = head.get("most")
    if not (_are(tasks, str) and _are(times, *_NUMBER) and isinstance(most, int) and times[1] > 0):
        return None
    sampled = Sampled(times[0], times[1], most, tasks)
    for line in found[1:]:
        if isinstance(line, dict):
            task, what, at = line.get("task"), line.get("first"), line.get("at")
            if _is_task(task, tasks) and isinstance(what, str) and isinstance(at, _NUMBER):
                sampled.firsts.setdefault(tasks[task], {})[what] = at
        elif isinstance(line, list) and type(line[0]) is int and all(_is_row(row, tasks) for row in line[1:]):
            sampled.bins.append((line[0], {tasks[row[0]]: row[1:] for row in line[1:]}))
    return sampled


_NUMBER = (float, int)  # and not bool, which is a number to isinstance


def _are(values: Any, *types: type) -> bool:
    return isinstance(values, list | tuple) and {type(value) for value in values} <= {*types}


def _is_task(number: Any, tasks: Sequence[str]) -> bool:
    return type(number) is int and 0 <= number < len(tasks)


def _is_row(row: Any, tasks: Sequence[str]) -> bool:
    whole = isinstance(row, list) and bool(row)
    return whole and _is_task(row[0], tasks) and _are(row[1:], *_NUMBER, type(None))


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def most_bins(rows: int, most: int = MOST_BINS) -> int:
    """How many bins a file may have in whose bins so many tasks have values."""
    bins = max(LEAST_BINS, min(most, MOST_BYTES // (ROW_BYTES * max(1, rows))))
    return bins // 2 * 2  # even: what is thinned out ends where a new bin begins


class SampleFile:
    """The file of one run.  Raises RecordError the first time that the disk refuses, and writes nothing after that."""

    def __init__(self, path: Path, tasks: Sequence[str], now: float, at_once: int | None = None) -> None:
        """Go on with the file, if there is one; `now` in epoch seconds.

        at_once: so many of the tasks run at a time, as of the trials of a sweep; None: all.
        """
        self.path = path
        most = most_bins(len(tasks)) if at_once is None else most_bins(at_once, MOST_BINS_OF_TRIALS)
        self.failure = ""
        with self._writing():
            before = read_samples(path)
            if before is None:
                self._head = Sampled(now, EVERY_S, most, list(tasks))
            else:
                known = set(before.tasks)
                before.tasks += [task for task in tasks if task not in known]
                before.most = min(before.most, most if at_once else most_bins(len(before.tasks)))
                self._head = before
            self._rewrite(self._head)

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

    def add(self, number: int, rows: Mapping[str, Sequence[float | None]]) -> None:
        """Add a bin; where there is no room, thin out what is there.  Raises RecordError."""
        if self.failure:
            return
        with self._writing():
            while number >= self._head.most:
                sampled = read_samples(self.path)
                if sampled is None:
                    raise OSError(5, "", str(self.path))
                sampled.thin()
                self._rewrite(sampled)
                number //= 2
            self._append([number, *self._rows(rows)])
            self._last = number

    def first(self, task: str, what: str, seconds: float) -> None:
        """Note when a task did something for the first time.  Raises RecordError."""
        known = self._head.firsts.setdefault(task, {})
        if what not in known and task in self._numbers and not self.failure:
            known[what] = round(seconds, 1)
            with self._writing():
                self._append(self._first(task, what, known[what]))

    def _rows(self, rows: Mapping[str, Sequence[float | None]]) -> Iterator[list[Any]]:
        for task, row in rows.items():
            if task in self._numbers:
                values = list(row)
                while values and values[-1] is None:
                    values.pop()
                yield [self._numbers[task], *values]

    def _first(self, task: str, what: str, at: float) -> dict[str, Any]:
        return {"at": at, "task": self._numbers[task], "first": what}

    def _append(self, line: Any) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self.path, flags, 0o600), "w", encoding="ascii") as file:
            file.write(_text(line) + "\n")

    def _rewrite(self, sampled: Sampled) -> None:
        head = {name: getattr(sampled, name) for name in ("began", "every_s", "most", "tasks")}
        lines: list[Any] = [{"format": FORMAT, **head}]
        self._head = Sampled(**head, firsts=sampled.firsts)
        self._numbers = {task: number for number, task in enumerate(sampled.tasks)}
        lines += [
            self._first(task, what, at)
            for task, firsts in sampled.firsts.items()
            for what, at in firsts.items()
        ]
        lines += [[number, *self._rows(rows)] for number, rows in sampled.bins]
        building = self.path.with_name(f".{self.path.name}")
        descriptor = os.open(
            building, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.writelines(_text(line) + "\n" for line in lines)
        building.replace(self.path)
        self._last = max((number for number, _ in sampled.bins), default=-1)

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


def _text(line: Any) -> str:
    """As JSON without blanks.  A bin's numbers take few characters: three digits, and steps as they are."""
    if isinstance(line, dict):
        return json.dumps(line, separators=(",", ":"))
    rows = [",".join(map(_short, row)) for row in line[1:]]
    text = f"[{line[0]}{''.join(f',[{row}]' for row in rows)}]"
    return text.replace("e+0", "e").replace("e+", "e")


def _short(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "null"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
