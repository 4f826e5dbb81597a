"""What programs see of a sweep: its trials, and what a run shows but logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from tflaunch.documents.json_lines import JsonReporter
from tflaunch.documents.reporter import Reporter
from tflaunch.protocol.events import TaskStarted
from tflaunch.sweeps import controller
from tflaunch.sweeps.controller import Planned, Summary, SweepProgress
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.results import Metric, Result
from tflaunch.sweeps.trials import Trial, arguments


class SweepReporter(Reporter, controller.SweepDisplay, Protocol):
    """The methods that show a sweep: those that show a run, and those for trials."""


class SweepJson(JsonReporter):
    """One JSON object a line on stdout; tflaunch.documents.json_events has the events."""

    def begins(
        self, run_id: str, total: int, left: int, seats: Sequence[Seat], metric: Metric | None
    ) -> None:
        """Show that the hosts are ready, and how much there is to do."""
        measured = {"metric": metric.name if metric else None, "maximize": bool(metric and metric.maximize)}
        self._event("sweep", run_id=run_id, total=total, left=left, seats=len(seats), **measured)

    def planned(self, planned: Planned) -> None:
        """Show what `--dry-run` has planned."""
        trials = [
            {
                "task": str(trial.task),
                "params": dict(trial.params),
                "args": list(arguments(planned.words, trial)),
            }
            for trial in planned.trials
        ]
        seats = [{"host": seat.host, "gpus": list(seat.labels)} for seat in planned.seats]
        counts = {"run_id": planned.run_id, "total": planned.total, "left": planned.left}
        self._event(
            "plan", **counts, seats=seats, others=dict(planned.others), seed=planned.seed, trials=trials
        )

    def progress(self, progress: SweepProgress) -> None:
        """Show nothing: `trial` and `result` have it all."""

    def trial(self, trial: Trial, started: TaskStarted, seat: Seat) -> None:
        """Show that a trial has started."""
        where = {"host": seat.host, "gpus": list(seat.labels), "attempt": started.attempt}
        self._event("trial", task=str(trial.task), **where, params=dict(trial.params))

    def result(self, result: Result) -> None:
        """Show that a trial has ended, and will not be tried again."""
        self._event("result", **dataclasses.asdict(result))

    def summary(self, summary: Summary) -> None:
        """Show what the sweep has found."""
        best = summary.best[0] if summary.best and summary.run_best else None
        self._event(
            "summary",
            run_id=summary.run_id,
            total=summary.total,
            succeeded=len(summary.best),
            failed=sum(each.status == "failed" for each in summary.results),
            stopped=sum(each.status == "stopped" for each in summary.results),
            best=dataclasses.asdict(best) if best else None,
            run_best=list(summary.run_best),
            resume=summary.resume,
            results=summary.path,
        )
