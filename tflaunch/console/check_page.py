"""What `tflaunch check` shows: the state of each host, how hosts differ, which reach each other, what to do.

No state is shown by colour alone: each has its mark and its word.
"""

from __future__ import annotations

import dataclasses
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tflaunch.console.pen import BAD, BUSY, GOOD, WARN, Marks, Sheet
from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import Column, Table, cut, table
from tflaunch.hosts import fold
from tflaunch.planning.networks import speed
from tflaunch.ssh.refused_keys import some_lines
from tflaunch.survey.check_answers import CheckAnswers, HostAnswer, MatrixRow, is_open
from tflaunch.survey.check_bandwidth import Throughput, slow
from tflaunch.survey.check_findings import LEVELS, CheckFinding, Findings, Level
from tflaunch.text.numbers import amount, counted
from tflaunch.text.safe import one_line, printable

PIPE_COLUMNS = 100
MOST_COLUMNS = 16  # with more hosts, the matrix of connections between hosts is not shown
_STYLES: Mapping[Level | None, str] = {"error": BAD, "warning": WARN, "note": BUSY, None: GOOD}


def _mark(level: Level | None, marks: Marks) -> Text:
    sign = {"error": marks.bad, "warning": marks.warn, "note": marks.dot, None: marks.ok}[level]
    return Text(sign, _STYLES[level])


def page(findings: Findings, sheet: Sheet) -> list[Text]:
    """All that a check has found."""
    answers = findings.answers
    parts = [
        _hosts(findings, sheet),
        _matrix(answers, sheet),
        [*_bandwidth(answers, sheet), *_other_networks(answers, sheet)],
        [*_dials(answers, sheet), *_clocks(findings, sheet.marks), *_outside(findings, sheet.marks)],
        _findings(findings, sheet),
        [_summary(findings, sheet.marks)],
    ]
    lines: list[Text] = []
    for part in filter(None, parts):
        lines += [*([Text()] if lines else []), *part]
    return lines


def _hosts(findings: Findings, sheet: Sheet) -> list[Text]:
    """The state of each host; hosts with the same state share a line."""
    marks = sheet.marks
    states: dict[tuple[Level | None, str], list[HostAnswer]] = {}
    for each in findings.answers.hosts:
        level = findings.level(each.host.name)
        state = level if level in ("error", "warning") else None
        states.setdefault((state, _well(each, marks)), []).append(each)
    columns = [
        Column("", [_mark(level, marks) for level, _ in states]),
        Column("", [Text(fold(each.host.name for each in alike), "bold") for alike in states.values()]),
        Column("", [Text(well + _disk(alike, marks)) for (_, well), alike in states.items()], shrink=1),
    ]
    return table(columns, sheet.columns, marks.more, headings=False)


def _well(each: HostAnswer, marks: Marks) -> str:
    """Say what works on that host, or that it did not answer."""
    if each.facts is None:
        return "no answer: see below"
    parts = []
    versions = each.versions
    if tensorflow := each.report.get("tensorflow"):
        parts.append(f"TensorFlow {versions.get('TensorFlow', '?')}")
    elif python := versions.get("Python"):
        parts.append(f"Python {python}")
    else:
        parts.append("its task did not start" if each.task is None else "its task ended early")
    if each.facts.gpus:
        seen = (tensorflow or {}).get("gpus")
        free = sum(not device.busy for device in each.facts.gpus_or_instances)
        sees = f", TensorFlow sees {seen}" if seen else ""
        parts.append(f"{free} of {counted(len(each.facts.gpus_or_instances), 'GPU')} free{sees}")
    parts.append(counted(each.facts.cores, "core"))
    return f" {marks.dot} ".join(parts)


def _disk(alike: Sequence[HostAnswer], marks: Marks) -> str:
    """Say how much disk space is free on the fullest of these hosts."""
    free = [each.facts.disk_free_bytes for each in alike if each.facts is not None]
    if not free:
        return ""
    least = "" if max(free) - min(free) < min(free) / 20 else "at least "
    return f" {marks.dot} {least}{amount(min(free))} free"


