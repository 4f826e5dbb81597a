"""Tasks, or hosts, as rows: what each uses now, and used at the looks before.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tflaunch.protocol.job import TaskId
from tflaunch.runs.looking import SeenHost, SeenRun, SeenTask
from tflaunch.runs.samples import HOST_NAMES

KEPT = 240  # looks
PACE_S = 60.0  # over so long steps are counted

Value = float | None
Sort = Literal["name", "host", "cores", "net", "gpu", "steps"]
SORTS: tuple[Sort, ...] = ("name", "host", "cores", "net", "gpu", "steps")
# What a row has of each look, by name; those of a host are of its tasks together ...
VALUES = ("cores", "net", "gpu", "watts", "gpu_bytes", "files", "sm", "tensor", "dram")
OF_GPUS = ("gpu", "sm", "tensor", "dram")  # ... of these the mean
PERCENTS = (*OF_GPUS, *HOST_NAMES)


@dataclass
class Row:
    """A task, or a host."""

    name: str
    host: str
    state: str
    end: str = ""
    now: Mapping[str, Value] = field(default_factory=dict)
    past: Mapping[str, Sequence[Value]] = field(default_factory=dict)  # the newest last
    step: Value = None
    steps_s: Value = None
    loss: Value = None
    quiet_s: Value = None
    says: str = ""
    tasks: int = 1  # of a host: how many run there
    others: Value = None  # of a host: cores that processes beside the run use


@dataclass
class _Kept:
    """What is known of one task, or host, look by look."""

    values: dict[str, deque[Value]] = field(
        default_factory=lambda: {name: deque(maxlen=KEPT) for name in (*VALUES, *HOST_NAMES)}
    )
    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    seen: float = 0.0


class PastLooks:
    """The values of all tasks and hosts over time.  Kept in memory alone: it begins with the command."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def take(self, tasks: Iterable[SeenTask], hosts: Mapping[str, SeenHost]) -> None:
        """Note what is new."""
        for host, seen in hosts.items():
            kept = self._kept.setdefault(host, _Kept())
            if seen.values is not None and seen.seen > kept.seen:
                kept.seen = seen.seen
                for name, value in seen.values.items():
                    kept.values[name].append(value)
        for task in tasks:
            kept = self._kept.setdefault(task.task, _Kept())
            if task.values is None or task.seen <= kept.seen:
                continue
            kept.seen = task.seen
            for name, value in _values(task.values).items():
                kept.values[name].append(value)
            if (step := task.values.get("step")) is not None:
                if kept.steps and step < kept.steps[-1][1]:
                    kept.steps.clear()  # it was started again
                kept.steps.append((task.seen, step))

    def copy(self) -> PastLooks:
        """What is known now, to be looked at while this one goes on."""
        made = PastLooks()
        for task, kept in self._kept.items():
            values = {name: each.copy() for name, each in kept.values.items()}
            made._kept[task] = _Kept(values, kept.steps.copy(), kept.seen)
        return made

    def past(self, name: str) -> Mapping[str, Sequence[Value]]:
        """Name of a value -> what it was for that task or host, the newest last; more come with the next looks."""
        return self._kept[name].values if name in self._kept else {}

    def steps_s(self, task: str) -> Value:
        """Steps in a second, over the last minute; None where its log names too few."""
        steps = self._kept[task].steps if task in self._kept else deque[tuple[float, float]]()
        recent = [each for each in steps if each[0] >= steps[-1][0] - PACE_S]
        if len(recent) < 2 or recent[-1][1] == recent[0][1]:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


def _values(values: Mapping[str, Value]) -> dict[str, Value]:
    sent, received = values.get("sent"), values.get("received")
    net = None if sent is None or received is None else sent + received
    return {"net": net, **{name: values.get(name) for name in VALUES if name != "net"}}


