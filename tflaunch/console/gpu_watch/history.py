"""Use and memory of each GPU and each host over time.  Kept in memory alone: it begins with the command."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tflaunch.planning.inventory import GpuOrInstance, HostFacts
from tflaunch.survey.gpu_overview import Answer

COLUMNS = 240  # so many are kept: no graph is wider
REFRESHES = 5  # to a column: a graph that moved at each refresh would be drawn anew at each one
WHOLE = ""  # the label of a host's sum

Value = float | None  # a share, 0 to 1; None: not known


class Series:
    """One value over time, a mean for each column."""

    def __init__(self) -> None:
        self._values: deque[Value] = deque(maxlen=COLUMNS)
        self._last = 0  # the number of the newest column
        self._sum, self._count = 0.0, 0  # of the newest column
        self._known = False  # whether its last value holds until the next

    def add(self, column: int, value: Value) -> None:
        """Take a value that was measured in that column; a column without one has the value before it."""
        if value is not None:
            value = min(1.0, max(0.0, value)) if math.isfinite(value) else None
        if not self._values or column > self._last:
            self._fill(column - 1)
            self._values.append(value)
            self._last, self._sum, self._count = column, value or 0.0, int(value is not None)
        elif value is not None:
            self._sum, self._count = self._sum + value, self._count + 1
            self._values[-1] = self._sum / self._count
        self._known = value is not None

    def end(self, column: int) -> None:
        """Nothing is known from that column on, until the next value."""
        if self._known and column > self._last + 1:
            self._fill(column - 1)
            self._last = column - 1
        self._known = False

    def until(self, column: int, width: int) -> list[Value]:
        """Return the values of the last `width` columns up to that one."""
        values = [*self._values]
        # A column that is not measured yet has the value before it.
        carried = self._values[-1] if self._values and self._known else None
        values += [carried] * min(width, max(0, column - self._last))
        return [None] * (width - len(values)) + values[len(values) - width if width < len(values) else 0 :]

    def copy(self) -> Series:
        """Return what is known now."""
        made = Series()
        made._values, made._last, made._known = self._values.copy(), self._last, self._known
        return made

    def _fill(self, column: int) -> None:
        missing = min(COLUMNS, column - self._last) if self._values else 0
        self._values.extend([self._values[-1] if self._known else None] * missing)


@dataclass
class Pair:
    """The two graphs of a GPU, a MIG instance or a host."""

    use: Series = field(default_factory=Series)
    memory: Series = field(default_factory=Series)

    def copy(self) -> Pair:
        """Return what is known now."""
        return Pair(self.use.copy(), self.memory.copy())


class History:
    """The pairs of all hosts."""

    def __init__(self, every_s: float) -> None:
        """`every_s`: the time from one refresh to the next."""
        self.column_s = REFRESHES * every_s
        self._asleep_s = max(self.column_s, 5.0)
        self._hosts: dict[str, dict[str, Pair]] = {}
        self._facts: dict[str, HostFacts] = {}
        self._taken: float | None = None

    def column(self, now: float) -> int:
        """The number of the column at that time (monotonic)."""
        return int(now // self.column_s)

    def take(self, answers: Iterable[Answer], now: float) -> None:
        """Note what is new in these answers; `now` is monotonic."""
        before = now if self._taken is None else self._taken
        asleep = now - before > self._asleep_s
        self._taken = now
        column = self.column(now)
        gap = self.column(before) + 1 if asleep else column
        for answer in answers:
            pairs = self._hosts.get(answer.host, {})
            if answer.error is not None or asleep:
                for pair in pairs.values():
                    pair.use.end(gap)
                    pair.memory.end(gap)
            facts = answer.facts
            if answer.error is not None or facts is None or self._facts.get(answer.host) is facts:
                continue
            self._facts[answer.host] = facts
            values = dict(_values(facts))
            # Those of GPUs that are gone are forgotten: a host that renames its GPUs must not fill the memory.
            pairs = self._hosts[answer.host] = {label: pairs.get(label) or Pair() for label in values}
            for label, (use, memory) in values.items():
                pairs[label].use.add(column, use)
                pairs[label].memory.add(column, memory)

    def copy(self) -> History:
        """Return what is known now, to be looked at while this one goes on."""
        made = History(self.column_s / REFRESHES)
        made._hosts = {
            host: {label: pair.copy() for label, pair in pairs.items()} for host, pairs in self._hosts.items()
        }
        return made

    def of(self, host: str, label: str = WHOLE) -> Pair:
        """Return the graphs of a GPU or MIG instance, or the sum of its host."""
        return self._hosts.get(host, {}).get(label) or Pair()


def _values(facts: HostFacts) -> Iterable[tuple[str, tuple[Value, Value]]]:
    for gpu in facts.gpus:
        parts: Sequence[GpuOrInstance] = (gpu, *gpu.mig)
        for part in parts:
            use = gpu.utilization_percent if part is gpu else None  # NVML has it for whole GPUs only
            yield part.label, (None if use is None else use / 100, memory_share([part]))
    yield WHOLE, (mean_use(facts), memory_share(facts.gpus))


def mean_use(facts: HostFacts) -> Value:
    """The mean utilization of a host's GPUs, of those that report it."""
    percents = [gpu.utilization_percent for gpu in facts.gpus if gpu.utilization_percent is not None]
    return sum(percents) / len(percents) / 100 if percents else None


def memory_share(devices: Sequence[GpuOrInstance]) -> Value:
    """How much of their memory is in use."""
    total = sum(device.memory_total_bytes for device in devices)
    return sum(device.memory_used_bytes for device in devices) / total if total else None
