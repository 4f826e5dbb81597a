"""What people see of the trials of a sweep: the plan, what runs now, the table at the end."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tflaunch.console.graph import sparkline
from tflaunch.console.pen import Marks, Sheet, whole
from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import Column, Table, cut, table
from tflaunch.console.trial_values import (
    ParameterColumn,
    fitting,
    in_room,
    of_names,
    of_parameter,
    of_trials,
    values_whole,
)
from tflaunch.hosts import fold
from tflaunch.protocol.job import TRIAL
from tflaunch.sweeps.controller import Planned, Summary, SweepProgress, TrialRow
from tflaunch.sweeps.results import Metric, Result
from tflaunch.text.numbers import counted, plural
from tflaunch.text.times import duration

BEST_SHOWN = 10
FAILED_SHOWN = 3  # at least, whatever the terminal's height
_LINES_AROUND = 8  # of the screen that the table at the end leaves free
_NARROW = 80  # on fewer columns, the running trials' values are without the metric's name
_SPARK_SHARE = 8  # a sparkline takes one in so many columns
_LEAST_SEAT, _LEAST_CURVE = 8, 6  # columns for those of a trial that runs
_LEAST_WHY = 20  # columns for why a trial failed
_LONG_NAME = 12  # of a metric: the running trials' values are without it, and the table may cut it to this


def value_text(value: float | None) -> str:
    """Return a metric's value, "" for none."""
    return "" if value is None else f"{value:.6g}"


def params_text(result: Result) -> str:
    """Return the trial's parameters as `lr=0.1 units=32`."""
    return " ".join(f"{name}={value}" for name, value in result.params.items())


def left_lines(run_id: str, marks: Marks) -> list[Text]:
    """That the sweep goes on without the terminal, and what to type to see how it does."""
    headline = Text.assemble(
        (f"{marks.ok} ", "bold green"), (run_id, "bold"), " goes on without this terminal, from this machine"
    )
    steps = (
        (f"status {run_id}", "how it stands"),
        (f"stop {run_id}", "stop it"),
        (f"sweep --resume {run_id}", "go on with it after that"),
    )
    width = max(len(words) for words, _ in steps)
    return [
        headline,
        *(whole(f"  {marks.next} tflaunch {words:{width}}   {what}", "cyan") for words, what in steps),
    ]


def planned_lines(planned: Planned, sheet: Sheet) -> list[Text]:
    """Each trial with its parameters."""
    trials = planned.trials
    names = dict.fromkeys(name for trial in trials for name in trial.params)

    def columns(digits: int | None) -> list[Column]:
        return [
            Column(TRIAL, [Text(str(trial.number)) for trial in trials]),
            *(
                of_parameter(name, [trial.params.get(name, "") for trial in trials], number, digits)
                for number, name in enumerate(names)
            ),
        ]

    return _lines(fitting(columns, sheet.columns, sheet.marks.more))


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
    failed, alike = _folded(each for each in summary.results if each.status == "failed")
    stopped = [each for each in summary.results if each.status == "stopped"]
    names = list(dict.fromkeys(name for each in summary.results for name in each.params))
    best = summary.best[:BEST_SHOWN]
    most = max(FAILED_SHOWN, rows - _LINES_AROUND - len(best))
    places = {"failed": Text("failed", "red"), "stopped": Text("stopped", "yellow")}

    def rest(number: int, what: str) -> list[str]:
        return [f"{number} {what}"] if number > 0 else []

    shown: list[Result | str] = [  # a trial, or how many more there are
        *best,
        *rest(len(summary.best) - len(best), "more"),
        *stopped[:FAILED_SHOWN],
        *rest(len(stopped) - FAILED_SHOWN, "more stopped"),
        *failed[:most],
        *rest(len(failed) - most, "more failed"),
    ]
    why = " or ".join([*["was stopped"] * bool(stopped), *["failed"] * bool(failed)])

    def cells(of: Callable[[Result], Text], instead: Callable[[str], Text] = lambda _: Text()) -> list[Text]:
        return [instead(each) if isinstance(each, str) else of(each) for each in shown]

    def reason(each: Result) -> Text:
        more = f"(+{alike[each.trial]} alike) " if alike.get(each.trial) else ""
        return Text(f"{more}{each.why}", "dim")

    def reasons(columns: int) -> list[Text]:
        """Without the exit code, where they have no room: the error says more."""

        def fits(each: Result) -> Text:
            error = each.why.removeprefix(f"exited with code {each.exit_code}: ")
            whole = reason(each)
            return whole if whole.cell_len <= columns else reason(dataclasses.replace(each, why=error))

        return cells(fits)

    measured = cells(
        lambda each: places.get(each.status, Text(value_text(each.metric) or "none")),
        lambda _: Text(marks.more),
    )
    trials = cells(lambda each: Text(str(each.trial)), Text)

    def columns(digits: int | None) -> list[Column]:
        return [
            *([values_whole(Column(metric.name, measured, right=True), _LONG_NAME)] if metric else []),
            Column(TRIAL, trials),
            *(
                of_parameter(
                    name,
                    ["" if isinstance(each, str) else str(each.params.get(name, "")) for each in shown],
                    number,
                    digits,
                )
                for number, name in enumerate(names)
            ),
            Column("host", cells(lambda each: Text(each.host)), drop=len(names) + 1),
            Column("time", cells(lambda each: Text(duration(each.seconds))), drop=len(names) + 2),
            *(
                [Column(f"why it {why}", cells(reason), shrink=2, least=_LEAST_WHY, fit=reasons)]
                if why
                else []
            ),
        ]

    return _lines(fitting(columns, sheet.columns, marks.more))


