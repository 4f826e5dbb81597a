"""The hosts as rows of the watch: which there are, which a filter leaves, in which order."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tflaunch.console.gpu_watch.history import mean_use
from tflaunch.planning.inventory import Gpu, GpuOrInstance
from tflaunch.protocol.errors import ConnectError
from tflaunch.survey.gpu_overview import Answer, Machine, Overview, WantedGpus, look

WAITING = "waiting for its answer"

Order = Literal["host", "use", "memory", "temperature", "who"]
ORDERS: Mapping[Order, tuple[str, str]] = {  # in words, and reversed
    "host": ("by host", "by host, reversed"),
    "use": ("by use, least first", "by use, most first"),
    "memory": ("by memory, most free first", "by memory, least free first"),
    "temperature": ("by temperature, hottest first", "by temperature, coolest first"),
    "who": ("by who uses it", "by who uses it, reversed"),
}


@dataclass(frozen=True)
class HostRow:
    """A host under all its names; without GPUs to show it has a reason."""

    names: tuple[str, ...]
    machine: Machine | None = None
    error: ConnectError | None = None  # it cannot be asked now; a machine with an error shows what it was
    reason: str = ""  # no GPUs, or no answer yet

    @property
    def name(self) -> str:
        """The name that it has in the hostfile first; unique."""
        return self.names[0]

    @property
    def title(self) -> str:
        """All its names."""
        return " = ".join(self.names)

    @property
    def rank(self) -> int:
        """0: it has GPUs to show; 1: it may have them later; 2: it has none."""
        return 0 if self.shows_gpus else 2 if self.reason and self.reason != WAITING else 1

    @property
    def shows_gpus(self) -> bool:
        """Whether it has lines for its GPUs."""
        return self.machine is not None and self.error is None


@dataclass(frozen=True)
class Rows:
    """The hosts to show, in their order, and the same as an overview to count their GPUs."""

    hosts: tuple[HostRow, ...]
    overview: Overview


def users(devices: Iterable[GpuOrInstance]) -> Counter[str]:
    """Who uses these, with on how many of them; who has leased one uses it."""
    found: Counter[str] = Counter()
    for device in devices:
        names = {each.user or "?" for each in device.processes}
        found.update(names | ({device.lease.user or "?"} if device.lease else set()))
    return found


def rows(
    answers: Sequence[Answer], wanted: WantedGpus, filtered: str, order: Order, *, reverse: bool = False
) -> Rows:
    """Return the hosts that the words of `filtered` leave: each in a host's name, model or user."""
    overview = look(answers, wanted)
    words = filtered.lower().split()
    found = [row for row in (_filtered(row, words) for row in _all(overview, answers)) if row]
    # In the order of the hostfile a host stays in its place when it goes down, and before it has answered.
    most = 1 if order == "host" else 0
    front = [row for row in found if row.rank <= most]
    back = sorted((row for row in found if row.rank > most), key=lambda row: row.rank)
    if order != "host":
        front.sort(key=_KEYS[order])
    if reverse:
        front.reverse()
    ordered = (*front, *back)
    machines = tuple(row.machine for row in ordered if row.machine)
    shown = sum(len(machine.gpus_or_instances) for machine in machines)
    everything = sum(len(machine.gpus_or_instances) for machine in overview.machines) + overview.hidden
    hidden = everything - shown if words else overview.hidden
    return Rows(ordered, dataclasses.replace(overview, machines=machines, hidden=hidden))


def _all(overview: Overview, answers: Sequence[Answer]) -> list[HostRow]:
    """Return all hosts in the order of the answers, each under one of its names."""
    machines = {machine.names[0]: machine for machine in overview.machines}
    reasons = {name: reason for reason, names in overview.gpuless.items() for name in names}
    found = []
    for answer in answers:
        name = answer.host
        if machine := machines.get(name):
            found.append(HostRow(machine.names, machine, machine.error))
        elif name in overview.failures:
            found.append(HostRow((name,), error=overview.failures[name]))
        elif name in reasons:
            found.append(HostRow((name,), reason=reasons[name]))
        elif answer.facts is None:
            found.append(HostRow((name,), reason=WAITING))
    return found


def _filtered(row: HostRow, words: Sequence[str]) -> HostRow | None:
    """Return the row with those of its GPUs that have all words; None when none has."""
    if row.machine is None:
        return row if _has(words, row.title) else None
    gpus = [gpu for gpu in (_gpu(row, gpu, words) for gpu in row.machine.facts.gpus) if gpu]
    if not gpus and not _has(words, row.title):
        return None
    facts = dataclasses.replace(row.machine.facts, gpus=tuple(gpus))
    return dataclasses.replace(row, machine=dataclasses.replace(row.machine, facts=facts))


def _gpu(row: HostRow, gpu: Gpu, words: Sequence[str]) -> Gpu | None:
    def fits(device: GpuOrInstance) -> bool:
        return _has(words, f"{row.title} {gpu.name} {device.name} {' '.join(users([device]))}")

    if not gpu.mig:
        return gpu if fits(gpu) else None
    fitting = tuple(device for device in gpu.mig if fits(device))
    return dataclasses.replace(gpu, mig=fitting) if fitting else None


def _has(words: Sequence[str], text: str) -> bool:
    return all(word in text.lower() for word in words)


def _last_without(value: float | None) -> tuple[int, float]:
    return (1, 0.0) if value is None else (0, value)


def _hottest(row: HostRow) -> tuple[int, float]:
    degrees = [gpu.temperature_c for gpu in _gpus(row) if gpu.temperature_c is not None]
    return _last_without(-max(degrees) if degrees else None)


def _gpus(row: HostRow) -> tuple[Gpu, ...]:
    return row.machine.facts.gpus if row.machine else ()


def _devices(row: HostRow) -> list[GpuOrInstance]:
    return row.machine.gpus_or_instances if row.machine else []


_KEYS: Mapping[Order, Callable[[HostRow], Any]] = {
    "use": lambda row: _last_without(mean_use(row.machine.facts) if row.machine else None),
    "memory": lambda row: _last_without(
        -max((device.memory_free_bytes for device in _devices(row)), default=0)
    ),
    "temperature": _hottest,
    "who": lambda row: (not users(_devices(row)), sorted(users(_devices(row)))),
}