def _matrix(answers: CheckAnswers, sheet: Sheet) -> list[Text]:
    rows = answers.matrix
    if not rows or len(answers.asked) < 2:
        rows = [row for row in rows if row.matters]
    columns = [
        Column("", [Text(row.name, "dim") for row in rows]),
        Column("", [_value(row, sheet.marks) for row in rows], shrink=1),
    ]
    return table(columns, sheet.columns, sheet.marks.more, headings=False)


def _value(row: MatrixRow, marks: Marks) -> Text:
    """The value that most hosts have, then each other value with its hosts."""
    line = Text(row.common)
    for value, names in row.odd.items():
        style = _STYLES["warning" if row.matters else "note"]
        if line:
            line.append("   ")
        line.append(f"{marks.warn} {value}", style).append(f" {fold(names)}")
    return line


def _dials(answers: CheckAnswers, sheet: Sheet) -> list[Text]:
    """How many connections between hosts succeed, and a matrix if it fits; findings name the failures."""
    names = list(answers.dials)
    targets = list(dict.fromkeys(to for ways in answers.dials.values() for to in ways))
    if not targets:
        return []
    results = [way["result"] for ways in answers.dials.values() for way in ways.values()]
    open_ways = [result for result in results if is_open(result)]
    whole = len(open_ways) == len(results)
    some = "all" if whole else f"{len(open_ways)} of"
    slowest = f", the slowest in {max(open_ways):.1f} ms" if open_ways else ""
    head = f" {some} {len(results)} connections between the hosts succeed{slowest}"
    if len(results) == 1:
        end = f"succeeds, in {open_ways[0]:.1f} ms" if open_ways else "fails"
        head = f" the only connection between the hosts {end}"
    lines = [Text.assemble(_mark(None if whole else "error", sheet.marks), head)]
    if 1 < len(targets) <= MOST_COLUMNS:
        columns = [Column("from, to (ms)", [Text(f"  {name}", "bold") for name in names])]
        for to in targets:
            ways = [_way(answers.dials[name].get(to), sheet.marks) for name in names]
            columns.append(Column(to, ways, right=True))
        matrix = Table(columns)
        if matrix.width <= (sheet.columns or PIPE_COLUMNS):
            lines += matrix.lines()
    return lines


def _way(way: Mapping[str, Any] | None, marks: Marks) -> Text:
    if way is None:
        return Text("")
    if is_open(way["result"]):
        # The kernel's figure: a busy host is late to see that it is connected.
        ms = way.get("rtt_ms", way["result"])
        return Text(f"{ms:.1f}" if ms >= 0.1 else f"{ms:.2f}")
    return Text(f"{marks.bad} no", _STYLES["error"])


def _bandwidth(answers: CheckAnswers, sheet: Sheet) -> list[Text]:
    """What each host can send to each other one; as many tables, one below the other, as the width needs."""
    rows = answers.bandwidth
    measured = [
        each.bits_per_s for row in rows.values() for each in row.values() if each.bits_per_s is not None
    ]
    if not measured:
        return []
    unit, size = ("Gbit/s", 1e9) if max(measured) >= 1e9 else ("Mbit/s", 1e6)
    odd = set(slow({(a, b): each for a, row in rows.items() for b, each in row.items()}))
    names = list(rows)
    head = Column(f"from, to ({unit})", [Text(f"  {name}", "bold") for name in names])

    def cell(source: str, to: str) -> Text:
        way = rows[source].get(to)
        if way is None:
            return Text("" if source == to else sheet.marks.dot, "dim")
        if way.bits_per_s is None:
            return Text(f"{sheet.marks.bad} no", _STYLES["error"])
        value = way.bits_per_s / size
        text = f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
        return Text(f"{sheet.marks.warn} {text}", WARN) if (source, to) in odd else Text(text)

    lines = [
        Text.assemble(
            _mark("warning" if odd else None, sheet.marks),
            f" {counted(len(measured), 'way')} measured: {speed(min(measured))} to"
            f" {speed(max(measured))}, the median {speed(statistics.median_high(measured))}",
        )
    ]
    if len(names) > MOST_COLUMNS:
        return lines + _summed_up(rows, names, sheet)
    columns = [Column(to, [cell(source, to) for source in names], right=True) for to in names]
    while columns:
        fitting = 1
        while fitting < len(columns) and Table([head, *columns[: fitting + 1]]).width <= (
            sheet.columns or PIPE_COLUMNS
        ):
            fitting += 1
        lines += Table([head, *columns[:fitting]], sheet.columns).lines()
        columns = columns[fitting:]
    return lines


