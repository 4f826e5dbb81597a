"""The search for the fastest layout: runs the program in each for a few seconds, and goes on with the faster half."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tflaunch.api.event_feed import EventReporter, Events
from tflaunch.api.requests.run import request_of as run_request
from tflaunch.api.requests.tune import TuneRequest, options_of_try
from tflaunch.api.running import Prepared, Run
from tflaunch.diagnosis.rule import trains
from tflaunch.hosts import fold
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import EXIT_NO_METRIC, EXIT_TIMEOUT, PlanError, TflaunchError
from tflaunch.protocol.outcome import EndedByRule, Outcome, TaskExit, TimedOut, how
from tflaunch.runs.record import Record
from tflaunch.sessions.group import Stopped
from tflaunch.text.times import duration
from tflaunch.tuning import halving
from tflaunch.tuning.halving import Round
from tflaunch.tuning.layouts import TaskLayout
from tflaunch.tuning.step_rates import Rate, StepRates
from tflaunch.tuning.tried import Tried, Try

if TYPE_CHECKING:
    from tflaunch.documents.json_events import Event

JUDGED_S = 0.1  # a program that prints every step is not asked for its rate at each
GIVE_UP = 2  # so many layouts that fail before any could be measured end the search
PRINT_STEPS = (
    "have the workers print one now and then, at least every second: print('step', step, flush=True); in Keras a"
    " callback does it: LambdaCallback(on_train_batch_end=lambda batch, logs: print('step', batch, flush=True))"
)


class NothingMeasured(TflaunchError):
    """No layout could be measured."""

    def __init__(self, message: str, hint: str, exit_code: int = EXIT_NO_METRIC) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


class TuneWatcher(Protocol):
    """Sees how far the search is."""

    def begins(self, run_id: str, tried: Tried) -> None:
        """The search has a record of this name; `tried` is what is known from now on, also if the search is stopped."""

    def trying(self, layout: TaskLayout, number: int, total: int) -> None:
        """Run `number` of `total` begins."""

    def tried(self, layout: TaskLayout, tried: Try, number: int, total: int) -> None:
        """It has ended."""


class PreparedTry(Prepared):
    """The run of one layout, ready to be carried out."""

    def __init__(self, request: TuneRequest, layout: TaskLayout) -> None:
        options = options_of_try(request, layout)
        self.events = Events()
        self.reporter = EventReporter(self.events)
        self.ssh, self.on_end = options.connection, ""
        try:
            asked = run_request(
                options, None, self.reporter, command=request.command, hostfile=request.hostfile
            )
            self.request = dataclasses.replace(asked, run_id=request.run_id("layout"))
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Do not carry it out."""
        self.events.discard()
        self.reporter.close()


def planned(request: TuneRequest) -> Tried:
    """The layouts, of which none is tried; raises TflaunchError for what none of them could be run with."""
    PreparedTry(request, request.layouts[0]).discard()
    return Tried(request.layouts, request.about)


def tune(request: TuneRequest, watcher: TuneWatcher, resume: str | None = None) -> tuple[str, Tried]:
    """Try the layouts; return the name of the search, and what came of each.

    resume: a search on record that goes on.
    Raises TflaunchError: NothingMeasured where no layout could be measured; Stopped after Ctrl-C.
    """
    # What no layout could be run with is told before anything is on record.
    tried = planned(request) if resume is None else Tried(request.layouts, request.about)
    with contextlib.closing(_record_of(request, resume, tried)) as record, _ended(record):
        watcher.begins(record.run_id, tried)
        _Search(request, tried, watcher).go()
    return record.run_id, tried


def _record_of(request: TuneRequest, resume: str | None, tried: Tried) -> Record:
    """The record of the search, locked, which `tried` goes on from and is kept in.

    A record that this is no search of, or another one, stays as it was.  Raises UsageError, RecordError.
    """
    ssh_config = request.options.connection.config_path
    taken_later = request.hostfile.wanted is not None
    hostfile = dataclasses.replace(request.hostfile, hosts=()) if taken_later else request.hostfile
    if resume is None:
        name = request.run_id("tune")
        record = Record.create(
            name,
            plan=ClusterPlan(name, ()),
            hostfile=hostfile,
            command=request.command,
            ssh_config=ssh_config,
        )
    else:
        record = Record.reopen(Record.open(resume).run_id)
    try:
        if resume is None:
            tried.keep_in(record)
        else:
            tried.go_on(record)
            record.resume(hostfile, request.command, ssh_config)
    except BaseException:
        if resume is None:
            record.discard()
        record.close()
        raise
    return record


