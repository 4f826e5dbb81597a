"""The table of the GPUs of many hosts: a row for each GPU and MIG instance, and who uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tflaunch.console.gpus_states import NARROW, STYLES, WIDE, WIDER, WIDEST, WORDS
from tflaunch.console.pen import Marks
from tflaunch.console.safe_text import Text, stacked
from tflaunch.console.text_table import Column, Table, fitted
from tflaunch.planning.inventory import NO_INSTANCE, PROHIBITED, Gpu, GpuOrInstance, GpuProcess
from tflaunch.survey.gpu_overview import Machine, Overview, brief_name, short_command, short_name, state
from tflaunch.text.numbers import counted
from tflaunch.text.safe import one_line
from tflaunch.text.times import age

_ALARMING = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake")  # power_cap is normal for a busy GPU
_REASONS = {PROHIBITED: ("PROHIBITED mode", "prohibited"), NO_INSTANCE: ("no MIG instance", "no part")}
_USER_COLUMNS = 12  # at most
_MIXED_COLUMNS = 76  # a table with a column of models has room for all others


@dataclass(frozen=True)
class _Row:
    """A GPU, or a MIG instance."""

    machine: Machine
    gpu: Gpu
    part: GpuOrInstance
    uses: Sequence[Text]  # a line for each


class GpuTable:
    """A table with as many columns as there is room for; the last one, who uses each GPU, takes the rest.

    processes: each has a line of its own; else one line has their number and the first of them.
    """

    def __init__(self, overview: Overview, columns: int, marks: Marks, *, processes: bool) -> None:
        self._columns, self._marks = columns, marks
        self._gap = " " if columns < WIDEST else "  "
        self._roomy = columns >= NARROW
        self._user_columns = _user_columns(overview)
        # Who uses a GPU matters more than how full it is, drawn, and how warm.
        self._crowded = columns < _MIXED_COLUMNS and _is_mixed(overview)
        self._rows = self._made_rows(overview, processes)
        self._numbers: dict[int, list[int]] = {}  # id() of a machine -> the numbers of its rows
        for number, row in enumerate(self._rows):
            self._numbers.setdefault(id(row.machine), []).append(number)
        margin = " " if self._roomy else ""
        self._table = Table(self._chosen(overview), gap=self._gap, more=marks.more, margin=margin)

    def headings(self) -> list[Text]:
        """Return the line above all rows, where there is room."""
        return [self._table.heading()] if self._roomy and self._rows else []

    def rows_of(self, machine: Machine) -> list[Text]:
        """Return the lines of a host's GPUs."""
        return [line for number in self._numbers.get(id(machine), ()) for line in self._table.row(number)]

    def _made_rows(self, overview: Overview, processes: bool) -> list[_Row]:
        rows = []
        for machine in overview.machines:
            for gpu in machine.facts.gpus if not machine.error else ():
                parts: tuple[GpuOrInstance, ...] = (gpu, *gpu.mig)
                for part in parts:
                    uses = self._uses(part, machine.facts.clock)
                    if not processes and len(uses) > 1:
                        uses = [Text.assemble((f"{len(uses)}{self._marks.times} ", "bold"), uses[0])]
                    rows.append(_Row(machine, gpu, part, uses))
        return rows

    def _chosen(self, overview: Overview) -> list[Column]:
        """Return the columns that there is room for, from left to right."""
        rows, width = self._rows, self._columns
        mixed = _is_mixed(overview)
        bar = (
            14
            if width >= WIDEST
            else 10
            if width >= WIDE
            else 0
            if self._crowded
            else 8
            if width >= NARROW
            else 6
        )
        columns = [
            self._column("gpu", [Text(row.part.label, "bold") for row in rows], right=True),
            self._column("state", [self._state(row.part) for row in rows]),
        ]
        if mixed:
            columns.append(self._column("model", [self._model(row) for row in rows]))
        if bar:
            columns.append(self._column("memory", [self._memory_bar(row.part, bar) for row in rows]))
        memory = [self._memory(row.part) for row in rows]
        columns.append(self._column("" if bar else "memory", memory, right=True))
        gpus = [row.gpu if row.part is row.gpu else None for row in rows]
        shares = [gpu.utilization_percent if gpu else None for gpu in gpus]
        if width >= WIDER:
            bars = [self._bar(None if s is None else s / 100, bar - 4, "#56b4e9") for s in shares]
            columns.append(self._column("util", bars))
        percent = [_number(share, "%") for share in shares]
        columns.append(self._column("" if width >= WIDER else "util", percent, right=True))
        if width >= NARROW and not self._crowded:
            degrees = [_number(gpu.temperature_c if gpu else None, self._marks.degree) for gpu in gpus]
            columns.append(self._column("temp", degrees, right=True))
        if width >= WIDE:
            power = [_power(gpu, width >= WIDEST) for gpu in gpus]
            columns.append(self._column("power", power, right=True))
        return [*columns, Column(self._uses_heading(), [stacked(row.uses) for row in rows])]

    def _column(self, heading: str, cells: Sequence[Text], right: bool = False) -> Column:
        return Column(heading if self._roomy else "  ", cells, right)  # blanks make it two wide at least

    def _model(self, row: _Row) -> Text:
        if self._columns < NARROW:
            return self._fitted(Text(brief_name(row.part.name)), 8)
        name = short_name(row.part.name)
        name = name.removeprefix(short_name(row.gpu.name)).strip() or name
        return self._fitted(Text(name), min(cell_len(one_line(name)), 22 if self._columns >= WIDE else 14))

    def _state(self, part: GpuOrInstance) -> Text:
        found = state(part)
        return Text(f"{self._marks.gpus[found]} {WORDS[found]:6}", STYLES[found])

    def _memory(self, part: GpuOrInstance) -> Text:
        if not part.memory_total_bytes:
            return Text("-", "dim")
        used, total = part.memory_used_bytes / 2**30, f"{part.memory_total_bytes / 2**30:.0f}"
        digits = len(total)  # as wide for an empty GPU, so that the columns do not move when it fills
        if self._columns < NARROW or self._crowded:
            return Text(f"{used:{digits}.0f}/{total}G")
        return Text(f"{used:{digits + 2}.1f}/{total} GiB")

    def _memory_bar(self, part: GpuOrInstance, width: int) -> Text:
        share = part.memory_used_bytes / part.memory_total_bytes if part.memory_total_bytes else None
        return self._bar(share, width, STYLES[state(part)])

    def _bar(self, share: float | None, width: int, style: str) -> Text:
        if share is None:
            return Text(" " * width)
        halves = min(2 * width, max(round(share * 2 * width), 1 if share > 0.02 else 0))
        drawn = self._marks.full * (halves // 2) + self._marks.half * (halves % 2)
        return Text.assemble((drawn, style), (self._marks.empty * (width - len(drawn)), "dim"))

    # -- who uses it

    def _uses_heading(self) -> str:
        words = ["user".ljust(self._user_columns), "for"]
        words += ["memory"] if self._columns >= WIDE else []
        return self._gap.join([*words, "command"])

    def _uses(self, part: GpuOrInstance, clock: float) -> list[Text]:
        """Return a line for each use of a GPU, the largest process first, and for each fault of the GPU."""
        if isinstance(part, Gpu) and part.error:
            return [Text(part.error, STYLES["broken"])]
        if isinstance(part, Gpu) and part.mig:
            return [Text(counted(len(part.mig), "instance"), "dim")]
        uses = []
        if part.lease is not None:
            run = f"pid {part.lease.pid} has locked it" if part.lease.pid else f"run {part.lease.run}"
            uses.append(self._use(part.lease.user, clock - part.lease.since, None, run))
        elif part.promised is not None and state(part) == "promised":
            run = f"run {part.promised.run} waits for it"
            uses.append(self._use(part.promised.user, clock - part.promised.since, None, run))
        ordered = sorted(part.processes, key=lambda each: (each.kind != "compute", -(each.memory_bytes or 0)))
        uses += [self._process(each, clock) for each in ordered]
        if not uses and state(part) == "busy":
            uses.append(Text(self._why_busy(part), STYLES["busy"]))
        if isinstance(part, Gpu):
            uses += [Text(f"{self._marks.warn} {note}", "yellow") for note in complaints(part)]
        return uses

    def _why_busy(self, part: GpuOrInstance) -> str:
        if self._columns >= WIDE:
            return part.busy
        if part.lease_error:
            return "no lease" if self._columns < NARROW else "cannot be leased"
        brief, briefer = _REASONS.get(part.busy, ("unseen process", "unseen"))
        return briefer if self._columns < NARROW else brief

    def _process(self, process: GpuProcess, clock: float) -> Text:
        command = short_command(process.command) or f"pid {process.pid}"
        seconds = None if process.started is None else clock - process.started
        text = self._use(process.user, seconds, process.memory_bytes, command)
        if process.kind != "compute":
            text.append(" (graphics)", "dim")
        return text

    def _use(self, user: str, seconds: float | None, memory_bytes: int | None, command: str) -> Text:
        parts = [
            self._fitted(Text(user or "?", "bold"), self._user_columns),
            Text(("-" if seconds is None else age(seconds)).rjust(3)),
        ]
        if self._columns >= WIDE:
            used = "-" if memory_bytes is None else f"{memory_bytes / 2**30:.1f}G"
            parts.append(Text(used.rjust(6)))
        if self._columns >= NARROW:
            parts.append(Text(command, "dim"))
        return Text(self._gap).join(parts)

    def _fitted(self, text: Text, width: int) -> Text:
        return fitted(text, width, self._marks.more)


def _user_columns(overview: Overview) -> int:
    every = [device for machine in overview.machines for device in machine.gpus_or_instances]
    users = {each.user for device in every for each in device.processes}
    users |= {claim.user for device in every for claim in (device.lease, device.promised) if claim}
    return min(_USER_COLUMNS, max(cell_len(one_line(user)) for user in users | {"user"}))


def _is_mixed(overview: Overview) -> bool:
    """Return whether a host has GPUs of several models, or with MIG instances."""
    return any(
        len({gpu.name for gpu in machine.facts.gpus if gpu.name}) > 1
        or any(gpu.mig_mode for gpu in machine.facts.gpus)
        for machine in overview.machines
    )


def complaints(gpu: Gpu) -> list[str]:
    """Describe the faults of a GPU that works in spite of them."""
    found = []
    if gpu.ecc_errors:
        found.append(f"{counted(gpu.ecc_errors, 'ECC error')}: its results may be wrong")
    if slowed := [each.replace("_", " ") for each in gpu.slowed_by if each in _ALARMING]:
        found.append(f"slowed down: {', '.join(slowed)}")
    return found


def _number(value: int | None, unit: str) -> Text:
    return Text("-", "dim") if value is None else Text(f"{value:3}{unit}")


def _power(gpu: Gpu | None, limit: bool) -> Text:
    if gpu is None or gpu.power_w is None:
        return Text("-", "dim")
    most = f"/{gpu.power_limit_w:.0f}" if limit and gpu.power_limit_w else ""
    return Text(f"{gpu.power_w:3.0f}{most} W")
