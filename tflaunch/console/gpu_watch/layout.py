"""The lines of hosts and GPUs with their graphs: as many columns as there is room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tflaunch.console.gpu_watch.history import Pair, Value, mean_use
from tflaunch.console.gpu_watch.host_rows import WAITING, HostRow, users
from tflaunch.console.gpus_states import STYLES, WORDS
from tflaunch.console.gpus_table import complaints
from tflaunch.console.graph import graph
from tflaunch.console.pen import BUSY, WARN, Marks
from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import cut, fitted
from tflaunch.planning.inventory import Gpu, GpuOrInstance
from tflaunch.survey.gpu_overview import brief_name, short_command, short_name, state
from tflaunch.text.numbers import counted
from tflaunch.text.times import age

STALE_S = 10.0  # older facts are marked as old
ROOMY, WIDE = 80, 110  # columns
_LEAST_GRAPH, _MOST_GRAPH = 4, 60
_MEMORY = "#cc79a7"  # of the graphs
_PERCENT = 4
_GIB = 2**30


class Layout:
    """The columns of one window: `> host 3/8 | use % | memory GiB | temperature | who`."""

    def __init__(self, columns: int, marks: Marks, rows: Iterable[HostRow]) -> None:
        self.columns, self.marks = columns, marks
        self.roomy, self.wide = columns >= ROOMY, columns >= WIDE
        names, digits, model = 4, 2, 0
        for row in rows:
            names = max(names, Text(row.title).cell_len)
            if row.machine:
                total = sum(gpu.memory_total_bytes for gpu in row.machine.facts.gpus)
                digits = max(digits, len(_gib(total)))
                model = max(
                    model, *(Text(brief_name(gpu.name)).cell_len for gpu in row.machine.facts.gpus), 0
                )
        free = len(" 3 of 8 free") if self.roomy else len(" 3/8")
        # A GPU's line has its model there, too: at most as much of it as a host's name may take.
        names = max(names + free, len("  0    + leased") + model if self.roomy else 0)
        self.left = max(16 if self.roomy else 12, min(names, 32 if self.wide else 24 if self.roomy else 16))
        self._digits = min(6, digits)
        self.memory = 2 * self._digits + (7 if self.wide else 2)  # "71.2/80 GiB" or "71/80G"
        self.temperature = 4
        self.who = 9 if not self.roomy else max(16, columns // 4)
        gaps = 6
        room = columns - 1 - self.left - 1 - _PERCENT - self.memory - self.temperature - self.who - gaps
        self.graph = max(_LEAST_GRAPH, min(_MOST_GRAPH, room // 2))
        self.who = max(0, self.who + room - 2 * self.graph)  # also what no graph takes

    def heading(self) -> Text:
        """Return the names of the columns."""
        cells = [
            (" host", self.left + 1, False),
            ("use", self.graph + 1 + _PERCENT, False),
            ("memory", self.graph + 1 + self.memory, False),
            ("temp", self.temperature, True),
            ("who", self.who, False),
        ]
        line = Text(" ", "dim").join(fitted(Text(word), width, "", right) for word, width, right in cells)
        line.stylize("dim")
        return self._cut(line)

    def host(self, row: HostRow, pair: Pair, column: int, *, selected: bool = False) -> Text:
        """Return the line of a host: its GPUs in sum, or why it has none to show."""
        line = Text(">" if selected else " ", "bold")
        machine = row.machine
        style = "bold reverse" if selected else "bold"
        if machine is None or not row.shows_gpus:
            name = fitted(Text(row.title, style), self.left, self.marks.more)
            return self._cut(line.append_text(name).append(" ").append_text(self._why(row)))
        words = (
            f" {machine.free} of {machine.total} free" if self.roomy else f" {machine.free}/{machine.total}"
        )
        free = Text(words, STYLES["free"] if machine.free else "dim")
        name = fitted(Text(row.title, style), max(1, self.left - free.cell_len), self.marks.more)
        facts = machine.facts
        degrees = [gpu.temperature_c for gpu in facts.gpus if gpu.temperature_c is not None]
        use = mean_use(facts)
        cells = self._values(
            pair,
            column,
            percent=None if use is None else round(use * 100),
            memory=(
                sum(gpu.memory_used_bytes for gpu in facts.gpus),
                sum(gpu.memory_total_bytes for gpu in facts.gpus),
            ),
            degrees=max(degrees, default=None),
            who=self._host_uses(row),
        )
        return self._cut(line.append_text(name).append_text(free).append(" ").append_text(cells[0]))

    def device(
        self, gpu: Gpu, device: GpuOrInstance, pair: Pair, *, column: int, clock: float, height: int = 1
    ) -> list[Text]:
        """Return the lines of a GPU or MIG instance, `height` of them."""
        found = state(device)
        word = f"{self.marks.gpus[found]} {WORDS[found]}" if self.left >= 15 else self.marks.gpus[found]
        label = Text.assemble(f"  {device.label:<4} ", (word, STYLES[found]))
        if self.roomy and isinstance(device, Gpu):
            label.append(f" {brief_name(device.name)}", "dim")
        whole = device is gpu
        lines = self._values(
            pair,
            column,
            percent=gpu.utilization_percent if whole else None,
            memory=(device.memory_used_bytes, device.memory_total_bytes),
            degrees=gpu.temperature_c if whole else None,
            who=self._uses(gpu, device, clock),
            height=height,
        )
        left = [fitted(label, self.left + 1, self.marks.more)]
        left += [Text(" " * (self.left + 1)) for _ in range(height - 1)]
        return [
            self._cut(first.append(" ").append_text(line)) for first, line in zip(left, lines, strict=True)
        ]

    def _values(
        self,
        pair: Pair,
        column: int,
        *,
        percent: int | None,
        memory: tuple[int, int],
        degrees: int | None,
        who: Text,
        height: int = 1,
    ) -> list[Text]:
        """Return the cells right of the name; the numbers are beside the top of the graphs."""
        numbers = (
            _number(percent, "%", _PERCENT),
            self._memory(*memory),
            _number(degrees, self.marks.degree, self.temperature),
        )
        lines = []
        use, share = (self._graph(each.until(column, self.graph), height) for each in (pair.use, pair.memory))
        for row in range(height):
            line = Text(use[row], BUSY).append(" ")
            line.append_text(numbers[0] if not row else Text(" " * _PERCENT))
            line.append(" ").append_text(Text(share[row], _MEMORY)).append(" ")
            line.append_text(numbers[1] if not row else Text(" " * self.memory))
            if not row:
                line.append(" ").append_text(numbers[2]).append(" ").append_text(who)
            lines.append(line)
        return lines

    def _graph(self, values: Sequence[Value], height: int) -> list[str]:
        return graph(values, self.marks.blocks, height)

    def _memory(self, used: int, total: int) -> Text:
        if not total:
            return Text("-".rjust(self.memory), "dim")
        unit = " GiB" if self.wide else "G"
        shown = f"{used / _GIB:.1f}" if self.wide else _gib(used)
        return fitted(Text(f"{shown}/{_gib(total)}{unit}"), self.memory, self.marks.more, right=True)

    def _why(self, row: HostRow) -> Text:
        if row.error is not None:
            text = Text.assemble((f"{self.marks.bad} ", STYLES["broken"]), row.error.message)
            if row.machine is not None:
                text.append(f"  (its GPUs were seen {age(row.machine.age_s)} ago)", "dim")
            return text
        return Text(row.reason, "dim" if row.reason == WAITING else "")

    def _host_uses(self, row: HostRow) -> Text:
        machine = row.machine
        if machine is None:
            return Text()
        if machine.age_s > STALE_S:
            return Text(f"{self.marks.warn} {age(machine.age_s)} old: it answers slowly", WARN)
        if machine.facts.gpu_note:
            return Text(f"{self.marks.warn} {machine.facts.gpu_note}", WARN)
        text = Text(" ").join(
            Text(f"{name} {number}") for name, number in users(machine.gpus_or_instances).most_common()
        )
        models = Counter(short_name(gpu.name) for gpu in machine.facts.gpus if gpu.name)
        kinds = ", ".join(f"{number} {self.marks.times} {name}" for name, number in models.items())
        return text.append(f"{'  ' if text.plain else ''}{kinds}", "dim")

    def _uses(self, gpu: Gpu, device: GpuOrInstance, clock: float) -> Text:
        """Who uses a device, and what is wrong with it."""
        if isinstance(device, Gpu) and device.error:
            return Text(device.error, STYLES["broken"])
        text = Text()
        if device is gpu:
            for note in complaints(gpu):
                text.append(f"{self.marks.warn} {note} ", WARN)
        if isinstance(device, Gpu) and device.mig:
            return text.append(counted(len(device.mig), "instance"), "dim")
        text.append(" ".join(users([device])), "bold")
        found = state(device)
        if device.lease is not None:
            text.append(f" run {device.lease.run}" if device.lease.run else " has locked it")
        elif found == "promised" and device.promised is not None:
            text.append(f"{device.promised.user or '?'} waits for it", STYLES["promised"])
        elif found == "busy" and not device.processes:
            text.append(device.busy, STYLES["busy"])
        if device.processes:
            first = max(device.processes, key=lambda each: each.memory_bytes or 0)
            if first.started is not None:
                text.append(f" {age(clock - first.started)}", "dim")
            text.append(f" {short_command(first.command) or f'pid {first.pid}'}", "dim")
        return text

    def _cut(self, line: Text) -> Text:
        line.rstrip()
        return cut(line, self.columns, self.marks.more)


def _gib(size: int) -> str:
    return f"{size / _GIB:.0f}"


def _number(value: int | None, unit: str, width: int) -> Text:
    if value is None:
        return Text("-".rjust(width), "dim")
    return fitted(Text(f"{value}{unit}"), width, "", right=True)