@contextlib.contextmanager
def _ended(record: Record) -> Iterator[None]:
    """At the end, the record says how the search ended."""
    begun = time.monotonic()

    def end(status: Any, code: int, why: str = "") -> None:
        failure = EndedByRule(why, (), code) if why else None
        seconds = time.monotonic() - begun
        record.finish(Outcome(record.run_id, status, code, seconds, first_failure=failure))

    try:
        yield
        end("succeeded", 0)
    except Stopped as stopped:
        end("interrupted", 128 + stopped.interrupted.signal)
        raise
    except TflaunchError as error:
        end("failed", error.exit_code, error.message)
        raise


class _Search:
    """Goes through the rounds."""

    def __init__(self, request: TuneRequest, tried: Tried, watcher: TuneWatcher) -> None:
        self._request, self._tried, self._watcher = request, tried, watcher
        self._done = 0

    def go(self) -> None:
        """Try all layouts, then the faster ones again, with more steps; raises TflaunchError, Stopped."""
        left: Sequence[TaskLayout] = self._tried.layouts
        rounds = halving.rounds(len(left), self._request.options.measure.steps)
        total = sum(each.layouts for each in rounds)
        for number, this in enumerate(rounds):
            kept = rounds[number + 1].layouts if number + 1 < len(rounds) else 1
            for layout in left:
                self._once(layout, number, this, kept, total)
            left = halving.fastest(self._tried.rates(left, number), kept)
            if not left:
                raise self._nothing()

    def _once(self, layout: TaskLayout, number: int, this: Round, kept: int, total: int) -> None:
        known = self._tried.of_round(layout, number)
        self._done += 1
        if known is not None and known.rate is not None:
            return
        self._watcher.trying(layout, self._done, total)
        others = [
            rate
            for other, rate in self._tried.rates(self._tried.layouts, number).items()
            if rate is not None and other != layout
        ]
        found = _Trying(self._request, layout, number, this.steps).measured(others, kept)
        self._tried.add(layout, found)
        self._watcher.tried(layout, found, self._done, total)
        self._maybe_give_up()

    def _maybe_give_up(self) -> None:
        """Raise NothingMeasured once layouts have failed for what the others will fail for, too.

        A program that has ended without a step names none in any layout; one that ran into --timeout may only be slow.
        """
        tries = [each for all_of_it in self._tried.tries.values() for each in all_of_it]
        ran = [each for each in tries if each.run_id]
        if any(each.rate is not None for each in ran):
            return
        if len(ran) >= GIVE_UP or any(each.exit_code == EXIT_NO_METRIC for each in ran):
            raise self._nothing()

    def _nothing(self) -> NothingMeasured:
        tries = [each for all_of_it in self._tried.tries.values() for each in all_of_it]
        ran = [each for each in tries if each.run_id] or tries
        first = next((each for each in ran if each.exit_code == EXIT_NO_METRIC), ran[0])
        if first.exit_code == EXIT_NO_METRIC:
            hint = PRINT_STEPS
        elif first.exit_code == EXIT_TIMEOUT:
            hint = f"give it longer, as with --timeout 10m; or {PRINT_STEPS}"
        elif first.run_id:
            hint = f"what its tasks printed: tflaunch logs {first.run_id}"
        else:
            hint = "name fewer tasks, or more hosts"
        return NothingMeasured(first.why, hint, first.exit_code)


