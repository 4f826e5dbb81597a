"""A sweep for people and programs: what tflaunch.console.reporter shows of a run, less its logs, and how the trials stand.

On a terminal a few live lines tell which trials run; a trial that has ended leaves a line above them.  The table at
the end goes to stdout, everything else to stderr.

For programs, beside the events of tflaunch.console.json_lines, of which `log` does not come:

    event      fields
    sweep      run_id, total, left (to run), seats (how many trials at a time), metric, maximize
    trial      task, host, gpus (labels), attempt, params     one has started
    result     as a line of results.jsonl: trial, params, metric, status, exit_code, signal, host, gpus, seconds,
               attempts, ended, log, why (it failed)
    plan       run_id ("": a new one), total, left, seats (host, gpus), others (host: cards in use), seed (null: none
               are drawn), trials (task, params, args): all of --dry-run
    summary    run_id, total, succeeded, failed, best (a result, or null), run_best (argv), resume, results (path)
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from typing import Any, Protocol, cast

from rich.table import Table

from tflaunch.console import reporter
from tflaunch.console.json_lines import JsonReporter
from tflaunch.console.lines import Text
from tflaunch.console.terminal import TextReporter
from tflaunch.hosts import fold
from tflaunch.inputs.times import duration
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.outcome import TaskExit
from tflaunch.sweeps.controller import Planned, Progress, Reporter, Row, Summary
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.results import Metric, Result
from tflaunch.sweeps.trials import JOB, Trial, arguments

BEST_SHOWN = 10
FAILED_SHOWN = 3  # at least, whatever the terminal's height
_TICK_S = 0.25
_LINES_LEFT = 4  # of the screen, for what is not live
_LINES_AROUND = 8  # the table at the end


class SweepReporter(reporter.Reporter, Reporter, Protocol):
    """Both."""


def open_reporter(*, json: bool) -> SweepReporter:
    """The reporter of a sweep."""
    return cast("SweepReporter", reporter.open_reporter(json=json, quiet=True, styles=(SweepText, SweepJson)))


class SweepJson(JsonReporter):
    """One JSON object a line."""

    def begins(
        self, run_id: str, total: int, left: int, seats: Sequence[Seat], metric: Metric | None
    ) -> None:
        """The hosts are ready."""
        measured = {"metric": metric.name if metric else None, "maximize": bool(metric and metric.maximize)}
        self._event("sweep", run_id=run_id, total=total, left=left, seats=len(seats), **measured)

    def planned(self, planned: Planned) -> None:
        """All of --dry-run."""
        trials = [
            {
                "task": str(trial.task),
                "params": dict(trial.params),
                "args": list(arguments(planned.words, trial)),
            }
            for trial in planned.trials
        ]
        seats = [{"host": seat.host, "gpus": list(seat.labels)} for seat in planned.seats]
        told = {"run_id": planned.run_id, "total": planned.total, "left": len(trials)}
        self._event(
            "plan", **told, seats=seats, others=dict(planned.others), seed=planned.seed, trials=trials
        )

    def progress(self, progress: Progress) -> None:
        """For people only."""

    def trial(self, trial: Trial, started: TaskStarted, seat: Seat) -> None:
        """One has started."""
        told = {"host": seat.host, "gpus": list(seat.labels), "attempt": started.attempt}
        self._event("trial", task=str(trial.task), **told, params=dict(trial.params))

    def result(self, result: Result) -> None:
        """One has ended for good."""
        self._event("result", **dataclasses.asdict(result))

    def summary(self, summary: Summary) -> None:
        """All that was found."""
        best = summary.best[0] if summary.best and summary.run_best else None
        self._event(
            "summary",
            run_id=summary.run_id,
            total=summary.total,
            succeeded=len(summary.best),
            failed=len(summary.results) - len(summary.best),
            best=dataclasses.asdict(best) if best else None,
            run_best=list(summary.run_best),
            resume=summary.resume,
            results=summary.path,
        )


class SweepText(TextReporter):
    """Lines for people."""

    def __init__(self, *streams: Any) -> None:
        self._metric: Metric | None = None
        self._name = ""
        self._progress: Progress | None = None
        self._drawn = 0  # live lines on the screen
        super().__init__(*streams)

    def begins(
        self, run_id: str, total: int, left: int, seats: Sequence[Seat], metric: Metric | None
    ) -> None:
        """The hosts are ready."""
        self._metric, self._name = metric, run_id
        before = f", {total - left} of them done before" if left < total else ""
        if seats:
            where = f"{len(seats)} at a time on {_count(len({seat.host for seat in seats}), 'host')}"
        else:
            where = "as soon as cards are free"
        marks = self._err.marks
        text = f" {_count(total, 'trial')}{before} {marks.dot} {where}"
        self._message(Text.assemble(("sweep ", ""), (run_id, "bold"), (text, "dim")))

    def planned(self, planned: Planned) -> None:
        """The trials go to stdout."""
        self.begins(planned.run_id or "(new)", planned.total, len(planned.trials), planned.seats, None)
        cards: dict[str, list[str]] = {}
        for seat in planned.seats:
            cards.setdefault(seat.host, []).append(",".join(seat.labels))
        alike: dict[str, list[str]] = {}
        for host in {**cards, **planned.others}:
            told, later = cards.get(host, []), planned.others.get(host, 0)
            which = " ".join(dict.fromkeys(told))
            on = f" on card{'' if len(set(told)) == 1 else 's'} {which}" if which else ""
            more = f"; {_count(later, 'card')} in use, taken once free" if later else ""
            alike.setdefault(f"{len(told) or 'none'} at a time{on}{more}", []).append(host)
        for text, hosts in alike.items():
            self.note(f"{fold(hosts)}: {text}{', each' * (len(hosts) > 1)}")
        if planned.seed is not None:
            self.note(f"drawn by --seed {planned.seed}: with that, the same again")
        first = planned.trials[0]
        self.note(f"{first.task} runs {shlex.join(arguments(planned.words, first))}")
        names = list(dict.fromkeys(name for trial in planned.trials for name in trial.params))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in (JOB, *names):
            table.add_column(name, overflow="ellipsis", no_wrap=True)
        for trial in planned.trials:
            table.add_row(str(trial.number), *(trial.params.get(name, "") for name in names))
        self._writer.put("message", lambda: self._writer.out(self._out.render(table)))

    def progress(self, progress: Progress) -> None:
        """Show how it stands, on a terminal."""
        if self._live:
            self._writer.put("message", lambda: self._take_progress(progress))

    def started(self, started: TaskStarted) -> None:
        """`trial` says more."""

    def exited(self, exit: TaskExit) -> None:
        """`result` says more."""

    def trial(self, trial: Trial, started: TaskStarted, seat: Seat) -> None:
        """A line where there are no live ones."""
        if not self._live:
            again = f" (attempt {started.attempt + 1})" if started.attempt else ""
            self._message(Text(f"  {trial.task} on {seat} has started{again}: {trial}", "dim"))

    def result(self, result: Result) -> None:
        """A line for each trial that has ended for good."""
        good = result.status == "succeeded"
        mark, style = (self._err.marks.ok, "green") if good else (self._err.marks.bad, "bold red")
        what = f"{JOB}/{result.trial} on {result.host}"
        if not good:
            what += f" {result.why.partition(': ')[0]}"
        text = f"{what} after {duration(result.seconds)}"
        if result.attempts > 1:
            text += f", attempt {result.attempts}"
        measured = ""
        if good and self._metric:
            measured = f"  {self._value(result.metric) or 'no'} {self._metric.name}"
        line = Text.assemble((f"{mark} ", style), text, (measured, "bold"), (f"  {_params(result)}", "dim"))
        self._message(line)
        if good and self._metric and result.metric is None:
            self.warn(f"{JOB}/{result.trial}: no {self._metric.name} is in its log, {result.log}")

    def summary(self, summary: Summary) -> None:
        """The table goes to stdout."""
        told = {"  results: ": summary.path, "  the best again: ": shlex.join(summary.run_best)}
        told["  go on: "] = summary.resume
        # Each on one line, however long: they are copied.
        lines = [Text.assemble((what, "dim"), text, no_wrap=True) for what, text in told.items() if text]
        table = self._table(summary)

        def show() -> None:
            self._stop_live()
            self._wipe()
            if table is not None:
                self._writer.out(self._out.render(table))
            self._print(*lines)

        self._writer.put("message", show)

    def close(self, wait: bool = True) -> None:
        """As of a run."""
        self._writer.put("message", self._stop_live)
        super().close(wait)

    def _value(self, value: float | None) -> str:
        return "" if value is None else f"{value:.6g}"

    def _table(self, summary: Summary) -> Table | None:
        if not summary.results:
            return None
        failed = [each for each in summary.results if each.status == "failed"]
        names = list(dict.fromkeys(name for each in summary.results for name in each.params))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        if summary.metric:
            table.add_column(summary.metric.name, justify="right")
        for name in (JOB, *names, "host", "time"):
            table.add_column(name, overflow="ellipsis", no_wrap=True)
        if failed:
            table.add_column("why it failed")  # this one is shortened before the others

        def add(results: Sequence[Result], most: int, more: str) -> None:
            for each in results[:most]:
                values = [str(each.params.get(name, "")) for name in names]
                row = [str(each.trial), *values, each.host, duration(each.seconds)]
                good = each.status == "succeeded"
                measured = Text(self._value(each.metric) or "none") if good else Text("failed", "red")
                why = Text(each.why, "dim", no_wrap=True, overflow="ellipsis")
                table.add_row(*([measured] if summary.metric else []), *row, *([why] if failed else []))
            if len(results) > most:
                table.add_row(self._out.marks.more, f"{len(results) - most} {more}")

        add(summary.best, BEST_SHOWN, "more")
        best = min(BEST_SHOWN, len(summary.best))
        add(failed, max(FAILED_SHOWN, self._out.rows - _LINES_AROUND - best), "more failed")
        return table

    # From here on: in the writer's thread.

    def _take_progress(self, progress: Progress) -> None:
        self._progress = progress

    def _stop_live(self) -> None:
        self._wipe()
        self._progress = None

    def _wipe(self) -> None:
        if self._drawn:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            self._writer.err("", before=f"\r{up}\x1b[J")
            self._drawn = 0
        super()._wipe()

    def _tick(self) -> float | None:
        soonest = super()._tick()
        phase = self._phase
        if self._progress is None or not self._live or not (phase is None or phase.over):
            return soonest
        room = max(1, self._err.rows - _LINES_LEFT)
        text = self._err.render(self._block(self._progress, room), spare=1).rstrip("\n")
        self._wipe()
        self._writer.err(text)
        self._drawn = text.count("\n") + 1
        return _TICK_S if soonest is None else min(soonest, _TICK_S)

    def _block(self, progress: Progress, room: int) -> Table:
        block = Table.grid()
        block.add_column(no_wrap=True, overflow="ellipsis")
        block.add_row(self._counts(progress))
        if progress.best is not None and self._metric is not None:
            value = f"{self._value(progress.best.metric)} {self._metric.name}"
            where = f"  {JOB}/{progress.best.trial}  {_params(progress.best)}"
            block.add_row(Text.assemble(("best ", "dim"), (value, "bold green"), where))
        rows = Table.grid(padding=(0, 2, 0, 0))
        for column in range(5):
            rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if column == 2 else None)
        shown = progress.running[: max(1, room - 3)]
        for row in shown:
            rows.add_row(*self._row(row))
        block.add_row(rows)
        if (more := len(progress.running) - len(shown)) > 0:
            block.add_row(Text(f"  {self._err.marks.more} {more} more", "dim"))
        return block

    def _row(self, row: Row) -> tuple[str | Text, ...]:
        since = "starting" if row.since is None else duration(time.monotonic() - row.since)
        value = (
            f"{self._value(row.value)} {self._metric.name}" if self._metric and row.value is not None else ""
        )
        return f"  {row.trial.task}", row.seat, Text(str(row.trial), "dim"), value, since

    def _counts(self, progress: Progress) -> Text:
        dot = f" {self._err.marks.dot} "
        parts = [
            f"{progress.succeeded} of {progress.total} done",
            *([f"{progress.failed} failed"] if progress.failed else []),
            f"{len(progress.running)} running",
            *([f"{progress.queued} waiting"] if progress.queued else []),
        ]
        if not progress.seats:
            parts.append("no card is free")
        elif progress.seconds is not None and progress.queued:
            # What runs is half over, on the average.
            rounds = (progress.queued + len(progress.running) / 2) / progress.seats
            parts.append(f"about {duration(rounds * progress.seconds)} left")
        return Text.assemble((self._name, "bold"), "  ", dot.join(parts))


def _params(result: Result) -> str:
    return " ".join(f"{name}={value}" for name, value in result.params.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
