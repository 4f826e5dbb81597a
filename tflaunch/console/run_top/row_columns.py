"""Which columns there is room for, and a row in them: the graph of a value stands left of its number."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tflaunch.console.graph import LEAST_BYTES_S, LEAST_CORES, graph
from tflaunch.console.pen import BAD, BUSY, GOOD, WARN, Marks
from tflaunch.console.run_top.table_rows import PERCENTS, Row, Value
from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import cut, fitted
from tflaunch.diagnosis.thresholds import DEFAULTS
from tflaunch.runs.samples import HOST_NAMES
from tflaunch.text.numbers import amount
from tflaunch.text.times import age

QUIET_S = 60.0  # a log that is silent for longer is named
_LEAST_GRAPH, _MOST_GRAPH = 4, 40
_LEAST_SAYS, _BEFORE_SAYS = 18, 2
_STATES = {"running": GOOD, "unreachable": WARN, "lost": BAD}
_NET = "#cc79a7"
_GPM, _WAITS = "SM/TC/mem", "waits %"
_THREE_PERCENTS = len("100/100/100")
_SEVERAL = {_GPM: ("sm", "tensor", "dram"), _WAITS: HOST_NAMES}
SHORT_OF_MEMORY = 100 * DEFAULTS["memory_share"]  # percent of the time: such a host is warned of, and marked
_LEAST_TOPS = {"cores": LEAST_CORES, **dict.fromkeys(("net", "sent", "received", "files"), LEAST_BYTES_S)}


class _Measure(NamedTuple):
    """A value with its graph."""

    name: str
    title: str
    width: int  # of its number
    style: str


_CORES = _Measure("cores", "cores", 5, BUSY)
_MEASURES = (_CORES, _Measure("net", "net/s", 7, _NET), _Measure("gpu", "GPU", 4, GOOD))


def number(name: str, value: Value) -> str:
    """A value in a few characters, with its unit."""
    if value is None:
        return "-"
    if name in ("net", "files", "gpu_bytes", "sent", "received"):
        return amount(value).replace("iB", "").replace(" ", "")
    if name in PERCENTS:
        return f"{value:.0f}%"
    if name == "watts":
        return f"{value:.0f} W"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


class Columns:
    """The columns of one window."""

    def __init__(self, width: int, marks: Marks, rows: Sequence[Row], *, of_hosts: bool) -> None:
        self._width, self._marks, self._of_hosts = width, marks, of_hosts
        wide = width >= 110
        self._name = max([6, *(Text(row.name).cell_len for row in rows)])
        self._name = min(self._name, 32 if wide else 20 if of_hosts else 12)
        self._host = (
            0 if of_hosts else min(max([4, *(Text(row.host).cell_len for row in rows)]), 24 if wide else 10)
        )
        has_gpus = any(row.now.get("gpu") is not None for row in rows)
        self._measures = [each for each in _MEASURES if each.name != "gpu" or has_gpus]
        self._plain = _plain_columns(rows, wide=wide, of_hosts=of_hosts)
        fixed = 1 + self._name + (1 + self._host if self._host else 0)
        fixed += sum(1 + each for each in self._plain.values()) + sum(
            2 + each.width for each in self._measures
        )
        room = width - fixed
        self._says = max(_LEAST_SAYS, room // 2) if wide or of_hosts else 0
        if room - self._says - _BEFORE_SAYS < len(self._measures) * _LEAST_GRAPH:
            self._says = 0
        share = (room - (self._says + _BEFORE_SAYS if self._says else 0)) // len(self._measures)
        self._graph = max(0, min(_MOST_GRAPH, share))
        if self._graph < _LEAST_GRAPH:
            self._graph = 0
        self._tops = {each.name: self._top(each.name, rows) for each in self._measures}
        self._says = max(0, room - len(self._measures) * self._graph - _BEFORE_SAYS)

    def heading(self) -> Text:
        """The names of the columns."""
        line = Text(" ").append_text(fitted(Text("host" if self._of_hosts else "task"), self._name, ""))
        if self._host:
            line.append(" ").append_text(fitted(Text("host"), self._host, ""))
        for each in self._measures:
            line.append(" ").append_text(fitted(Text(each.title), self._graph + 1 + each.width, "", True))
        for title, width in self._plain.items():
            line.append(" ").append_text(fitted(Text(title), width, "", True))
        if self._says >= _LEAST_SAYS:
            line.append("  tasks" if self._of_hosts else "  its log")
        line.stylize("dim")
        return cut(line, self._width, self._marks.more)

    def row(self, row: Row, *, selected: bool) -> Text:
        """The line of a task or host."""
        line = Text.assemble((">" if selected else " ", "bold"))  # the rest is not bold
        line.append_text(
            fitted(Text(row.name, "bold reverse" if selected else "bold"), self._name, self._more)
        )
        if self._host:
            line.append(" ").append_text(fitted(Text(row.host, "dim"), self._host, self._more))
        if row.state != "running":
            style = BAD if row.end not in ("", "stopped", "exit code 0") else _STATES.get(row.state, "dim")
            line.append(" ").append(row.end or row.state, style)
            line.append(f"  {row.says}", "dim")
            return cut(line, self._width, self._more)
        for each in self._measures:
            line.append(" ").append(self._graph_of(row, each), each.style)
            line.append(" ").append_text(
                fitted(Text(number(each.name, row.now.get(each.name))), each.width, "", True)
            )
        for title, width in self._plain.items():
            line.append(" ").append_text(fitted(_plain(title, row), width, self._more, True))
        if self._says >= _LEAST_SAYS:
            line.append("  ").append_text(_says(row))
        return cut(line, self._width, self._more)

    def _top(self, name: str, rows: Sequence[Row]) -> float:
        """What fills a cell: the most that the graphs of all rows have, so that they compare; of percents, 100."""
        shown = (newest(row.past.get(name, ()), self._graph) for row in rows)
        return top_of(name, (value for values in shown for value in values))

    @property
    def _more(self) -> str:
        return self._marks.more

    def _graph_of(self, row: Row, each: _Measure) -> str:
        values = drawn(row.past.get(each.name, ()), self._tops[each.name], self._graph)
        return graph(values, self._marks.blocks)[0]


def _plain_columns(rows: Sequence[Row], *, wide: bool, of_hosts: bool) -> dict[str, int]:
    """Title -> width, of the columns without a graph."""
    there = {name for row in rows for name, value in row.now.items() if value is not None}
    gpm = {_GPM: _THREE_PERCENTS} if wide and "sm" in there else {}
    if of_hosts:
        return {**gpm, **({_WAITS: _THREE_PERCENTS} if there.intersection(HOST_NAMES) else {}), "others": 6}
    loss = {"loss": 9} if wide and any(row.loss is not None for row in rows) else {}
    return {**gpm, "step": 8, "steps/s": 8, **loss}


def _plain(title: str, row: Row) -> Text:
    if title in _SEVERAL:
        return _several(title, row)
    value = {"step": row.step, "steps/s": row.steps_s, "loss": row.loss, "others": row.others}[title]
    if value is None:
        return Text("-", "dim")
    return Text(f"{value:.0f}" if title == "step" else f"{value:.3g}")


def _several(title: str, row: Row) -> Text:
    """Several percents in one column: `63/21/40`."""
    values = {name: row.now.get(name) for name in _SEVERAL[title]}
    if set(values.values()) == {None}:
        return Text("-", "dim")
    line = Text()
    for name, value in values.items():
        short = name == "memory_pressure" and value is not None and value >= SHORT_OF_MEMORY
        line.append("/" if line else "").append(
            "-" if value is None else f"{value:.0f}", WARN if short else ""
        )
    return line


def _says(row: Row) -> Text:
    if row.quiet_s is not None and row.quiet_s >= QUIET_S:
        return Text.assemble((f"silent for {age(row.quiet_s)}: ", WARN), (row.says, "dim"))
    return Text(row.says, "dim")


def newest(values: Sequence[Value], count: int) -> Iterator[Value]:
    """At most so many values, the newest first."""
    return itertools.islice(reversed(values), count)


def top_of(name: str, values: Iterable[Value]) -> float:
    """What fills a graph of these values."""
    if name in PERCENTS:
        return 100.0
    return max([_LEAST_TOPS.get(name, 0.0), *(value for value in values if value is not None)])


def drawn(values: Sequence[Value], top: float, width: int) -> list[Value]:
    """The newest values as shares of `top`, one to a column, the newest at the right."""
    shown = [*newest(values, width)][::-1]
    return [None] * (width - len(shown)) + [
        None if value is None else min(1.0, value / top) if top else 0.0 for value in shown
    ]