class _Trying:
    """One run of one layout."""

    def __init__(self, request: TuneRequest, layout: TaskLayout, number: int, steps: int) -> None:
        self._request, self._layout, self._number, self._steps = request, layout, number, steps
        self._rates = StepRates(())
        self._rate: Rate | None = None
        self._error = ""  # the line by which the first task that failed says why
        self._judged = 0.0  # when the rate was last computed

    def measured(self, others: Sequence[float], kept: int) -> Try:
        """Run it until it has done its steps, or is far behind the others; raises TflaunchError, Stopped."""
        enough = cut_short = False
        prepared: PreparedTry | None = None
        try:
            prepared = PreparedTry(self._request, self._layout)
            with Run(prepared) as run:
                for event, at in prepared.events.timed():
                    self._take(event, at, prepared)
                    if event["event"] != "log":
                        continue
                    enough, cut_short = self._is_enough(others, kept)
                    if enough or cut_short:
                        break
            run.wait()
        except PlanError as error:
            return Try(self._number, "", None, why=error.message, exit_code=error.exit_code)
        return self._result(prepared, cut_short=cut_short, enough=enough or cut_short)

    def _take(self, event: Event, at: float, prepared: PreparedTry) -> None:
        """Take an event that came then, by time.monotonic."""
        measure = self._request.options.measure
        if event["event"] == "plan":
            names = [str(task.id) for task in prepared.reporter.plans[-1].tasks]
            self._rates = StepRates(
                filter(trains, names), shared=measure.global_steps, patience_s=max(5.0, measure.seconds)
            )
        elif event["event"] == "report":
            self._error = (event["first_failure"] or {}).get("error", "")
        elif event["event"] == "log" and not event.get("partial") and trains(event["task"]):
            names_step = self._rates.line(event["task"], at, event["line"])
            if names_step and at - self._judged >= JUDGED_S:
                self._judged = at
                self._rate = self._rates.rate()

    def _is_enough(self, others: Sequence[float], kept: int) -> tuple[bool, bool]:
        """(Whether it has done its steps, whether it is so slow that it need not.)"""
        rate = self._rate
        if rate is None or rate.seconds < self._request.options.measure.seconds:
            return False, False
        return rate.steps >= self._steps, halving.is_hopeless(rate.rate, others, kept)

    def _result(self, prepared: PreparedTry, *, cut_short: bool, enough: bool) -> Try:
        plan, outcome = prepared.reporter.plans[-1], prepared.reporter.outcomes[-1]
        tasks, hosts = Counter(task.id.job for task in plan.tasks), {task.host for task in plan.tasks}
        self._rate = self._rate if enough else self._rates.rate()
        rate, notes = self._rate, list[str]()
        why, code = ("", 0) if enough else self._why_not(outcome, notes)
        if plan.left_out:
            notes.append(f"without {fold(plan.left_out)}: {next(iter(plan.left_out.values()))}")
        if rate is not None and rate.silent:
            notes.append(f"{', '.join(rate.silent)} printed no steps, so only the others' are counted")
        found = Try(
            self._number,
            prepared.request.run_id,
            None,
            tasks=dict(tasks),
            hosts=len(hosts),
            limits=tuple(dict.fromkeys(prepared.reporter.slowness)),
            notes=tuple(notes),
            cut_short=cut_short,
            why=why,
            exit_code=code,
        )
        if rate is None or why:
            return found
        return dataclasses.replace(
            found,
            rate=rate.rate,
            low=rate.low,
            high=rate.high,
            steps=rate.steps,
            seconds=rate.seconds,
            shared=rate.shared,
        )

    def _why_not(self, outcome: Outcome, notes: list[str]) -> tuple[str, int]:
        """(Why it cannot be compared, its exit code), ("", 0) if it can: it ended before it had done its steps."""
        first = outcome.first_failure
        if outcome.status != "succeeded" and not isinstance(first, TimedOut):
            if isinstance(first, TaskExit):
                said = f": {self._error}" if self._error else ""
                return f"{first.task} on {first.host} {how(first)}{said}", outcome.exit_code
            reason = getattr(first, "reason", "") or outcome.status
            return f"the run ended early: {reason}", outcome.exit_code
        after = f"within {duration(outcome.seconds)}" if isinstance(first, TimedOut) else "until its end"
        if self._rate is None:
            what = "one step at most" if self._rates.seen else "no step"
            code = EXIT_TIMEOUT if isinstance(first, TimedOut) else EXIT_NO_METRIC
            return f"the program has named {what} in what it printed {after}", code
        if outcome.exit_code == EXIT_TIMEOUT or self._rate.steps < self._steps:
            notes.append(f"{self._rate.steps:.0f} of {self._steps} steps {after}")
        return "", 0
