"""The cards of many hosts for people: as wide as the terminal, and in `--watch` as high.

No state is told by colour alone: each has its mark and its word.  Every line is one line of the terminal.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tflaunch.console.lines import Text
from tflaunch.hosts import fold
from tflaunch.inputs.times import age
from tflaunch.planning.inventory import NO_INSTANCE, PROHIBITED, Device, Gpu, GpuProcess
from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions.log_lines import one_line
from tflaunch.survey.gpus import (
    NO_CARD,
    NO_DRIVER,
    STATES,
    Machine,
    Overview,
    State,
    brief_name,
    short_command,
    short_name,
    state,
)

NARROW, WIDE, WIDER, WIDEST = 60, 100, 120, 140  # columns
STALE_S = 10.0  # facts that are older say so

# Okabe and Ito's colours, told apart by colour-blind eyes.
_STYLES: Mapping[State, str] = {
    "free": "#009e73",
    "busy": "#e69f00",
    "leased": "#56b4e9",
    "promised": "#3b82c4",
    "broken": "bold #d55e00",
    "mig": "#cc79a7",
}
_WORDS: Mapping[State, str] = {**{each: each for each in STATES}, "mig": "MIG"}
_ALARMING = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake")  # power_cap is how a busy card is
_REASONS = {PROHIBITED: ("PROHIBITED mode", "prohibited"), NO_INSTANCE: ("no MIG instance", "no part")}

_TOPOLOGY_WORDS = {
    "NV#": "so many NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the PCIe host bridge",
    "NODE": "within one NUMA node",
    "SYS": "between NUMA nodes",
}


@dataclass(frozen=True)
class Marks:
    """The few signs in use."""

    states: Mapping[State, str]
    full: str
    half: str
    empty: str
    times: str
    degree: str
    dot: str
    more: str
    bad: str
    warn: str
    next: str


UNICODE = Marks(
    {"free": "○", "busy": "●", "leased": "◐", "promised": "◌", "broken": "✗", "mig": "◇"},
    *("━", "╸", "─", "\u00d7", "°", "·", "…", "✗", "!", "→"),
)
NEEDED = "○●◐◌✗◇━╸─°…→"  # what an encoding must have for them
ASCII = Marks(
    {"free": "o", "busy": "*", "leased": "+", "promised": ":", "broken": "x", "mig": "#"},
    *("=", "=", "-", "x", "C", "-", "~", "x", "!", "->"),
)


@dataclass(frozen=True)
class _Column:
    """One column of the table of cards; a bar takes no room of its own until it is drawn."""

    heading: str
    cells: Sequence[Text]
    right: bool = False

    @functools.cached_property
    def width(self) -> int:
        return max((each.cell_len for each in self.cells), default=0)


@dataclass(frozen=True)
class _Row:
    """A card or a MIG instance; `who` has its line for each use of it."""

    machine: Machine
    gpu: Gpu
    part: Device
    who: tuple[Text, ...]


class CardsView:
    """Draws an overview for a terminal that is `columns` wide."""

    def __init__(self, columns: int, marks: Marks = UNICODE) -> None:
        self._columns = max(20, columns)
        self._marks = marks
        self._gap = " " if columns < WIDEST else "  "

    # -- pages

    def page(self, overview: Overview, *, processes: bool = True, airy: bool = True) -> list[Text]:
        """Everything; `processes`: each has a line of its own, `airy`: with a line between hosts."""
        lines = self._machines(overview, processes, airy)
        for part in (self._queue(overview), self._troubles(overview), self.summary(overview)):
            if part and lines and airy:
                lines.append(Text())
            lines += part
        return [self._cut(line) for line in lines]

    def frame(self, overview: Overview, title: str, rows: int) -> list[Text]:
        """The same for a window that is `rows` high: with as much as fits, the summary always."""
        head = [self._cut(Text(title, "dim"))]
        room = rows - len(head)
        troubles = self._troubles(overview, hints=False)
        total = self.summary(overview)[-1:]
        body = [*self._hosts_only(overview), *troubles]
        if sum(len(machine.devices) for machine in overview.machines) < room:  # else not worth the attempt
            for options in ({}, {"processes": False}, {"processes": False, "airy": False}):
                lines = self.page(overview, **options)
                if len(lines) <= room:
                    return head + lines
            cards = [*self._machines(overview, processes=False, airy=False), *troubles]
            body = cards if len(cards) + len(total) <= room else body
        if len(body) + len(total) > room:
            fitting = max(0, room - len(total) - 1)
            hidden = f"{self._marks.more} {len(body) - fitting} lines more: a higher window, or --free, --host, --model"
            body = [*body[:fitting], Text(hidden, "dim")]
        return [self._cut(line) for line in (*head, *body, *total)][:rows]

    def topology(self, overview: Overview) -> list[Text]:
        """For each host a matrix of how its cards are connected."""
        lines: list[Text] = []
        for machine in overview.machines:
            lines += [
                *([Text()] if lines else []),
                self._host_line(machine),
                *self._matrix(machine.facts.gpus),
            ]
        if any(gpu.links for machine in overview.machines for gpu in machine.facts.gpus):
            words = [f"{word} {meaning}" for word, meaning in _TOPOLOGY_WORDS.items()]
            lines += [Text(), *(Text(line, "dim") for line in self._wrap(words))]
        troubles = self._troubles(overview)
        return [self._cut(line) for line in (*lines, *([Text()] if lines and troubles else []), *troubles)]

    def summary(self, overview: Overview) -> list[Text]:
        """How many are free, busy, leased and broken: in all, and by model where there are several."""
        models = overview.models
        if not models:
            none = f"no card fits; {overview.hidden} do not" if overview.hidden else "no cards"
            return [] if overview.waiting else [Text(none, "bold")]
        counts = overview.counts
        shown = [each for each in STATES if counts[each] or each in ("free", "busy")]
        widths = {each: max(len(str(count[each])) for count in (counts, *models.values())) for each in shown}

        def line(count: Counter[State], name: str, style: str, words: bool = True) -> Text:
            parts = []
            for each in shown:
                number = str(count[each]).rjust(widths[each])
                word = f" {_WORDS[each]}" if words else ""
                bright = _STYLES[each] if count[each] else "dim"
                parts.append(Text(f"{self._marks.states[each]} {number}{word}", bright))
            return Text(gap).join([*parts, Text(name, style)])

        roomy = self._columns >= NARROW  # else the last line has the words
        gap = "  " if roomy else " "
        hosts = len(overview.machines)
        total = f"of {counts.total()}" + (f" on {hosts} host{'' if hosts == 1 else 's'}" if roomy else "")
        total += f", {overview.hidden} not shown" if overview.hidden else ""
        if len(models) == 1:
            return [line(counts, f"{total}  {next(iter(models))}", "bold")]
        of = len(str(counts.total()))
        by_model = [
            line(count, f"of {count.total():{of}}  {model}", "dim", roomy) for model, count in models.items()
        ]
        return [*by_model, line(counts, total, "bold")]

    # -- hosts

    def _machines(self, overview: Overview, processes: bool, airy: bool) -> list[Text]:
        rows = self._rows(overview, processes)
        columns = self._chosen(rows, overview)
        lines: list[Text] = []
        if airy and rows and self._columns >= NARROW:
            lines.append(self._headings(columns, overview))
        told = 0
        for number, machine in enumerate(overview.machines):
            if airy and number:
                lines.append(Text())
            lines += [self._host_line(machine), *self._notes(machine)]
            while told < len(rows) and rows[told].machine is machine:
                lines += self._card_lines(columns, told, rows[told])
                told += 1
        return lines

    def _host_line(self, machine: Machine) -> Text:
        facts = machine.facts
        line = Text.assemble((" = ".join(machine.names), "bold"))
        if machine.error:
            return line
        line.append(f"  {machine.free} of {machine.total} free", _STYLES["free"] if machine.free else "dim")
        parts = [
            self._models(facts.gpus),
            f"driver {facts.driver}" if facts.driver else "",
            f"CUDA {facts.cuda}" if facts.cuda else "",
            f"load {facts.load:.1f}/{facts.cores}",
            f"{_gib(facts.memory_available_bytes)} of {_gib(facts.memory_bytes)} GiB memory free",
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
            ago = f"  (its cards were seen {age(machine.age_s)} ago)"
            notes.append(Text.assemble(self._bad(), machine.error.message, (ago, "dim")))
        elif machine.age_s > STALE_S:
            notes.append(Text(f"{self._marks.warn} {age(machine.age_s)} old: it answers slowly", "yellow"))
        if machine.facts.gpu_note:
            notes.append(Text(f"{self._marks.warn} {machine.facts.gpu_note}", "yellow"))
        return [Text("  ").append_text(note) for note in notes]

    def _hosts_only(self, overview: Overview) -> list[Text]:
        """A line for each host, a mark for each card."""
        width = min(20, max((len(" = ".join(each.names)) for each in overview.machines), default=0))
        lines = []
        for machine in overview.machines:
            line = self._fit(Text.assemble((" = ".join(machine.names), "bold")), width)
            if machine.error:
                line.append("  ").append_text(self._bad()).append(machine.error.message)
                lines.append(line)
                continue
            line.append("  ")
            for device in machine.devices:
                line.append(self._marks.states[state(device)], _STYLES[state(device)])
            users = Counter(each.user or "?" for device in machine.devices for each in device.processes)
            line.append(f"  {machine.free:2} free", _STYLES["free"] if machine.free else "dim")
            line.append(f"  {self._models(machine.facts.gpus)}", "dim")
            line.append("  " + " ".join(users))
            lines.append(line)
        return lines

    def _troubles(self, overview: Overview, *, hints: bool = True) -> list[Text]:
        """The hosts that have no cards to show, those with one reason together."""
        lines = []
        for reason, hosts in overview.cardless.items():
            if reason in (NO_DRIVER, NO_CARD):
                lines.append(Text.assemble((fold(hosts), "bold"), (f": {reason}", "dim")))
            else:
                lines += self._reason(Text(f"{self._marks.warn} ", "yellow"), hosts, reason)
        causes: dict[tuple[str, str], dict[str, ConnectError]] = {}
        for host, error in overview.failures.items():
            causes.setdefault((error.message, error.hint.replace(host, "")), {})[host] = error
        for (message, _), failed in causes.items():
            lines += self._reason(self._bad(), failed, message)
            host, error = next(iter(failed.items()))
            if error.hint and hints:
                hint = error.hint.replace("{host}", host)
                lines += self._wrapped(f"{self._marks.next} {hint}", "cyan")
        if overview.waiting:
            lines.append(Text(f"waiting for {fold(overview.waiting)}", "dim"))
        return lines

    def _queue(self, overview: Overview) -> list[Text]:
        """The runs that wait for cards, first come first."""
        clock = max((machine.facts.clock for machine in overview.machines), default=0.0)
        lines = []
        for number, each in enumerate(overview.queue, 1):
            cards = f"{each.wants} card{'' if each.wants == 1 else 's'}"
            line = Text.assemble((f"{number}. ", "dim"), (each.holder, "bold"))
            lines.append(line.append(f" has waited {age(clock - each.since)} for {cards}"))
        return lines

    def _reason(self, mark: Text, hosts: Iterable[str], reason: str) -> list[Text]:
        line = Text.assemble(mark, (fold(hosts), "bold"))
        told = one_line(" ".join(reason.split()))
        if line.cell_len + 2 + cell_len(told) <= self._columns:
            return [line.append(f"  {told}")]
        return [line, *self._wrapped(told, "")]

    def _bad(self) -> Text:
        return Text(f"{self._marks.bad} ", _STYLES["broken"])

    # -- cards

    def _rows(self, overview: Overview, processes: bool) -> list[_Row]:
        rows = []
        width = self._user_width(overview)
        for machine in overview.machines:
            for gpu in machine.facts.gpus if not machine.error else ():
                parts: tuple[Device, ...] = (gpu, *gpu.mig)
                for part in parts:
                    who = self._who(part, machine.facts.clock, width)
                    if not processes and len(who) > 1:
                        who = [Text.assemble((f"{len(who)}{self._marks.times} ", "bold"), who[0])]
                    rows.append(_Row(machine, gpu, part, tuple(who)))
        return rows

    @staticmethod
    def _user_width(overview: Overview) -> int:
        every = [device for machine in overview.machines for device in machine.devices]
        users = {each.user for device in every for each in device.processes}
        users |= {claim.user for device in every for claim in (device.lease, device.promised) if claim}
        return min(12, max(cell_len(one_line(user)) for user in users | {"user"}))

    def _chosen(self, rows: Sequence[_Row], overview: Overview) -> list[_Column]:
        """What there is room for, as columns from left to right; who is on a card takes the rest."""
        width = self._columns
        mixed = any(
            len({gpu.name for gpu in machine.facts.gpus if gpu.name}) > 1
            or any(gpu.mig_mode for gpu in machine.facts.gpus)
            for machine in overview.machines
        )
        bar = 14 if width >= WIDEST else 10 if width >= WIDE else 8 if width >= NARROW else 0 if mixed else 6
        columns = [
            _Column("gpu", [Text(row.part.label, "bold") for row in rows], right=True),
            _Column("state", [self._state(row.part) for row in rows]),
        ]
        if mixed:
            columns.append(_Column("model", [self._model(row) for row in rows]))
        if bar:
            columns.append(_Column("memory", [self._memory_bar(row.part, bar) for row in rows]))
        columns.append(_Column("" if bar else "memory", [self._memory(row.part) for row in rows], right=True))
        gpus = [row.gpu if row.part is row.gpu else None for row in rows]
        if width >= WIDER:
            bars = [
                self._bar(_share(gpu.utilization_percent if gpu else None), bar - 4, "#56b4e9")
                for gpu in gpus
            ]
            columns.append(_Column("util", bars))
        columns.append(
            _Column(
                "" if width >= WIDER else "util",
                [_number(gpu.utilization_percent if gpu else None, "%") for gpu in gpus],
                right=True,
            )
        )
        if width >= NARROW:
            degrees = [_number(gpu.temperature_c if gpu else None, self._marks.degree) for gpu in gpus]
            columns.append(_Column("temp", degrees, right=True))
        if width >= WIDE:
            columns.append(_Column("power", [_power(gpu, width >= WIDEST) for gpu in gpus], right=True))
        return columns

    def _headings(self, columns: Sequence[_Column], overview: Overview) -> Text:
        cells = [Text(column.heading, "dim") for column in columns]
        last = [Text("user".ljust(self._user_width(overview))), Text("for")]
        last += [Text("memory")] if self._columns >= WIDE else []
        return self._joined(cells, columns, Text(self._gap, "dim").join([*last, Text("command")]))

    def _card_lines(self, columns: Sequence[_Column], number: int, row: _Row) -> list[Text]:
        first = row.who[0] if row.who else Text()
        lines = [self._joined([column.cells[number] for column in columns], columns, first)]
        for more in row.who[1:]:
            lines.append(self._joined([Text() for _ in columns], columns, more))
        return lines

    def _joined(self, cells: Sequence[Text], columns: Sequence[_Column], last: Text) -> Text:
        roomy = self._columns >= NARROW
        line = Text(" " if roomy else "")
        for cell, column in zip(cells, columns, strict=True):
            width = max(column.width, len(column.heading) if roomy else 2)
            line.append_text(self._fit(cell, width, column.right)).append(self._gap)
        return line.append_text(last)

    def _model(self, row: _Row) -> Text:
        if self._columns < NARROW:
            return self._fit(Text(brief_name(row.part.name)), 8)
        name = short_name(row.part.name)
        name = name.removeprefix(short_name(row.gpu.name)).strip() or name
        return self._fit(Text(name), min(cell_len(one_line(name)), 22 if self._columns >= WIDE else 14))

    def _state(self, part: Device) -> Text:
        found = state(part)
        return Text(f"{self._marks.states[found]} {_WORDS[found]:6}", _STYLES[found])

    def _memory(self, part: Device) -> Text:
        if not part.memory_total_bytes:
            return Text("-", "dim")
        used, total = part.memory_used_bytes / 2**30, _gib(part.memory_total_bytes)
        digits = len(total)  # as wide for an empty card: nothing jumps when it fills
        if self._columns < NARROW:
            return Text(f"{used:{digits}.0f}/{total}G")
        return Text(f"{used:{digits + 2}.1f}/{total} GiB")

    def _memory_bar(self, part: Device, width: int) -> Text:
        share = part.memory_used_bytes / part.memory_total_bytes if part.memory_total_bytes else None
        return self._bar(share, width, _STYLES[state(part)])

    def _bar(self, share: float | None, width: int, style: str) -> Text:
        if share is None:
            return Text(" " * width)
        halves = min(2 * width, max(round(share * 2 * width), 1 if share > 0.02 else 0))
        drawn = self._marks.full * (halves // 2) + self._marks.half * (halves % 2)
        return Text.assemble((drawn, style), (self._marks.empty * (width - len(drawn)), "dim"))

    # -- who is on it

    def _who(self, part: Device, clock: float, user_width: int) -> list[Text]:
        if isinstance(part, Gpu) and part.error:
            return [Text(part.error, _STYLES["broken"])]
        if isinstance(part, Gpu) and part.mig:
            return [Text(f"{len(part.mig)} instance{'' if len(part.mig) == 1 else 's'}", "dim")]
        told = []
        if part.lease is not None:
            run = f"pid {part.lease.pid} has locked it" if part.lease.pid else f"run {part.lease.run}"
            told.append(self._use(part.lease.user, clock - part.lease.since, None, run, user_width))
        elif part.promised is not None and state(part) == "promised":
            run = f"run {part.promised.run} waits for it"
            told.append(self._use(part.promised.user, clock - part.promised.since, None, run, user_width))
        ordered = sorted(part.processes, key=lambda each: (each.kind != "compute", -(each.memory_bytes or 0)))
        told += [self._process(each, clock, user_width) for each in ordered]
        if not told and state(part) == "busy":
            told.append(Text(self._why_busy(part), _STYLES["busy"]))
        if isinstance(part, Gpu):
            told += [Text(f"{self._marks.warn} {note}", "yellow") for note in _complaints(part)]
        return told

    def _why_busy(self, part: Device) -> str:
        if self._columns >= WIDE:
            return part.busy
        if part.lease_error:
            return "no lease" if self._columns < NARROW else "cannot be leased"
        brief, briefer = _REASONS.get(part.busy, ("unseen process", "unseen"))
        return briefer if self._columns < NARROW else brief

    def _process(self, process: GpuProcess, clock: float, user_width: int) -> Text:
        command = short_command(process.command) or f"pid {process.pid}"
        seconds = None if process.started is None else clock - process.started
        text = self._use(process.user, seconds, process.memory_bytes, command, user_width)
        if process.kind != "compute":
            text.append(" (graphics)", "dim")
        return text

    def _use(
        self, user: str, seconds: float | None, memory_bytes: int | None, command: str, user_width: int
    ) -> Text:
        parts = [
            self._fit(Text(user or "?", "bold"), user_width or cell_len(one_line(user))),
            Text(("-" if seconds is None else age(seconds)).rjust(3)),
        ]
        if self._columns >= WIDE:
            used = "-" if memory_bytes is None else f"{memory_bytes / 2**30:.1f}G"
            parts.append(Text(used.rjust(6)))
        if self._columns >= NARROW:
            parts.append(Text(command, "dim"))
        return Text(self._gap).join(parts)

    # -- topology

    def _matrix(self, gpus: Sequence[Gpu]) -> list[Text]:
        words = {link for gpu in gpus for link in gpu.links.values()}
        width = max(map(len, (*words, *(str(gpu.index) for gpu in gpus))), default=1) + 2
        fit = max(1, (self._columns - 7) // width)
        lines = []
        for start in range(0, len(gpus), fit):
            across = gpus[start : start + fit]
            lines.append(Text(" " * 5 + "".join(str(gpu.index).rjust(width) for gpu in across), "bold"))
            for gpu in gpus:
                line = Text(str(gpu.index).rjust(5), "bold")
                for other in across:
                    link = gpu.links.get(other.index, self._marks.dot if other is gpu else "-")
                    style = "bold #009e73" if link.startswith("NV") else "dim" if other is gpu else ""
                    line.append(link.rjust(width), style)
                if start == 0 and gpu.numa_node is not None and len(gpus) <= fit:
                    line.append(f"  NUMA node {gpu.numa_node}", "dim")
                lines.append(line)
        return lines

    # -- lines

    def _wrapped(self, told: str, style: str) -> list[Text]:
        return [Text(f"    {line}", style) for line in self._wrap(told.split(), " ")]

    def _wrap(self, words: Iterable[str], between: str = ", ") -> list[str]:
        lines = [""]
        for word in words:
            joined = f"{lines[-1]}{between}{word}" if lines[-1] else word
            if len(joined) > self._columns - 4 and lines[-1]:
                lines.append(word)
            else:
                lines[-1] = joined
        return lines

    def _fit(self, text: Text, width: int, right: bool = False) -> Text:
        text = text.copy()
        if text.cell_len > width:
            text.truncate(max(0, width - 1), overflow="crop")
            text.append(self._marks.more, "dim")
        padding = " " * (width - text.cell_len)
        return Text(padding).append_text(text) if right else text.append(padding)

    def _cut(self, line: Text) -> Text:
        line.rstrip()
        return self._fit(line, self._columns) if line.cell_len > self._columns else line


def _complaints(gpu: Gpu) -> list[str]:
    """What is wrong with a card that works."""
    found = []
    if gpu.ecc_errors:
        found.append(
            f"{gpu.ecc_errors} ECC error{'' if gpu.ecc_errors == 1 else 's'}: its results may be wrong"
        )
    if slowed := [each.replace("_", " ") for each in gpu.slowed_by if each in _ALARMING]:
        found.append(f"slowed down: {', '.join(slowed)}")
    return found


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f}"


def _share(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _number(value: int | None, unit: str) -> Text:
    return Text("-", "dim") if value is None else Text(f"{value:3}{unit}")


def _power(gpu: Gpu | None, limit: bool) -> Text:
    if gpu is None or gpu.power_w is None:
        return Text("-", "dim")
    of = f"/{gpu.power_limit_w:.0f}" if limit and gpu.power_limit_w else ""
    return Text(f"{gpu.power_w:3.0f}{of} W")