def task_rows(run: SeenRun, past: PastLooks) -> list[Row]:
    """A row for each task."""
    rows = []
    for task in run.tasks:
        state = "unreachable" if task.state == "running" and task.host in run.down else task.state
        # What one out of reach has used is in its graphs; what it uses now is not known.
        values, before = (task.values or {}) if state != "unreachable" else {}, past.past(task.task)
        rows.append(
            Row(
                task.task,
                task.host,
                state,
                task.end,
                {name: each[-1] if each else None for name, each in before.items()} if values else {},
                before,
                values.get("step"),
                past.steps_s(task.task) if values else None,
                values.get("loss"),
                values.get("quiet_s"),
                task.says,
            )
        )
    return rows


def host_rows(run: SeenRun, past: PastLooks) -> list[Row]:
    """A row for each host: what its tasks use together."""
    rows = []
    there: dict[str, list[Row]] = {share.host: [] for share in run.run.shares}
    for task in task_rows(run, past):
        there.setdefault(task.host, []).append(task)
    for host, own in there.items():
        living = [task for task in own if task.state == "running"]
        why = run.down.get(host, "")
        state = "unreachable" if why else "running" if living else "exited"
        names = ", ".join(task.name for task in own)
        made = Row(host, host, state, "", says=why or names, tasks=len(living))
        made.now = {name: _together(name, [task.now.get(name) for task in living]) for name in VALUES}
        if host in run.hosts and not why:
            made.others, pressures = run.hosts[host].others, run.hosts[host].values or {}
            made.now |= {name: pressures.get(name) for name in HOST_NAMES}
        made.past = _PastTogether([task.past for task in own], past.past(host))
        rows.append(made)
    return rows


class _PastTogether(Mapping[str, Sequence[Value]]):
    """Name -> the values of several tasks together, added up once somebody looks at them; and those of their host."""

    def __init__(
        self, tasks: Sequence[Mapping[str, Sequence[Value]]], host: Mapping[str, Sequence[Value]]
    ) -> None:
        self._tasks, self._host = tasks, host
        self._made: dict[str, Sequence[Value]] = {}

    def __getitem__(self, name: str) -> Sequence[Value]:
        if name in HOST_NAMES:
            return self._host.get(name, ())
        if name not in self._made:
            self._made[name] = _past_together(name, [task.get(name, ()) for task in self._tasks])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*VALUES, *HOST_NAMES))

    def __len__(self) -> int:
        return len(VALUES) + len(HOST_NAMES)


def _together(name: str, values: Sequence[Value]) -> Value:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return sum(known) / len(known) if name in OF_GPUS else sum(known)


def _past_together(name: str, series: Sequence[Sequence[Value]]) -> list[Value]:
    """The sums, or means, of looks that came at about one time: the newest stand over each other."""
    longest = max(map(len, series), default=0)
    missing: list[Value] = [None] * longest
    padded = [[*missing[len(each) :], *each] for each in series]
    return [_together(name, column) for column in zip(*padded, strict=True)]


def ordered(rows: Iterable[Row], sort: Sort, *, reverse: bool, words: str) -> list[Row]:
    """The rows that have all these words in name, host or state, in that order; the largest value first."""
    wanted = words.lower().split()
    chosen = [
        row
        for row in rows
        if all(word in f"{row.name} {row.host} {row.state} {row.end}".lower() for word in wanted)
    ]
    chosen.sort(key=_by_name)
    if sort != "name":
        chosen.sort(key=_KEYS[sort])
    return chosen[::-1] if reverse else chosen


def _by_name(row: Row) -> tuple[str, int]:
    try:
        task = TaskId.parse(row.name)
    except ValueError:  # a host
        return row.name, 0
    return task.job, task.index


def _largest(name: str) -> Callable[[Row], float]:
    return lambda row: -(row.now.get(name) or 0.0)


_KEYS: Mapping[Sort, Callable[[Row], float | str]] = {
    "host": lambda row: row.host,
    "cores": _largest("cores"),
    "net": _largest("net"),
    "gpu": _largest("gpu"),
    "steps": lambda row: row.steps_s if row.steps_s is not None else float("inf"),  # the slowest first
}
