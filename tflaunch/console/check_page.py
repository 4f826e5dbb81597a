"""What `tflaunch check` shows: a line for each host, what differs between them, who reaches whom, and what to do.

No state is told by colour alone: each has its mark and its word.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.console.lines import Text
from tflaunch.console.run_pages import Marks, of
from tflaunch.console.runs_page import Column, Screen, cut, table
from tflaunch.hosts import fold
from tflaunch.inputs.sizes import amount
from tflaunch.sessions.log_lines import printable
from tflaunch.survey.check_answers import Checked, Row, Visited, is_open
from tflaunch.survey.check_findings import LEVELS, Finding, Level, Verdict

PIPE_COLUMNS = 100
MOST_COLUMNS = 16  # hosts in the matrix of who reaches whom
_STYLES: Mapping[Level | None, str] = {
    "error": "bold #d55e00",
    "warning": "#e69f00",
    "note": "#56b4e9",
    None: "#009e73",
}


def _mark(level: Level | None, marks: Marks) -> Text:
    sign = {"error": marks.bad, "warning": marks.warn, "note": marks.dot, None: marks.ok}[level]
    return Text(sign, _STYLES[level])


def page(verdict: Verdict, screen: Screen) -> list[Text]:
    """Everything."""
    checked = verdict.checked
    parts = [
        _hosts(verdict, screen),
        _matrix(checked, screen),
        [*_dials(checked, screen), *_clocks(verdict, screen.marks), *_outside(verdict, screen.marks)],
        _findings(verdict, screen),
        [_summary(verdict, screen.marks)],
    ]
    lines: list[Text] = []
    for part in filter(None, parts):
        lines += [*([Text()] if lines else []), *part]
    return lines


def _hosts(verdict: Verdict, screen: Screen) -> list[Text]:
    """Hosts of which the same is to be said share a line."""
    marks = screen.marks
    said: dict[tuple[Level | None, str], list[Visited]] = {}
    for each in verdict.checked.hosts:
        level = verdict.level(each.host.name)
        state = level if level in ("error", "warning") else None
        said.setdefault((state, _well(each, marks)), []).append(each)
    columns = [
        Column("", [_mark(level, marks) for level, _ in said]),
        Column("", [Text(fold(each.host.name for each in alike), "bold") for alike in said.values()]),
        Column("", [Text(well + _disk(alike, marks)) for (_, well), alike in said.items()]),
    ]
    return table(columns, screen.columns, marks.more)[1:]


def _well(each: Visited, marks: Marks) -> str:
    """What is well on that host, or that nothing is known."""
    if each.facts is None:
        return "not asked: see below"
    parts = []
    versions = each.versions
    if tensorflow := each.report.get("tensorflow"):
        parts.append(f"TensorFlow {versions.get('TensorFlow', '?')}")
    elif python := versions.get("Python"):
        parts.append(f"Python {python}")
    else:
        parts.append("its task did not start" if each.tried is None else "its task ended early")
    if each.facts.gpus:
        seen = (tensorflow or {}).get("gpus")
        free = sum(not device.busy for device in each.facts.devices)
        sees = f", it sees {seen}" if seen else ""
        parts.append(f"{free} of {count(len(each.facts.devices), 'card')} free{sees}")
    parts.append(count(each.facts.cores, "core"))
    return f" {marks.dot} ".join(parts)


def count(number: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return of(number, noun).strip()


def _disk(alike: Sequence[Visited], marks: Marks) -> str:
    """The disk space that is free on the fullest of these hosts."""
    free = [each.facts.disk_free_bytes for each in alike if each.facts is not None]
    if not free:
        return ""
    least = "" if max(free) - min(free) < min(free) / 20 else "at least "
    return f" {marks.dot} {least}{amount(min(free))} free"


def _matrix(checked: Checked, screen: Screen) -> list[Text]:
    rows = checked.matrix
    if not rows or len(checked.told) < 2:
        rows = [row for row in rows if row.matters]
    columns = [
        Column("", [Text(row.name, "dim") for row in rows]),
        Column("", [_value(row, screen.marks) for row in rows]),
    ]
    return table(columns, screen.columns, screen.marks.more)[1:] if rows else []


def _value(row: Row, marks: Marks) -> Text:
    """What most have, and then each of the others with its hosts."""
    line = Text(row.common)
    for value, names in row.odd.items():
        style = _STYLES["warning" if row.matters else "note"]
        if line:
            line.append("   ")
        line.append(f"{marks.warn} {value}", style).append(f" {fold(names)}")
    return line


def _dials(checked: Checked, screen: Screen) -> list[Text]:
    """How many ways between hosts are open, and which, if that fits the screen; the findings name what is not."""
    names = list(checked.dials)
    targets = list(dict.fromkeys(to for ways in checked.dials.values() for to in ways))
    if not targets:
        return []
    results = [way["result"] for ways in checked.dials.values() for way in ways.values()]
    open_ways = [result for result in results if is_open(result)]
    some = "all" if len(open_ways) == len(results) else f"{len(open_ways)} of"
    slowest = f", the slowest in {max(open_ways):.1f} ms" if open_ways else ""
    head = f" {some} {len(results)} connections between the hosts succeed{slowest}"
    lines = [Text.assemble(_mark(None if some == "all" else "error", screen.marks), head)]
    if 1 < len(targets) <= MOST_COLUMNS:
        columns = [Column("from, to (ms)", [Text(f"  {name}", "bold") for name in names])]
        for to in targets:
            ways = [_way(checked.dials[name].get(to), screen.marks) for name in names]
            columns.append(Column(to, ways, right=True))
        matrix = table(columns, None, screen.marks.more)
        if max(line.cell_len for line in matrix) <= (screen.columns or PIPE_COLUMNS):
            lines += matrix
    return lines


def _way(way: Mapping[str, Any] | None, marks: Marks) -> Text:
    if way is None:
        return Text("")
    if is_open(way["result"]):
        return Text(f"{way['result']:.1f}")
    return Text(f"{marks.bad} no", _STYLES["error"])


def _clocks(verdict: Verdict, marks: Marks) -> list[Text]:
    clocks = [each.clock for each in verdict.checked.told if each.clock is not None]
    if not clocks or any(each.topic == "clock" for each in verdict.findings):
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


def _outside(verdict: Verdict, marks: Marks) -> list[Text]:
    if not verdict.checked.outside or any(each.topic == "exposed" for each in verdict.findings):
        return []
    return [
        Text.assemble(
            _mark(None, marks), " this machine, which is none of the hosts, does not reach their ports"
        )
    ]


def _findings(verdict: Verdict, screen: Screen) -> list[Text]:
    width = max(40, screen.columns or PIPE_COLUMNS)
    lines: list[Text] = []
    for each in verdict.findings:
        lines += _finding(each, width, screen.marks)
    return lines


def _finding(each: Finding, width: int, marks: Marks) -> Iterator[Text]:
    head = Text.assemble(_mark(each.level, marks), " ", (fold(each.hosts), "bold"))
    head.append(f"  {each.level}" if each.level != "note" else "  note", _STYLES[each.level])
    yield head
    for line in _wrapped(each.what, width - 4):
        yield Text(f"    {line}")
    if each.lines and len(each.hosts) > 1:
        yield Text(f"    {marks.bar} on {each.hosts[0]}:", "dim")
    for line in each.lines:
        yield cut(Text(f"    {marks.bar} {line}", "dim"), width - 1, "")
    for number, line in enumerate(_wrapped(each.fix, width - 6)):
        yield Text(f"    {marks.next if not number else ' ' * len(marks.next)} {line}", "cyan")


def _wrapped(text: str, width: int) -> Sequence[str]:
    """Lines of that width; a path or a command is not broken."""
    parts = (
        part
        for line in text.splitlines()
        for part in textwrap.wrap(printable(line), width, break_long_words=False, break_on_hyphens=False)
    )
    return list(parts)


def _summary(verdict: Verdict, marks: Marks) -> Text:
    findings = verdict.findings
    counts = [(level, sum(each.level == level for each in findings)) for level in LEVELS]
    told = ", ".join(count(number, level) for level, number in counts if number)
    worst = next((level for level, number in counts if number), None)
    unasked = sum(each.error is not None for each in verdict.checked.hosts)
    hosts = count(len(verdict.checked.hosts), "host") + (f", {unasked} not asked" if unasked else "")
    return Text.assemble(_mark(worst, marks), (f" {hosts}: {told or 'all is well'}", "bold"))


def document(verdict: Verdict, now: float, exit_code: int) -> dict[str, Any]:
    """Everything as what JSON can hold."""
    checked = verdict.checked
    return {
        "time": now,
        "exit_code": exit_code,
        "findings": [dataclasses.asdict(each) for each in verdict.findings],
        "hosts": [_host_data(each, verdict) for each in checked.hosts],
        "matrix": [
            {"name": row.name, "common": row.common, "odd": row.odd, "values": row.values}
            for row in checked.matrix
        ],
        "dials": checked.dials,
        "addresses": checked.resolved,
        "from_here": checked.outside,
    }


def _host_data(each: Visited, verdict: Verdict) -> dict[str, Any]:
    facts, tried = each.facts, each.tried
    told: dict[str, Any] = {
        "host": each.host.name,
        "level": verdict.level(each.host.name),
        "error": None if each.error is None else {"message": each.error.message, "hint": each.error.hint},
        "versions": each.versions,
        "clock": None if each.clock is None else dataclasses.asdict(each.clock),
        "interface": verdict.checked.interfaces.get(each.host.name, {}).get("name"),
        **each.system,
    }
    if facts is not None:
        told["ports"] = len(facts.ports)
        told["agent_python"] = facts.python
        told["cuda"] = facts.cuda
        told["cards"] = [
            {"label": card.label, "name": card.name, "busy": card.busy} for card in facts.devices
        ]
    if tried is not None:
        told["task"] = {
            "code": tried.code,
            "signal": tried.signal_name,
            "seconds": tried.seconds,
            "late": tried.late,
            "report": tried.report,
            "lines": tried.lines,
        }
    return told