def _lines(table: Table) -> list[Text]:
    """Those of the table, and which parameters have no room in it."""
    left_out = [each.heading for each in table.left_out if isinstance(each, ParameterColumn)]
    note = f"no room here for {', '.join(left_out)}"
    return table.lines() + [Text(note, "dim")] * bool(left_out)


def _folded(failed: Iterable[Result]) -> tuple[list[Result], dict[int, int]]:
    """Return (the first trial of those that failed with the same words, how many more did, by that trial)."""
    firsts: dict[str, Result] = {}
    more: dict[int, int] = {}
    for each in failed:
        first = firsts.setdefault(each.why, each)
        more[first.trial] = more.get(first.trial, -1) + 1
    return list(firsts.values()), more


def last_line(summary: Summary, marks: Marks) -> Text:
    """How many trials succeeded, failed, were stopped, and have not run."""
    count = Counter(each.status for each in summary.results)
    rest = summary.total - sum(count.values())
    good = count["succeeded"]
    parts = [
        f"{good} of {counted(summary.total, 'trial')} succeeded",
        *([f"{count['stopped']} stopped early"] if count["stopped"] else []),
        *([f"{count['failed']} failed"] if count["failed"] else []),
        *([f"{rest} not run"] if rest else []),
    ]
    whole = good + count["stopped"] == summary.total
    if summary.metric and good and not any(each.metric is not None for each in summary.best):
        parts[0] += f", none printed {summary.metric.name}"
        whole = False
    mark = (f"{marks.ok} ", "bold green") if whole else (f"{marks.warn} ", "yellow")
    return Text.assemble(mark, (summary.run_id, "bold"), f"  {f' {marks.dot} '.join(parts)}")


def progress_lines(
    progress: SweepProgress, run_id: str, metric: Metric | None, sheet: Sheet, rows: int
) -> list[Text]:
    """How the sweep stands, the best trial so far, and the trials that run; `rows` lines at most."""
    marks, lines = sheet.marks, [_counts(progress, run_id, sheet.marks)]
    if progress.best is not None and metric is not None:
        value = f"{value_text(progress.best.metric)} {metric.name}"
        best = Text.assemble(("best ", "dim"), (value, "bold green"), f"  {TRIAL}/{progress.best.trial}  ")
        room = sheet.columns and sheet.columns - best.cell_len
        lines.append(best.append(*in_room([progress.best.params], room, marks.more)))
    width = (sheet.columns or 2 * _NARROW) // _SPARK_SHARE
    if len(progress.curve) > 1:
        first, last = value_text(progress.curve[0]), value_text(progress.curve[-1])
        line = sparkline(progress.curve, 2 * width, marks.blocks)
        lines.append(
            Text.assemble(("best so far ", "dim"), f"{first} ", (line, "green"), f" {last}", no_wrap=True)
        )
    shown = progress.running[: max(1, rows - 4)]
    if shown:

        def curves(columns: int) -> list[Text]:
            return [Text(_spark(row, columns, marks), "green") for row in shown]

        others = [
            Column("", [Text(f"  {row.trial.task}") for row in shown]),
            of_names([row.seat for row in shown], marks.more, _LEAST_SEAT),
            Column("", curves(width), shrink=2, least=_LEAST_CURVE, drop=1, fit=curves),
            Column("", [Text(_value_so_far(row, metric, sheet.columns)) for row in shown]),
            Column("", [Text(_since(row)) for row in shown]),
        ]
        params = of_trials(
            [row.trial.params for row in shown], others, sheet.columns, marks.more, style="dim"
        )
        columns = [*others[:2], params, *others[2:]]
        lines += table(columns, sheet.columns, marks.more, headings=False)
    if more := len(progress.running) - len(shown):
        lines.append(Text(f"  {marks.more} {more} more", "dim"))
    return [cut(line, sheet.columns, marks.more) for line in lines]


def _spark(row: TrialRow, width: int, marks: Marks) -> str:
    return sparkline(row.curve, width, marks.blocks) if len(row.curve) > 1 else ""


def _value_so_far(row: TrialRow, metric: Metric | None, columns: int | None) -> str:
    if metric is None or row.value is None:
        return ""
    named = columns is None or (columns >= _NARROW and len(metric.name) <= _LONG_NAME)
    return value_text(row.value) + (f" {metric.name}" if named else "")


def _since(row: TrialRow) -> str:
    return "starting" if row.since is None else duration(time.monotonic() - row.since)


def _counts(progress: SweepProgress, run_id: str, marks: Marks) -> Text:
    parts = [
        f"{progress.succeeded} of {progress.total} done",
        *([f"{progress.failed} failed"] if progress.failed else []),
        *([f"{progress.stopped} stopped early"] if progress.stopped else []),
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
