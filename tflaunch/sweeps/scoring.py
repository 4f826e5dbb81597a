"""The metric of trials that have ended, read from their logs; and a sweep in which no trial printed it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tflaunch.protocol.errors import EXIT_NO_METRIC
from tflaunch.protocol.job import TRIAL, TaskId
from tflaunch.protocol.outcome import EndedByRule, Outcome
from tflaunch.sweeps.curves import Curve
from tflaunch.sweeps.results import Metric, MetricReading, Result, Results, no_metric
from tflaunch.sweeps.seats import SweepRequest
from tflaunch.sweeps.trials import Trial

_PIECE = 1 << 20  # bytes of a log that are read at once


class NoteWatcher(Protocol):
    """Shows notes to the user."""

    def note(self, text: str) -> None: ...


class Missing(NamedTuple):
    """No trial that succeeded printed the metric: a sentence, the options to score anew, the first such trial."""

    reason: str
    todo: str
    first: int


def score_anew(results: Results, metric: Metric, watcher: NoteWatcher) -> None:
    """Read the metric of all trials that have ended from their logs, and write it into the results.

    Raises RecordError.
    """
    found = 0
    for number, each in sorted(results.last.items()):
        reading = read_log(each, metric)
        found += reading is not None and reading.value is not None
        value = reading.value if reading is not None else None
        if value != each.metric:
            results.add(dataclasses.replace(results.last[number], metric=value))
    about = {**results.about, "metric": metric.text, "maximize": metric.maximize}
    results.keep_trials(results.known, results.seed, about)
    watcher.note(
        f"{results.record.run_id}: scored anew by {metric.text}: {found} of {len(results.last)} logs have it"
    )


def read_log(result: Result, metric: Metric) -> MetricReading | None:
    """What the log of a trial that has ended says of that metric; None where the log is gone."""
    reading = MetricReading(metric)
    try:
        with Path(result.log).open("rb") as file:
            while data := file.read(_PIECE):
                reading.feed(reading.received, data)
    except OSError:
        return None
    reading.end()
    return reading


def is_metric_of(results: Results, metric: Metric) -> bool:
    """Whether the results on record have the values of that metric; how they are compared does not matter."""
    return bool(results.about.get("metric") == metric.text)


def curves_before(request: SweepRequest, results: Results) -> list[Curve]:
    """The curves of the trials that have succeeded before, for --stop-below."""
    if request.stop_below is None or request.metric is None:
        return []
    done = [each for each in results.last.values() if each.status == "succeeded"]
    readings = [read_log(each, request.metric) for each in done]
    return [reading.curve for reading in readings if reading is not None]


def without_metric(request: SweepRequest, results: Results, wanted: Sequence[Trial]) -> Missing | None:
    """What is missing if none of the trials that succeeded printed the metric; None if one printed it."""
    numbers = {trial.number for trial in wanted}
    done = [
        each
        for number, each in sorted(results.last.items())
        if number in numbers and each.status == "succeeded"
    ]
    if request.metric is None or not done or any(each.metric is not None for each in done):
        return None
    reading = read_log(done[0], request.metric)
    what, todo = no_metric(request.metric, reading.keys if reading else ())
    return Missing(
        f"no trial printed {request.metric.name} ({len(done)} succeeded); {TRIAL}/{done[0].trial}'s {what}",
        todo,
        done[0].trial,
    )


def with_metric_failure(
    outcome: Outcome, request: SweepRequest, results: Results, wanted: Sequence[Trial]
) -> Outcome:
    """The outcome, failed if no trial has printed the metric: then the sweep has compared nothing."""
    missing = without_metric(request, results, wanted)
    if missing is None or outcome.exit_code != 0:
        return outcome
    ended = EndedByRule(missing.reason, (TaskId(TRIAL, missing.first),), EXIT_NO_METRIC)
    return dataclasses.replace(outcome, status="failed", exit_code=EXIT_NO_METRIC, first_failure=ended)
