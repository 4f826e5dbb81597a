"""What people see of the trials of a sweep: the plan, what runs now, the table at the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator

from tflaunch.console.pen import Marks, Sheet
from tflaunch.console.safe_text import Text
from tflaunch.console.table import Column, cut, table
from tflaunch.console.words import counted, plural
from tflaunch.hosts import fold
from tflaunch.inputs.times import duration
from tflaunch.protocol.job import TRIAL
from tflaunch.sweeps.controller import Planned, Progress, Row, Summary
from tflaunch.sweeps.results import Metric, Result

BEST_SHOWN = 10
FAILED_SHOWN = 3  # at least, whatever the terminal's height
_LINES_AROUND = 8  # of the screen that the table at the end leaves free
_LEAST_PARAM = 4  # columns for a parameter's values, at least


def value_text(value: float | None) -> str:
    """Return a metric's value, "" for none."""
    return "" if value is None else f"{value:.6g}"


def params_text(result: Result) -> str:
    """Return the trial's parameters as `lr=0.1 units=32`."""
    return " ".join(f"{name}={value}" for name, value in result.params.items())


def planned_lines(planned: Planned, sheet: Sheet) -> list[Text]:
    """Each trial with its parameters."""
    trials = planned.trials
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    columns = [
        Column(TRIAL, [Text(str(trial.number)) for trial in trials]),
        *(_param(name, [trial.params.get(name, "") for trial in trials]) for name in names),
    ]
    return table(columns, sheet.columns, sheet.marks.more)


def planned_places(planned: Planned) -> Iterator[str]:
    """Yield how many trials each host runs at a time, and on which GPUs; equal hosts share a line."""
    gpus: dict[str, list[str]] = {}
    for seat in planned.seats:
        gpus.setdefault(seat.host, []).append(",".join(seat.labels))
    alike: dict[str, list[str]] = {}
    for host in {**gpus, **planned.others}:
        labels, later = gpus.get(host, []), planned.others.get(host, 0)
        which = " ".join(dict.fromkeys(labels))
        on = f" on {plural('GPU', len(set(labels)))} {which}" if which else ""
        more = f"; {counted(later, 'GPU')} in use, taken once free" if later else ""
        alike.setdefault(f"{len(labels) or 'none'} at a time{on}{more}", []).append(host)
    for text, hosts in alike.items():
        yield f"{fold(hosts)}: {text}{', each' * (len(hosts) > 1)}"


def summary_lines(summary: Summary, sheet: Sheet, rows: int) -> list[Text]:
    """The best trials, then those that failed; as many as fit a terminal that is `rows` high."""
    if not summary.results:
        return []
    metric, marks = summary.metric, sheet.marks
    failed = [each for each in summary.results if each.status == "failed"]
    names = list(dict.fromkeys(name for each in summary.results for name in each.params))
    best = summary.best[:BEST_SHOWN]
    most = max(FAILED_SHOWN, rows - _LINES_AROUND - len(best))

    def row(each: Result) -> list[Text]:
        measured = Text(value_text(each.metric) or "none")
        return [
            *([measured if each.status == "succeeded" else Text("failed", "red")] if metric else []),
            Text(str(each.trial)),
            *(Text(str(each.params.get(name, ""))) for name in names),
            Text(each.host),
            Text(duration(each.seconds)),
            *([Text(each.why, "dim")] if failed else []),
        ]

    def rest(number: int, what: str) -> list[list[Text]]:
        return [[Text(marks.more), Text(f"{number} {what}")]] if number > 0 else []

    shown = [
        *map(row, best),
        *rest(len(summary.best) - len(best), "more"),
        *map(row, failed[:most]),
        *rest(len(failed) - most, "more failed"),
    ]
    columns = [
        *([Column(metric.name, [], right=True)] if metric else []),
        Column(TRIAL, []),
        *(_param(name, []) for name in names),
        Column("host", []),
        Column("time", []),
        *([Column("why it failed", [], shrink=2)] if failed else []),
    ]
    filled = [
        dataclasses.replace(
            column, cells=[cells[number] if number < len(cells) else Text() for cells in shown]
        )
        for number, column in enumerate(columns)
    ]
    return table(filled, sheet.columns, marks.more)


def progress_lines(
    progress: Progress, run_id: str, metric: Metric | None, sheet: Sheet, rows: int
) -> list[Text]:
    """How the sweep stands, the best trial so far, and the trials that run; `rows` lines at most."""
    marks, lines = sheet.marks, [_counts(progress, run_id, sheet.marks)]
    if progress.best is not None and metric is not None:
        value = f"{value_text(progress.best.metric)} {metric.name}"
        where = f"  {TRIAL}/{progress.best.trial}  {params_text(progress.best)}"
        lines.append(Text.assemble(("best ", "dim"), (value, "bold green"), where))
    shown = progress.running[: max(1, rows - 3)]
    if shown:
        columns = [
            Column("", [Text(f"  {row.trial.task}") for row in shown]),
            Column("", [Text(row.seat) for row in shown], shrink=1),
            Column("", [Text(str(row.trial), "dim") for row in shown], shrink=2),
            Column("", [Text(_value_so_far(row, metric)) for row in shown]),
            Column("", [Text(_since(row)) for row in shown]),
        ]
        lines += table(columns, sheet.columns, marks.more, headings=False)
    if more := len(progress.running) - len(shown):
        lines.append(Text(f"  {marks.more} {more} more", "dim"))
    return [cut(line, sheet.columns, marks.more) for line in lines]


def _param(name: str, values: Iterable[str]) -> Column:
    return Column(name, [*map(Text, values)], shrink=1, least=_LEAST_PARAM)


def _value_so_far(row: Row, metric: Metric | None) -> str:
    return f"{value_text(row.value)} {metric.name}" if metric and row.value is not None else ""


def _since(row: Row) -> str:
    return "starting" if row.since is None else duration(time.monotonic() - row.since)


def _counts(progress: Progress, run_id: str, marks: Marks) -> Text:
    parts = [
        f"{progress.succeeded} of {progress.total} done",
        *([f"{progress.failed} failed"] if progress.failed else []),
        f"{len(progress.running)} running",
        *([f"{progress.queued} waiting"] if progress.queued else []),
    ]
    if not progress.seats:
        parts.append("no GPU is free")
    elif progress.seconds is not None and progress.queued:
        # On average, a running trial is half done.
        rounds = (progress.queued + len(progress.running) / 2) / progress.seats
        parts.append(f"about {duration(rounds * progress.seconds)} left")
    return Text.assemble((run_id, "bold"), "  ", f" {marks.dot} ".join(parts))
