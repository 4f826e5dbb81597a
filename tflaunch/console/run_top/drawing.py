"""The whole screen as lines: the list of tasks or hosts, one of them, the help.  Draws only what is visible."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tflaunch.console.graph import graph
from tflaunch.console.pen import BAD, BUSY, GOOD, WARN, Marks
from tflaunch.console.run_top.row_columns import Columns, drawn, number, top_of
from tflaunch.console.run_top.table_rows import Row, Value
from tflaunch.console.run_top.view import TopView
from tflaunch.console.safe_text import Text, wrapped, wrapped_words
from tflaunch.console.text_table import cut
from tflaunch.text.numbers import counted
from tflaunch.text.times import age, clock_time, written

_KEYS = {
    "list": (
        "q quit",
        "Enter one",
        "Tab tasks/hosts",
        "s sort",
        "/ filter",
        "? help",
        "space pause",
        "r reverse",
    ),
    "one": ("q quit", "Esc back", "? help", "space pause", "left/right another"),
    "help": ("q quit", "Esc back"),
}
HELP = (
    ("up, down", "another row; also j and k, page up and down, Home and End"),
    ("Tab", "tasks or hosts"),
    ("Enter", "that task or host alone, with larger graphs; left and right: another one; Esc: back"),
    ("s", "sort: by name, host, cores, net, GPU, steps (the slowest first); r: reversed"),
    ("/", "filter: only rows with these words: task, host or state; Enter keeps it, Esc drops it"),
    ("space", "pause: the screen stands still; the run is looked at all the same"),
    ("?", "this help"),
    ("q, Ctrl-C", "quit: the run goes on; Ctrl-Z and fg work"),
)
_SORTED = {
    "name": "by name",
    "host": "by host",
    "cores": "most cores first",
    "net": "most bytes first",
    "gpu": "busiest GPU first",
    "steps": "slowest first",
}
_TITLES = {
    "cores": "cores",
    "cpu_pressure": "percent of the time in which programs waited for a processor",
    "net": "bytes a second to and from all its peers",
    "gpu": "GPU: percent of the time in which it computed",
    "sm": "SMs of its GPUs that computed",
    "tensor": "tensor cores: percent of the time in which they computed",
    "dram": "memory of its GPUs: percent of its speed that was used",
    "watts": "power of its GPUs",
    "gpu_bytes": "memory in use on its GPUs",
    "memory_pressure": "percent of the time in which programs waited for memory",
    "files": "bytes of files a second",
    "io_pressure": "percent of the time in which programs waited for a disk",
}
_GRAPH_ROWS = 4


class TopDrawing:
    """Draws what a TopView says, in lines that fit the window."""

    def __init__(self, view: TopView, every_s: float, marks: Marks) -> None:
        self._view, self._every_s, self._marks = view, every_s, marks
        # The rows and the width for which the columns were made, and the columns.
        self._made: tuple[Sequence[Row], int, Columns] | None = None

    def screen(self, columns: int, rows: int) -> list[Text]:
        """Return `rows` lines, each `columns` wide at most."""
        view = self._view
        head, foot = self._head(columns), self._foot(columns)
        room = max(1, rows - len(head) - len(foot))
        view.page_lines = max(1, room - 2)
        if view.page == "help":
            body = self._scrolled(self._help(columns), room)
        elif view.page == "one":
            body = self._scrolled(self._one(columns), room)
        else:
            body = self._list(columns, room)
        body = [*body, *[Text()] * (room - len(body))]
        return [cut(line, columns, self._marks.more) for line in [*head, *body, *foot]][:rows]

    # -- above and below

    def _head(self, columns: int) -> list[Text]:
        view, seen = self._view, self._view.seen
        if seen is None:
            return [Text("asking the hosts", "bold")]
        run = seen.run
        line = Text.assemble((time.strftime("%H:%M:%S", time.localtime(seen.clock)), "bold"), " ")
        line.append(run.run_id, "bold")
        running = sum(task.state == "running" for task in seen.tasks)
        if seen.ended:
            line.append(f"  {seen.ended}", GOOD if seen.ended.startswith("succeeded") else BAD)
        else:
            since = f" for {age(seen.clock - run.started)}" if run.started else ""
            line.append(f"  {self._marks.live} {running}/{len(seen.tasks)}", GOOD).append(
                f" tasks run{since}"
            )
        if view.paused:
            line.append("  paused, space goes on", WARN)
        line.append(f"  every {written(self._every_s)}, {_SORTED[view.order]}", "dim")
        line.append(", reversed" if view.reverse else "", "dim")
        lines = [line]
        for sentence in self._sentences():
            lines += wrapped(Text.assemble((f"{self._marks.warn} ", WARN), sentence), columns)[:2]
        return lines

    def _sentences(self) -> list[str]:
        """What is wrong: what the run's watchdog said last, which hosts are away."""
        seen = self._view.seen
        if seen is None:
            return []
        away = [f"{host} is out of reach: {why}" for host, why in seen.down.items()][:2]
        if seen.said:
            at, text = seen.said[-1]
            return [f"{clock_time(at)} {text}" if at else text, *away]
        holds = (seen.run.holds or {}).get("sentences", ())
        return [*holds[:1], *away]

    def _foot(self, columns: int) -> list[Text]:
        view = self._view
        if view.typing:
            line = Text.assemble(("filter: ", "bold"), view.words, ("_", "bold"))
            return [line.append("   task, host or state; Enter keeps it, Esc drops it", "dim")]
        lines = []
        if view.words and view.page == "list":
            lines.append(Text.assemble(("filter: ", "bold"), view.words, ("   Esc drops it", "dim")))
        return [*lines, Text(wrapped_words(_KEYS[view.page], columns, "  ")[0], "dim")]

    def _scrolled(self, lines: Sequence[Text], room: int) -> list[Text]:
        view = self._view
        view.scrolled = max(0, min(view.scrolled, len(lines) - room))
        return [*lines[view.scrolled : view.scrolled + room]]

    # -- the list

    def _list(self, width: int, room: int) -> list[Text]:
        view = self._view
        rows = view.rows
        if not rows:
            nothing = f"nothing fits {view.words!r}" if view.words else "no host has answered yet"
            return [Text(nothing, "bold")]
        columns = self._columns(width)
        room = max(1, room - 2)  # the heading, the sum
        number = view.number
        view.top = max(0, min(view.top, number, len(rows) - room))
        view.top = max(view.top, number - room + 1)
        shown = rows[view.top : view.top + room]
        chosen = rows[number].name
        lines = [columns.row(row, selected=row.name == chosen) for row in shown]
        return [columns.heading(), *lines, self._sum(rows)]

    def _columns(self, width: int) -> Columns:
        """The columns of that window: made once for a look, not for each key."""
        rows = self._view.every_row
        if self._made is None or self._made[0] is not rows or self._made[1] != width:
            self._made = rows, width, Columns(width, self._marks, rows, of_hosts=self._view.of_hosts)
        return self._made[2]

    def _sum(self, rows: Sequence[Row]) -> Text:
        noun = "host" if self._view.of_hosts else "task"
        parts = [counted(len(rows), noun)]
        for name, after in (("cores", " cores"), ("net", "/s")):
            known = [value for row in rows if (value := row.now.get(name)) is not None]
            if known:
                parts.append(number(name, sum(known)) + after)
        gpus = [value for row in rows if (value := row.now.get("gpu")) is not None]
        if gpus:
            parts.append(f"GPUs {sum(gpus) / len(gpus):.0f}%")
        return Text(" " + f" {self._marks.dot} ".join(parts), "dim")

    # -- one task or host

    def _one(self, width: int) -> list[Text]:
        row = self._view.one
        if row is None:
            return [Text("it is gone; Esc leads back", "bold")]
        line = Text.assemble((row.name, "bold"))
        if row.name != row.host:
            line.append(f" on {row.host}")
        line.append(f"  {row.end or row.state}")
        if row.step is not None:
            line.append(f"  step {row.step:.0f}")
        if row.steps_s is not None:
            line.append(f"  {row.steps_s:.3g} steps/s")
        if row.loss is not None:
            line.append(f"  loss {row.loss:.4g}")
        lines = [line]
        if row.quiet_s is not None:
            lines.append(Text.assemble(f"its log, {age(row.quiet_s)} ago: ", (row.says, "dim")))
        elif row.says:
            lines.append(Text(row.says, "dim"))
        for name, title in _TITLES.items():
            values = row.past.get(name, ())
            if any(value is not None for value in values):
                lines += ["", *self._large(name, title, values, row.now.get(name), width)]  # type: ignore[list-item]
        return [each if isinstance(each, Text) else Text(each) for each in lines]

    def _large(self, name: str, title: str, values: Sequence[Value], now: Value, width: int) -> list[Text]:
        known = [value for value in values if value is not None]
        line = Text.assemble((f"{title}: ", "bold"), number(name, now))
        line.append(f"   {number(name, min(known))} to {number(name, max(known))}", "dim")
        shown = min(width - 1, len(values))
        line.append(f" in {written(round(shown * self._every_s))}", "dim")
        blocks = graph(drawn(values, top_of(name, known), shown), self._marks.blocks, _GRAPH_ROWS)
        return [line, *(Text(f" {each}", BUSY) for each in blocks)]

    def _help(self, width: int) -> list[Text]:
        lines = [Text("keys", "bold")]
        for keys, does in HELP:
            first, *more = wrapped(Text(does), max(20, width - 14))
            lines.append(Text.assemble((f"  {keys:<10}  ", "bold"), first))
            lines += [Text(" " * 14).append_text(each) for each in more]
        lines += [
            Text(),
            *wrapped(Text("Graphs: a column is a look. In the list all rows have one scale."), width),
            Text(),
            *wrapped(
                Text(
                    "waits %: of the time, in which programs of a host waited for a processor/memory/a disk."
                    " SM/TC/mem: percent of the SMs, tensor cores and memory's speed of its GPUs that were used."
                ),
                width,
            ),
        ]
        return lines
