"""Draws the GPUs of many hosts for people: as wide as the terminal, and with `--watch` as high.

No line wraps on the terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.cells import cell_len

from tflaunch.console.gpus_states import STYLES, summary_lines
from tflaunch.console.gpus_table import GpuTable
from tflaunch.console.gpus_topology import legend_lines, matrix_lines, nic_lines
from tflaunch.console.pen import UNICODE, Marks
from tflaunch.console.safe_text import Text, wrapped_words
from tflaunch.console.text_table import cut, fitted
from tflaunch.hosts import fold
from tflaunch.planning.gpu_words import advice
from tflaunch.planning.inventory import Gpu
from tflaunch.ssh.refused_keys import some_lines, together
from tflaunch.survey.gpu_overview import IN_ORDER, Machine, Overview, short_name, state
from tflaunch.text.numbers import counted
from tflaunch.text.safe import one_line
from tflaunch.text.times import age

STALE_S = 10.0  # older facts are marked as old
_LEAST_COLUMNS = 20
_NAME_COLUMNS = 20  # at most, in the view with one line for each host


class GpusView:
    """Draws an overview for a terminal that is `columns` wide."""

    def __init__(self, columns: int, marks: Marks = UNICODE) -> None:
        self._columns = max(_LEAST_COLUMNS, columns)
        self._marks = marks

    def page(self, overview: Overview, *, processes: bool = True, airy: bool = True) -> list[Text]:
        """Draw everything; `processes`: a line for each; `airy`: headings, and empty lines between hosts."""
        lines = self._machines(overview, processes, airy)
        for part in (self._queue(overview), self._troubles(overview), self.summary(overview)):
            if part and lines and airy:
                lines.append(Text())
            lines += part
        return self._cut(lines)

    def frame(self, overview: Overview, title: str, rows: int) -> list[Text]:
        """Draw as much of the page as fits a window that is `rows` high; the summary always."""
        head = self._cut([Text(title, "dim")])
        room = rows - len(head)
        troubles = self._troubles(overview, hints=False)
        total = self.summary(overview)[-1:]
        body = [*self._hosts_only(overview), *troubles]
        if (
            sum(len(machine.gpus_or_instances) for machine in overview.machines) < room
        ):  # else the table cannot fit
            for options in ({}, {"processes": False}, {"processes": False, "airy": False}):
                lines = self.page(overview, **options)
                if len(lines) <= room:
                    return head + lines
            gpus = [*self._machines(overview, processes=False, airy=False), *troubles]
            body = gpus if len(gpus) + len(total) <= room else body
        if len(body) + len(total) > room:
            fitting = max(0, room - len(total) - 1)
            hidden = (
                f"{self._marks.more} {len(body) - fitting} more lines: enlarge the window, or use --free, "
            )
            hidden += "--hosts, --gpu-model"
            body = [*body[:fitting], Text(hidden, "dim")]
        return self._cut([*head, *body, *total])[:rows]

    def topology(self, overview: Overview) -> list[Text]:
        """For each host a matrix of how its GPUs are connected, and its networks."""
        lines: list[Text] = []
        for machine in overview.machines:
            lines += [Text()] if lines else []
            lines.append(self.host_line(machine))
            lines += matrix_lines(machine.facts.gpus, self._columns, self._marks)
            lines += nic_lines(machine.facts, self._marks)
        if any(gpu.links for machine in overview.machines for gpu in machine.facts.gpus):
            lines += [Text(), *legend_lines(self._columns - 4)]
        troubles = self._troubles(overview)
        return self._cut([*lines, *([Text()] if lines and troubles else []), *troubles])

    def summary(self, overview: Overview) -> list[Text]:
        """How many GPUs are free, busy, leased and broken."""
        return summary_lines(overview, self._columns, self._marks)

    # -- hosts

    def _machines(self, overview: Overview, processes: bool, airy: bool) -> list[Text]:
        gpus = GpuTable(overview, self._columns, self._marks, processes=processes)
        lines = gpus.headings() if airy else []
        for number, machine in enumerate(overview.machines):
            lines += [Text()] if airy and number else []
            lines += [self.host_line(machine), *self._notes(machine), *gpus.rows_of(machine)]
            if airy:
                lines += self._advice(machine)
        return lines

    def _advice(self, machine: Machine) -> list[Text]:
        """What to do about the GPUs that are broken."""
        ways: dict[str, list[str]] = {}
        for gpu in machine.facts.gpus:
            if way := advice(gpu.error):
                ways.setdefault(way, []).append(gpu.label)
        told = [f"{self._marks.next} GPU {', '.join(labels)}: {way}" for way, labels in ways.items()]
        return [line for text in told for line in self._wrapped(text, "cyan")]

    def host_line(self, machine: Machine) -> Text:
        """The host's name, its free GPUs, and as many further facts as there is room for."""
        facts = machine.facts
        line = Text.assemble((" = ".join(machine.names), "bold"))
        if machine.error:
            return line
        line.append(f"  {machine.free} of {machine.total} free", STYLES["free"] if machine.free else "dim")
        free, total = facts.memory_available_bytes / 2**30, facts.memory_bytes / 2**30
        parts = [
            self._models(facts.gpus),
            f"driver {facts.driver}" if facts.driver else "",
            f"CUDA {facts.cuda}" if facts.cuda else "",
            f"load {facts.load:.1f}/{facts.cores}",
            f"{free:.0f} of {total:.0f} GiB memory free",
        ]
        gap = "  "
        for part in filter(None, map(one_line, parts)):
            if line.cell_len + len(gap) + cell_len(part) > self._columns:
                break
            line.append(gap + part, "dim")
            gap = f" {self._marks.dot} "
        return line

    def _models(self, gpus: Iterable[Gpu]) -> str:
        models = Counter(short_name(gpu.name) for gpu in gpus if gpu.name)
        return ", ".join(
            model if count == 1 else f"{count} {self._marks.times} {model}" for model, count in models.items()
        )

    def _notes(self, machine: Machine) -> list[Text]:
        notes = []
        if machine.error:
            ago = f"  (its GPUs were seen {age(machine.age_s)} ago)"
            notes.append(Text.assemble(self._bad(), machine.error.message, (ago, "dim")))
        elif machine.age_s > STALE_S:
            notes.append(
                Text(f"{self._marks.warn} {age(machine.age_s)} old: the host answers slowly", "yellow")
            )
        if machine.facts.gpu_note:
            notes.append(Text(f"{self._marks.warn} {machine.facts.gpu_note}", "yellow"))
        return [Text("  ").append_text(note) for note in notes]

    def _hosts_only(self, overview: Overview) -> list[Text]:
        """A line for each host, a sign for each GPU."""
        names = [Text.assemble((" = ".join(machine.names), "bold")) for machine in overview.machines]
        width = min(_NAME_COLUMNS, max((name.cell_len for name in names), default=0))
        lines = []
        for machine, name in zip(overview.machines, names, strict=True):
            line = fitted(name, width, self._marks.more).append("  ")
            if machine.error:
                lines.append(line.append_text(self._bad()).append(machine.error.message))
                continue
            for device in machine.gpus_or_instances:
                line.append(self._marks.gpus[state(device)], STYLES[state(device)])
            users = Counter(
                each.user or "?" for device in machine.gpus_or_instances for each in device.processes
            )
            line.append(f"  {machine.free:2} free", STYLES["free"] if machine.free else "dim")
            line.append(f"  {self._models(machine.facts.gpus)}", "dim")
            lines.append(line.append("  " + " ".join(users)))
        return lines

    # -- the queue, and hosts without GPUs to show

    def _troubles(self, overview: Overview, *, hints: bool = True) -> list[Text]:
        """The hosts that have no GPUs to show, grouped by reason."""
        lines = []
        for reason, hosts in overview.gpuless.items():
            if reason in IN_ORDER:
                lines.append(Text.assemble((fold(hosts), "bold"), (f": {reason}", "dim")))
            else:
                lines += self._reason(Text(f"{self._marks.warn} ", "yellow"), hosts, reason)
                if hints and (way := advice(reason)):
                    lines += self._wrapped(f"{self._marks.next} {way}", "cyan")
        for failed in together(overview.failures):
            lines += self._reason(self._bad(), failed.hosts, failed.cause)
            if hints:
                for line in some_lines(failed.lines):
                    lines += self._wrapped(line, "")
            if failed.hint and hints:
                lines += self._wrapped(f"{self._marks.next} {failed.whole_hint}", "cyan")
        if overview.waiting:
            lines.append(Text(f"waiting for {fold(overview.waiting)}", "dim"))
        return lines

    def _queue(self, overview: Overview) -> list[Text]:
        """The runs that wait for GPUs, in the order of the queue."""
        clock = max((machine.facts.clock for machine in overview.machines), default=0.0)
        lines = []
        for number, each in enumerate(overview.queue, 1):
            line = Text.assemble((f"{number}. ", "dim"), (each.holder, "bold"))
            lines.append(
                line.append(f" has waited {age(clock - each.since)} for {counted(each.wants, 'GPU')}")
            )
        return lines

    def _reason(self, mark: Text, hosts: Iterable[str], reason: str) -> list[Text]:
        line = Text.assemble(mark, (fold(hosts), "bold"))
        reason = one_line(" ".join(reason.split()))
        if line.cell_len + 2 + cell_len(reason) <= self._columns:
            return [line.append(f"  {reason}")]
        return [line, *self._wrapped(reason, "")]

    def _bad(self) -> Text:
        return Text(f"{self._marks.bad} ", STYLES["broken"])

    def _wrapped(self, text: str, style: str) -> list[Text]:
        words = one_line(" ".join(text.split())).split()
        return [Text(f"    {line}", style) for line in wrapped_words(words, self._columns - 4)]

    def _cut(self, lines: Iterable[Text]) -> list[Text]:
        for line in lines:
            line.rstrip()
        return [cut(line, self._columns, self._marks.more) for line in lines]
