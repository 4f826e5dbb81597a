"""Shows a sweep: its trials, and what a run shows (tflaunch.documents.reporter) but logs.

On a terminal a few live lines show which trials run; a trial that has ended leaves a line above them.  The table at
the end goes to stdout, everything else to stderr.

For programs, tflaunch.documents.json_sweep does.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, cast

from tflaunch.console import opening
from tflaunch.console.safe_text import Text
from tflaunch.console.sweep_page import (
    last_line,
    left_lines,
    params_text,
    planned_lines,
    planned_places,
    progress_lines,
    summary_lines,
    value_text,
)
from tflaunch.console.terminal import TextReporter
from tflaunch.documents.json_sweep import SweepJson, SweepReporter
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TRIAL
from tflaunch.protocol.outcome import TaskExit
from tflaunch.sweeps.controller import Planned, Summary, SweepProgress
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.results import Metric, Result
from tflaunch.sweeps.trials import Trial, arguments
from tflaunch.text.numbers import counted
from tflaunch.text.times import duration

_TICK_S = 0.25
_LINES_LEFT = 4  # rows of the screen that live lines leave free


def open_reporter(*, json: bool, one_document: bool = False) -> SweepReporter:
    """Return the reporter of a sweep; `one_document` as for a run."""
    styles = (SweepText, SweepJson)
    return cast(
        "SweepReporter",
        opening.open_reporter(json=json, quiet=True, one_document=one_document, styles=styles),
    )


class SweepText(TextReporter):
    """Lines for people."""

    def __init__(self, *streams: Any) -> None:
        self._metric: Metric | None = None
        self._name = ""
        self._progress: SweepProgress | None = None
        self._failures: set[str] = set()  # why trials have failed
        super().__init__(*streams)

    def begins(
        self, run_id: str, total: int, left: int, seats: Sequence[Seat], metric: Metric | None
    ) -> None:
        """Show that the hosts are ready, and how much there is to do."""
        self._metric, self._name = metric, run_id
        before = f", {total - left} of them done before" if left < total else ""
        if seats:
            where = f"{len(seats)} at a time on {counted(len({seat.host for seat in seats}), 'host')}"
        else:
            where = "as soon as GPUs are free"
        marks = self._err.marks
        text = f" {counted(total, 'trial')}{before} {marks.dot} {where}"
        self._message(Text.assemble(("sweep ", ""), (run_id, "bold"), (text, "dim")))

    def planned(self, planned: Planned) -> None:
        """Show what `--dry-run` has planned: the trials go to stdout."""
        self.begins(planned.run_id or "(new)", planned.total, planned.left, planned.seats, None)
        for text in planned_places(planned):
            self.note(text)
        if planned.seed is not None:
            self.note(f"drawn with --seed {planned.seed}, which draws the same trials again")
        if not planned.trials:  # all are to be proposed
            return
        first = planned.trials[0]
        self.note(f"{first.task} runs {shlex.join(arguments(planned.words, first))}")
        self._writer.put("message", lambda: self._write_lines(planned_lines(planned, self._out.sheet)))

    def progress(self, progress: SweepProgress) -> None:
        """Show on a terminal how the sweep stands."""
        if self._live:
            self._writer.put("message", lambda: self._take_progress(progress))

    def started(self, started: TaskStarted) -> None:
        """Show nothing: `trial` says more."""

    def exited(self, exit: TaskExit) -> None:
        """Show nothing: `result` says more."""

    def trial(self, trial: Trial, started: TaskStarted, seat: Seat) -> None:
        """Show that a trial has started, where no live lines show it."""
        if not self._live:
            again = f" (attempt {started.attempt + 1})" if started.attempt else ""
            self._message(Text(f"  {trial.task} on {seat} has started{again}: {trial}", "dim"))

    def result(self, result: Result) -> None:
        """Show that a trial has ended, and will not be tried again."""
        if result.status == "failed":
            if result.why in self._failures:
                return  # the live lines and the last one count it; the table has it as (+1 alike)
            self._failures.add(result.why)
        good, marks = result.status == "succeeded", self._err.marks
        mark, style = {"succeeded": (marks.ok, "green"), "stopped": (marks.warn, "yellow")}.get(
            result.status, (marks.bad, "bold red")
        )
        what, why = f"{TRIAL}/{result.trial} on {result.host}", result.why
        if result.status == "stopped":
            what += " was stopped"
        elif not good:
            how, _, why = why.partition(": ")
            what += f" {how}"
        text = f"{what} after {duration(result.seconds)}"
        if result.attempts > 1:
            text += f", attempt {result.attempts}"
        if why and not good:
            text += f": {why}"
        measured = ""
        if good and self._metric:
            measured = f"  {value_text(result.metric) or 'no'} {self._metric.name}"
        line = Text.assemble(
            (f"{mark} ", style), text, (measured, "bold"), (f"  {params_text(result)}", "dim")
        )
        self._message(line)

    def summary(self, summary: Summary) -> None:
        """Show what the sweep has found: the table goes to stdout."""
        commands = {"  results: ": summary.path, "  the best again: ": shlex.join(summary.run_best)}
        commands["  go on: "] = summary.resume
        # Each on one line, however long, so that the user can copy it.
        lines = [Text.assemble((what, "dim"), text, no_wrap=True) for what, text in commands.items() if text]

        def show() -> None:
            self._stop_live()
            self._write_lines(summary_lines(summary, self._out.sheet, self._out.rows))

        self._writer.put("message", show)
        # A message of its own waits until the table is written: on a terminal, the last line is the last.
        self._writer.put("message", lambda: self._print(*lines, last_line(summary, self._err.marks)))

    def close(self, wait: bool = True) -> None:
        """End the live lines, then close as for a run."""
        self._writer.put("message", self._stop_live)
        super().close(wait)

    # From here on: in the writer's thread.

    def _left_lines(self, run_id: str) -> list[Text]:
        return left_lines(run_id, self._err.marks)

    def _go(self, leave: Callable[[], None]) -> None:
        self._stop_live()
        super()._go(leave)

    def _take_progress(self, progress: SweepProgress) -> None:
        self._progress = progress

    def _stop_live(self) -> None:
        self._wipe()
        self._progress = None

    def _write_lines(self, lines: Sequence[Text]) -> None:
        self._writer.out("".join(map(self._out.render, lines)))

    def _what_is_live(self) -> tuple[list[Text], float]:
        if self._progress is None or self._phases.active:
            return super()._what_is_live()
        sheet = self._err.sheet
        sheet.columns = sheet.columns and sheet.columns - 1  # a line of full width wraps on some terminals
        rows = max(1, self._err.rows - _LINES_LEFT)
        return progress_lines(self._progress, self._name, self._metric, sheet, rows), _TICK_S