def _other_networks(answers: CheckAnswers, sheet: Sheet) -> list[Text]:
    """A line for each network beside that of the addresses over which something was measured."""
    lines = []
    for each in answers.networks:
        measured = [
            way.bits_per_s
            for row in each.bandwidth.values()
            for way in row.values()
            if way.bits_per_s is not None
        ]
        if measured:
            lines.append(
                Text.assemble(
                    _mark("warning" if each.blocked else None, sheet.marks),
                    f" over {one_line(each.network.told)}: {speed(min(measured))} to {speed(max(measured))},"
                    f" the median {speed(statistics.median_high(measured))}",
                )
            )
    return lines


def _summed_up(
    rows: Mapping[str, Mapping[str, Throughput]], names: Sequence[str], sheet: Sheet
) -> list[Text]:
    """The throughput of many hosts, a line each: the least and the median of what was measured."""
    away: dict[str, list[float]] = {name: [] for name in names}
    back: dict[str, list[float]] = {name: [] for name in names}
    for source, row in rows.items():
        for to, way in row.items():
            if way.bits_per_s is not None:
                away[source].append(way.bits_per_s)
                back[to].append(way.bits_per_s)

    def cells(found: Mapping[str, list[float]], choose: Callable[[list[float]], float]) -> list[Text]:
        return [Text(speed(choose(found[name])) if found[name] else sheet.marks.dot) for name in names]

    columns = [
        Column("", [Text(f"  {name}", "bold") for name in names], shrink=1),
        Column("sends, least", cells(away, min), right=True),
        Column("median", cells(away, statistics.median_high), right=True),
        Column("gets, least", cells(back, min), right=True),
        Column("median", cells(back, statistics.median_high), right=True),
    ]
    return table(columns, sheet.columns, sheet.marks.more)


def _clocks(findings: Findings, marks: Marks) -> list[Text]:
    clocks = [each.clock for each in findings.answers.asked if each.clock is not None]
    if not clocks or any(each.topic == "clock" for each in findings.all):
        return []
    ahead = [clock.ahead_s for clock in clocks]
    within = max(abs(max(ahead)), abs(min(ahead)), max(ahead) - min(ahead)) + max(
        each.within_s for each in clocks
    )
    return [
        Text.assemble(
            _mark(None, marks), f" all clocks, this machine's too, agree within {within * 1000:.0f} ms"
        )
    ]


def _outside(findings: Findings, marks: Marks) -> list[Text]:
    if not findings.answers.outside or any(each.topic == "exposed" for each in findings.all):
        return []
    return [
        Text.assemble(
            _mark(None, marks), " this machine, which is none of the hosts, does not reach their ports"
        )
    ]


def _findings(findings: Findings, sheet: Sheet) -> list[Text]:
    width = max(40, sheet.columns or PIPE_COLUMNS)
    lines: list[Text] = []
    for each in findings.all:
        lines += _finding(each, width, sheet.marks)
    return lines


