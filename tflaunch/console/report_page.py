"""What `tflaunch report` shows: what stands out, what happened, what each task used; two runs side by side."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.console.graph import LEAST_CORES, sparkline
from tflaunch.console.pen import BAD, GOOD, WARN, Sheet, hint, whole
from tflaunch.console.safe_text import Text, hung, paragraph, unstacked
from tflaunch.console.text_table import Column, Table, cut
from tflaunch.console.trial_values import of_trials
from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.json_reports import (
    WORDS,
    MomentData,
    ReportedHostData,
    ReportedRunData,
    ReportedTaskData,
)
from tflaunch.text.numbers import amount, counted
from tflaunch.text.times import duration

_MARGIN = "  "
CURVE = 20  # columns of a task's curve
MOST_HOSTS = 20  # of which a terminal shows how they had to wait
STYLES: Mapping[str, str] = {"failed": BAD, "lost": BAD, "warn": WARN, "unreachable": WARN, "succeeded": GOOD}


def report_lines(document: ReportDocument, sheet: Sheet) -> list[Text]:
    """The page of one run; of two, first their numbers side by side."""
    lines: list[Text] = []
    if document["compared"]:
        lines = [*_compared(document, sheet), Text()]
    for run in document["runs"]:
        lines += [*_run(run, sheet), Text()]
    lines.pop()
    if sheet.columns is None:
        return [part for line in lines for part in unstacked(line)]
    return [
        part for line in lines for part in ([line] if line.no_wrap else unstacked(hung(line, sheet.columns)))
    ]


def _run(run: ReportedRunData, sheet: Sheet) -> Iterator[Text]:
    marks = sheet.marks
    mark, style = {"succeeded": (marks.ok, GOOD), "running": (marks.live, "")}.get(
        run["status"], (marks.bad, BAD)
    )
    if run["status"] in ("detached", "unknown"):
        mark, style = marks.dot, ""
    elif run["status"] == "interrupted":
        mark, style = marks.warn, WARN
    took = f" after {duration(run['seconds'])}" if run["seconds"] is not None else ""
    code = f", exit code {run['exit_code']}" if run["exit_code"] else ""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["began"]))
    yield Text.assemble(
        (f"{mark} ", style),
        (run["run_id"], "bold"),
        f" {WORDS.get(run['status'], run['status'])}{took}{code}; it began {began}",
    )
    for verdict in run["verdicts"]:
        sign, how = (marks.bad, BAD) if verdict["kind"] == "failure" else (marks.warn, WARN)
        yield paragraph((f"  {sign} ", how), (verdict["text"], "bold"))
        if verdict["advice"]:
            yield hint(verdict["advice"], marks)
    if not run["verdicts"]:
        yield Text("  nothing stands out", "dim")
    for text in run["missing"]:
        yield paragraph((f"  {marks.dot} {text}", "dim"))
    yield Text()
    if run["timeline"]:
        yield from [*_timeline(run, sheet), Text()]
    if run["tasks"]:
        yield from [*_tasks(run, sheet), Text()]
    if run["hosts"]:
        yield from [*_hosts(run, sheet), Text()]
    yield from _ran(run)


def _timeline(run: ReportedRunData, sheet: Sheet) -> list[Text]:
    moments = run["timeline"]
    table = Table(
        [
            Column("after", [Text(duration(each["at"] - run["began"])) for each in moments], right=True),
            Column(
                "what",
                [
                    Text(WORDS.get(each["kind"], each["kind"]), STYLES.get(each["kind"], ""))
                    for each in moments
                ],
            ),
            Column("", [Text(_of_moment(each)) for each in moments], shrink=1, wraps=True, least=30),
        ],
        sheet.columns,
        sheet.marks.more,
        margin=_MARGIN,
    )
    return _unwrapped(table.lines())


def _of_moment(moment: MomentData) -> str:
    took = f"took {duration(moment['lasted_s'])}" if moment["lasted_s"] is not None else ""
    return ": ".join(filter(None, (took, moment["text"])))


def _tasks(run: ReportedRunData, sheet: Sheet) -> list[Text]:
    tasks = run["tasks"]

    def mean(task: ReportedTaskData, name: str, shown: str) -> Text:
        value = task["means"].get(name)
        if value is None:
            return Text()
        return Text(f"{amount(value)}/s" if shown == "bytes" else shown.format(value))

    samples = run["samples"]
    curves = _curves(samples["tasks"], samples["bins"], LEAST_CORES, sheet) if samples else {}
    of_sweep = any(task["trial"] for task in tasks)
    last = 1 if of_sweep else 0  # to be left out for the values of trials, after all others
    columns = [
        Column("task", [Text(task["task"], "bold") for task in tasks]),
        Column("metric", [Text(_metric(task)) for task in tasks], right=True),
        Column("host", [Text(task["host"]) for task in tasks], shrink=2),
        Column("cores", [mean(task, "cores", "{:.2f}") for task in tasks], right=True, drop=last),
        Column("sent", [mean(task, "sent", "bytes") for task in tasks], right=True),
        Column("received", [mean(task, "received", "bytes") for task in tasks], right=True),
        Column("GPU", [mean(task, "gpu", "{:.0f} %") for task in tasks], right=True, drop=last),
        *(
            Column(name, [mean(task, column, "{:.0f} %") for task in tasks], right=True, drop=5)
            for name, column in (("SMs", "sm"), ("tensor", "tensor"), ("DRAM", "dram"))
        ),
        Column("power", [mean(task, "watts", "{:.0f} W") for task in tasks], right=True, drop=3),
        Column(
            "steps/s",
            [Text("" if task["steps_s"] is None else f"{task['steps_s']:.3g}") for task in tasks],
            right=True,
            drop=last,
        ),
        Column(
            "loss",
            [Text("" if task["loss"] is None else f"{task['loss']:.4g}") for task in tasks],
            right=True,
            drop=2,
        ),
        Column("cores over time", [Text(curves.get(task["task"], "")) for task in tasks], drop=4),
        Column("end", [Text(_end(task)) for task in tasks], shrink=3, least=23),
    ]
    # Trials, for one, have no connections.
    used = [column for column in columns if any(cell.plain not in ("", "0 B/s") for cell in column.cells)]
    if of_sweep:
        params = [task["trial"]["params"] if task["trial"] is not None else {} for task in tasks]
        room = sheet.columns and sheet.columns - len(_MARGIN)
        measured = any(column.heading == "metric" for column in used)
        values = of_trials(params, used, room, sheet.marks.more, heading="values")
        used.insert(2 if measured else 1, values)
    return _unwrapped(Table(used, sheet.columns, sheet.marks.more, margin=_MARGIN).lines())


def _metric(task: ReportedTaskData) -> str:
    metric = task["trial"]["metric"] if task["trial"] is not None else None
    return "" if metric is None else f"{metric:.6g}"


def _hosts(run: ReportedRunData, sheet: Sheet) -> list[Text]:
    """How much of the time programs of each host had to wait: mean, and most; on a terminal, where it was most."""
    samples = run["samples"]
    curves = _curves(samples["hosts"], samples["host_bins"], 100.0, sheet) if samples else {}
    most = None if sheet.columns is None else MOST_HOSTS
    by_wait = sorted(run["hosts"], key=_waited, reverse=True)
    shown, others = by_wait[:most], by_wait[len(by_wait[:most]) :]
    kept = {each["host"] for each in shown}
    hosts = [each for each in run["hosts"] if each["host"] in kept]

    def shares(host: ReportedHostData, column: str) -> Text:
        mean, most = host["means"].get(column), host["most"].get(column)
        return Text() if mean is None else Text(f"{mean:.0f} %, most {most:.0f} %")

    curve = Column("processor over time", [Text(curves.get(each["host"], "")) for each in hosts], drop=3)
    columns = [
        Column("host", [Text(each["host"], "bold") for each in hosts], shrink=1),
        *(
            Column(name, [shares(each, column) for each in hosts], right=True, drop=number)
            for number, (name, column) in enumerate(
                (
                    ("waits: processor", "cpu_pressure"),
                    ("memory", "memory_pressure"),
                    ("disk", "io_pressure"),
                )
            )
        ),
        curve,
    ]
    table = Table(columns, sheet.columns, sheet.marks.more, margin=_MARGIN)
    lines = table.lines()
    if others:
        waited = f"none waited more than {_waited(others[0]):.0f} % of the time for one of these"
        lines.append(
            Text(f"{_MARGIN}{sheet.marks.more} {counted(len(others), 'host')} more: {waited}", "dim")
        )
    if names := ", ".join(column.heading for column in table.left_out if column is not curve):
        lines.append(Text(f"{_MARGIN}no room here for {names}", "dim"))
    return _unwrapped([cut(line, sheet.columns, sheet.marks.more) for line in lines])


def _waited(host: ReportedHostData) -> float:
    """Percent of the time, on average, that its programs waited for what they waited for most."""
    return max(host["means"].values(), default=0.0)


def _curves(names: Sequence[str], bins: Sequence[Sequence[Any]], top: float, sheet: Sheet) -> dict[str, str]:
    """Task, or host -> its first column over time; `top` or more fills the graph."""
    values: dict[int, list[float]] = {}
    for _, *rows in bins:
        for number, *row in rows:
            if row and row[0] is not None:
                values.setdefault(number, []).append(row[0])
    blocks = sheet.marks.blocks
    return {names[number]: sparkline(each, CURVE, blocks, (0.0, top)) for number, each in values.items()}


def _end(task: ReportedTaskData) -> str:
    end, again = task["end"], f", restarted {task['restarts']} times" if task["restarts"] > 1 else ""
    if task["restarts"] == 1:
        again = ", restarted once"
    if end is None:
        return again.removeprefix(", ")
    if task["trial"] is not None and task["trial"]["why"]:
        return f"{task['trial']['why']}, after {duration(end['seconds'])}{again}"
    how = end["signal"] or f"exit code {end['code']}"
    stopped = ", stopped" if end["stopped"] else ""
    return f"{how} after {duration(end['seconds'])}{stopped}{again}"


def _ran(run: ReportedRunData) -> Iterator[Text]:
    yield whole(f"  command   {shlex.join(run['command'])}")
    yield whole(f"  in        {run['directory']}")
    for job, argv in run["programs"].items():
        yield whole(f"  {job:<9} {shlex.join(argv)}")
    yield whole(f"  code      {run['code'] or 'on the hosts'}")
    yield whole(f"  tflaunch  {run['versions']['tflaunch']}")
    if run["samples"] is not None:
        count, every = len(run["samples"]["bins"]), duration(run["samples"]["every_s"])
        yield whole(f"  samples   {counted(count, 'bin')} of {every}")


def _compared(document: ReportDocument, sheet: Sheet) -> list[Text]:
    first, second = document["runs"]
    rows = document["compared"]

    def numbers(at: int) -> list[Text]:
        return [Text("" if (value := row["values"][at]) is None else _number(value)) for row in rows]

    ratios = [Text("" if row["ratio"] is None else f"{row['ratio']:.2f}{sheet.marks.times}") for row in rows]
    columns: Sequence[Column] = [
        Column("", [Text(row["what"]) for row in rows], shrink=1, wraps=True),
        Column(first["run_id"], numbers(0), right=True),
        Column(second["run_id"], numbers(1), right=True),
        Column("ratio", ratios, right=True),
    ]
    return _unwrapped(Table(columns, sheet.columns, sheet.marks.more).lines())


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _unwrapped(lines: list[Text]) -> list[Text]:
    for line in lines:
        line.no_wrap = True
    return lines
