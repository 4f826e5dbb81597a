"""The whole screen as lines: the list of hosts, a host with its processes, the help.  Draws only what is visible."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tflaunch.console.gpu_watch.history import REFRESHES
from tflaunch.console.gpu_watch.host_rows import ORDERS, HostRow
from tflaunch.console.gpu_watch.layout import Layout
from tflaunch.console.gpu_watch.state import WatchView
from tflaunch.console.gpus_page import GpusView
from tflaunch.console.gpus_states import STYLES, summary_lines
from tflaunch.console.pen import Marks
from tflaunch.console.safe_text import Text, wrapped_words
from tflaunch.console.text_table import Column, cut, table
from tflaunch.planning.inventory import Gpu, GpuOrInstance
from tflaunch.survey.gpu_overview import Machine, state
from tflaunch.text.times import age, written

_MOST_HEIGHT = 4  # of a graph on a host's page
_KEYS = {
    "list": (
        "q quit",
        "/ filter",
        "s sort",
        "Enter processes",
        "? help",
        "space pause",
        "g GPUs",
        "r reverse",
    ),
    "one": ("q quit", "Esc back", "? help", "space pause", "left/right another host"),
    "help": ("q quit", "Esc back"),
}
HELP = (
    ("up, down", "another host; also j and k, page up and down, Home and End"),
    ("Enter", "the host's GPUs and the processes on them; left and right: another host; Esc: back"),
    ("/", "filter: only hosts and GPUs with these words: host, model or user; Enter keeps it, Esc drops it"),
    ("s", "sort: by host, use, memory, temperature, who uses it; r: reversed"),
    ("g", "show or hide the GPUs below their hosts; until then they are shown where all fit"),
    ("space", "pause: the screen stands still; the hosts are asked all the same"),
    ("?", "this help"),
    ("q, Ctrl-C", "quit; Ctrl-Z and fg work"),
)


@dataclass(frozen=True)
class _Line:
    """A line of the list: a host, or one of its GPUs or MIG instances."""

    row: HostRow
    gpu: Gpu | None = None
    device: GpuOrInstance | None = None


class Pages:
    """Draws what a WatchView says, in lines that fit the window."""

    def __init__(self, state: WatchView, every_s: float, marks: Marks) -> None:
        self._state, self._every_s, self._marks = state, every_s, marks

    def screen(self, columns: int, rows: int) -> list[Text]:
        """Return `rows` lines, each `columns` wide at most."""
        state = self._state
        foot = self._foot(columns)
        room = max(1, rows - 1 - len(foot))
        state.page_lines = max(1, room - 2)
        if state.page == "help":
            body = self._scrolled(self._help(columns), room)
        elif state.page == "one":
            body = self._scrolled(self._host(columns, room), room)
        else:
            body = self._list(columns, room)
        body += [Text()] * (room - len(body))
        lines = [self._title(), *body, *foot]
        return [cut(line, columns, self._marks.more) for line in lines][:rows]

    # -- above and below

    def _title(self) -> Text:
        state = self._state
        clock = time.strftime("%H:%M:%S", time.localtime(state.look.clock)) if state.look.clock else "asking"
        line = Text.assemble((clock, "bold"))
        if state.paused:
            line.append("  paused, space goes on", STYLES["leased"])
        line.append(f"  every {written(self._every_s)}", "dim")
        if state.page == "list":
            line.append(f"  {ORDERS[state.order][state.reverse]}", "dim")
        line.append(f"  a column: {written(REFRESHES * self._every_s)}", "dim")
        return line

    def _foot(self, columns: int) -> list[Text]:
        state = self._state
        lines = summary_lines(state.rows.overview, columns, self._marks)[-1:] if state.look.answers else []
        queue = state.rows.overview.queue
        if queue:
            clock = max((each.facts.clock for each in state.rows.overview.machines), default=0.0)
            waits = ", ".join(
                f"{each.holder} has waited {age(clock - each.since)} for {each.wants}" for each in queue
            )
            lines.append(Text.assemble(("in line for GPUs: ", "bold"), waits))
        if state.typing:
            line = Text.assemble(("filter: ", "bold"), state.words, ("_", "bold"))
            return [*lines, line.append("   host, model or user; Enter keeps it, Esc drops it", "dim")]
        if state.words and state.page == "list":
            lines.append(Text.assemble(("filter: ", "bold"), state.words, ("   Esc drops it", "dim")))
        keys = wrapped_words(_KEYS[state.page], columns, "  ")[0]
        return [*lines, Text(keys, "dim")]

    def _scrolled(self, lines: Sequence[Text], room: int) -> list[Text]:
        state = self._state
        state.scrolled = max(0, min(state.scrolled, len(lines) - room))
        return [*lines[state.scrolled : state.scrolled + room]]

    # -- the list

    def _list(self, columns: int, room: int) -> list[Text]:
        state = self._state
        hosts = state.rows.hosts
        if not hosts:
            nothing = (
                f"no host, model or user fits {state.words!r}" if state.words else "no host has answered yet"
            )
            return [Text(nothing, "bold")]
        layout = Layout(columns, self._marks, hosts)
        room -= 1  # the heading
        everything = [line for row in hosts for line in _lines(row)]
        state.all_fit = len(everything) <= room
        lines = everything if state.shows_gpus else [_Line(row) for row in hosts]
        state.top = self._top(lines, hosts[state.number], room)
        shown = lines[state.top : state.top + room]
        chosen = hosts[state.number].name
        return [layout.heading(), *(self._line(layout, line, chosen) for line in shown)]

    def _top(self, lines: Sequence[_Line], chosen: HostRow, room: int) -> int:
        """Return the first line to show: the selected host is in sight, and its GPUs as far as there is room."""
        places = [number for number, line in enumerate(lines) if line.row is chosen]
        first, last = places[0], min(places[-1], places[0] + room - 1)
        top = max(last - room + 1, min(self._state.top, first))
        return max(0, min(top, len(lines) - room))

    def _line(self, layout: Layout, line: _Line, chosen: str) -> Text:
        state, row = self._state, line.row
        if line.gpu is None or line.device is None or row.machine is None:
            pair = state.graphs.of(row.name)
            return layout.host(row, pair, state.column, selected=row.name == chosen)
        pair = state.graphs.of(row.name, line.device.label)
        clock = row.machine.facts.clock
        return layout.device(line.gpu, line.device, pair, column=state.column, clock=clock)[0]

    # -- a host

    def _host(self, columns: int, room: int) -> list[Text]:
        row = self._state.whole_host
        if row is None:
            return [Text("this host is no longer listed", "bold")]
        view = GpusView(columns, self._marks)
        head = [view.host_line(row.machine) if row.machine else Text(row.title, "bold")]
        head += self._troubles(row, columns)
        if row.machine is None:
            return head
        layout = Layout(columns, self._marks, [row])
        devices = [line for line in _lines(row, always=True) if line.device is not None]
        processes = self._processes(row.machine, columns)
        spare = room - len(head) - len(processes) - 4
        height = max(1, min(_MOST_HEIGHT, spare // max(1, len(devices))))
        graphs = [layout.heading()]
        pair = self._state.graphs.of(row.name)
        graphs.append(layout.host(row, pair, self._state.column))
        for line in devices if row.shows_gpus else ():
            graphs += self._device(layout, row, line, height)
        return [
            *head,
            Text(),
            *(graphs if row.shows_gpus else []),
            *([Text()] if row.shows_gpus else []),
            *processes,
        ]

    def _device(self, layout: Layout, row: HostRow, line: _Line, height: int) -> list[Text]:
        if line.gpu is None or line.device is None or row.machine is None:
            return []
        pair = self._state.graphs.of(row.name, line.device.label)
        clock = row.machine.facts.clock
        return layout.device(
            line.gpu, line.device, pair, column=self._state.column, clock=clock, height=height
        )

    def _troubles(self, row: HostRow, columns: int) -> list[Text]:
        lines = []
        if row.error is not None:
            words = f"{self._marks.bad} {row.error.message}".split()
            lines += [Text(line, STYLES["broken"]) for line in wrapped_words(words, columns)]
            hint = row.error.hint_for(row.name).split()
            lines += [
                Text(line, "cyan") for line in wrapped_words([self._marks.next, *hint], columns) if hint
            ]
            if row.machine is not None:
                lines.append(Text(f"its GPUs and processes were seen {age(row.machine.age_s)} ago", "dim"))
        if row.reason:
            lines.append(Text(row.reason))
        return lines

    def _processes(self, machine: Machine, columns: int) -> list[Text]:
        """Return the table of the processes on the host's GPUs, and of the runs that have one without a process."""
        clock = machine.facts.clock
        found: list[tuple[str, ...]] = []
        for device in machine.gpus_or_instances:
            lease = device.lease
            for each in sorted(device.processes, key=lambda each: -(each.memory_bytes or 0)):
                run = lease.run if lease and lease.user == each.user else ""
                used = "-" if each.memory_bytes is None else f"{each.memory_bytes / 2**30:.1f} GiB"
                since = "-" if each.started is None else age(clock - each.started)
                kind = "" if each.kind == "compute" else " (graphics)"
                found.append(
                    (
                        device.label,
                        str(each.pid),
                        each.user or "?",
                        run,
                        used,
                        since,
                        (each.command or "?") + kind,
                    )
                )
            if lease and not device.processes:
                since = age(clock - lease.since)
                found.append(
                    (
                        device.label,
                        str(lease.pid or "-"),
                        lease.user or "?",
                        lease.run,
                        "-",
                        since,
                        "no process on it",
                    )
                )
            elif state(device) == "busy" and not device.processes:
                found.append((device.label, "?", "?", "", "-", "-", device.busy))
        if not found:
            return [Text("no process uses these GPUs", "dim")]
        headings = ("gpu", "pid", "user", "run", "memory", "for", "command")
        cells = [[Text(each[number]) for each in found] for number in range(len(headings))]
        right = ("pid", "memory", "for")
        drops = {"for": 2, "run": 1}
        made = [
            Column(
                name,
                column,
                name in right,
                drop=drops.get(name, 0),
                shrink=name in ("command", "run", "user"),
                least=8,
            )
            for name, column in zip(headings, cells, strict=True)
            if name != "run" or any(cell.plain for cell in column)
        ]
        return table(made, columns, self._marks.more)

    # -- help

    def _help(self, columns: int) -> list[Text]:
        lines = [Text("tflaunch gpus --watch", "bold"), Text()]
        for keys, meaning in HELP:
            words = wrapped_words(meaning.split(), max(20, columns - 12))
            lines += [
                Text.assemble((f"{'' if number else keys:<11} ", "bold"), line)
                for number, line in enumerate(words)
            ]
        column = written(REFRESHES * self._every_s)
        told = (
            f"Each graph shows 0 to 100 %; a column is the mean of {column}. The graphs begin with this command: "
            "tflaunch keeps no history of the last hours. A host's use is the mean of its GPUs, its memory their sum."
        )
        return [*lines, Text(), *(Text(line) for line in wrapped_words(told.split(), columns))]


def _lines(row: HostRow, *, always: bool = False) -> list[_Line]:
    lines = [_Line(row)]
    if row.machine is not None and (row.shows_gpus or always):
        for gpu in row.machine.facts.gpus:
            lines += [_Line(row, gpu, device) for device in (gpu, *gpu.mig)]
    return lines