def _finding(each: CheckFinding, width: int, marks: Marks) -> Iterator[Text]:
    head = Text.assemble(_mark(each.level, marks), " ", (fold(each.hosts), "bold"))
    head.append(f"  {each.level}" if each.level != "note" else "  note", _STYLES[each.level])
    yield head
    for line in _wrapped(each.what, width - 4):
        yield Text(f"    {line}")
    shown = each.lines
    if each.topic == "connection":  # a line for each host
        shown = tuple(some_lines(each.lines))
    elif each.lines and len(each.hosts) > 1:
        yield Text(f"    {marks.bar} on {each.hosts[0]}:", "dim")
    for line in shown:
        yield cut(Text(f"    {marks.bar} {line}", "dim"), width - 1, "")
    for number, line in enumerate(_wrapped(each.fix, width - 6)):
        yield Text(f"    {marks.next if not number else ' ' * len(marks.next)} {line}", "cyan")


def _wrapped(text: str, width: int) -> Sequence[str]:
    """Return the text in lines of that width; a path or a command is not broken."""
    parts = (
        part
        for line in text.splitlines()
        for part in textwrap.wrap(printable(line), width, break_long_words=False, break_on_hyphens=False)
    )
    return list(parts)


def _summary(findings: Findings, marks: Marks) -> Text:
    counts = [(level, sum(each.level == level for each in findings.all)) for level in LEVELS]
    levels = ", ".join(counted(number, level) for level, number in counts if number)
    worst = next((level for level, number in counts if number), None)
    silent = sum(each.error is not None for each in findings.answers.hosts)
    hosts = counted(len(findings.answers.hosts), "host") + (f", {silent} without an answer" if silent else "")
    return Text.assemble(_mark(worst, marks), (f" {hosts}: {levels or 'all is well'}", "bold"))


def document(findings: Findings, now: float, exit_code: int) -> dict[str, Any]:
    """Return all that a check has found, as JSON has it."""
    answers = findings.answers
    return {
        "time": now,
        "exit_code": exit_code,
        "findings": [dataclasses.asdict(each) for each in findings.all],
        "hosts": [_host_data(each, findings) for each in answers.hosts],
        "matrix": [
            {"name": row.name, "common": row.common, "odd": row.odd, "values": row.values}
            for row in answers.matrix
        ],
        "dials": answers.dials,
        "bandwidth": _throughputs(answers.bandwidth),
        "networks": [
            {
                "network": each.network.prefix,
                "interfaces": dict(each.network.names),
                "mbit_s": each.network.mbit_s,
                "dials": each.dials,
                "bandwidth": _throughputs(each.bandwidth),
            }
            for each in answers.networks
        ],
        "addresses": answers.resolved,
        "from_here": answers.outside,
    }


def _throughputs(rows: Mapping[str, Mapping[str, Throughput]]) -> dict[str, Any]:
    return {a: {b: dataclasses.asdict(each) for b, each in row.items()} for a, row in rows.items()}


def _host_data(each: HostAnswer, findings: Findings) -> dict[str, Any]:
    facts, task = each.facts, each.task
    data: dict[str, Any] = {
        "host": each.host.name,
        "level": findings.level(each.host.name),
        "error": None if each.error is None else each.error.data_for(each.host.name),
        "versions": each.versions,
        "clock": None if each.clock is None else dataclasses.asdict(each.clock),
        "interface": findings.answers.interfaces.get(each.host.name, {}).get("name"),
        **each.system,
    }
    if facts is not None:
        data["ports"] = len(facts.ports)
        data["agent_python"] = facts.python
        data["cuda"] = facts.cuda
        data["gpus"] = [
            {"label": gpu.label, "name": gpu.name, "busy": gpu.busy} for gpu in facts.gpus_or_instances
        ]
    if task is not None:
        data["task"] = {
            "code": task.code,
            "signal": task.signal_name,
            "seconds": task.seconds,
            "late": task.late,
            "report": task.report,
            "lines": task.lines,
        }
    return data
