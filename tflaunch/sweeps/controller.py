"""A sweep while it runs: applies events to its state, and updates logs, results and the display."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tflaunch.launch.run_watcher import RunWatcher
from tflaunch.lifecycle.actions import Action
from tflaunch.lifecycle.driver import Monitor
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol.errors import EXIT_TIMEOUT, PlanError, RecordError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TRIAL, TaskId
from tflaunch.protocol.outcome import TaskExit
from tflaunch.sweeps import lifecycle as machine
from tflaunch.sweeps.curves import Curve
from tflaunch.sweeps.first_seats import Seating
from tflaunch.sweeps.lifecycle import BadTrial, GpusSeen, Proposed, Seat, SweepState
from tflaunch.sweeps.optuna_study import OptunaStudy
from tflaunch.sweeps.results import Metric, MetricReading, Result, Results, no_metric, ranked, result
from tflaunch.sweeps.seats import SeatFinder, SweepRequest, TrialRequests
from tflaunch.sweeps.trial_looks import TrialLooks
from tflaunch.sweeps.trials import Trial


@dataclass(frozen=True)
class TrialRow:
    """A trial that runs, for the display."""

    trial: Trial
    seat: str
    since: float | None  # when it started, by time.monotonic; None: not yet
    value: float | None  # of the metric, so far
    curve: tuple[float, ...] = ()  # of the metric, the latest last


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is, for the display."""

    total: int
    succeeded: int
    failed: int
    queued: int
    seats: int
    running: tuple[TrialRow, ...]
    best: Result | None
    seconds: float | None  # the average time of a trial; None while too few have ended
    stopped: int = 0  # by --stop-below
    curve: tuple[float, ...] = ()  # the best value after each trial that succeeded


@dataclass(frozen=True)
class Planned:
    """What a sweep would do (--dry-run)."""

    run_id: str  # of the sweep on record that would go on; "": it would be a new one
    trials: tuple[Trial, ...]  # that would run
    total: int  # of trials, with those that have succeeded before
    seats: tuple[Seat, ...]
    others: Mapping[str, int]  # host -> how many of its GPUs are in use and may become free
    words: tuple[str, ...]  # the program and its arguments, without the trial's values
    seed: int | None  # with which the trials are drawn; None: none are drawn
    to_come: int = 0  # trials that a search has not proposed yet

    @property
    def left(self) -> int:
        """How many trials are to run."""
        return len(self.trials) + self.to_come


@dataclass(frozen=True)
class Summary:
    """The results of a sweep at its end."""

    run_id: str
    results: tuple[Result, ...]  # of all trials that have ended, now or before
    best: tuple[Result, ...]  # those that succeeded, the best first
    total: int  # of trials
    metric: Metric | None
    path: str  # of the file with the results
    run_best: tuple[str, ...]  # the command that runs the best trial again; (): there is none
    resume: str  # the command that goes on with the sweep; "" when no trial is left to run


class SweepDisplay(RunWatcher, Protocol):
    """What a sweep needs of `tflaunch.console.sweep_screen`."""

    def begins(
        self, run_id: str, total: int, left: int, seats: Sequence[Seat], metric: Metric | None
    ) -> None: ...
    def leaves(self, run_id: str, left: int, leave: Callable[[], None]) -> None: ...
    def planned(self, planned: Planned) -> None: ...
    def progress(self, progress: SweepProgress) -> None: ...
    def trial(self, trial: Trial, started: TaskStarted, seat: Seat) -> None: ...
    def result(self, result: Result) -> None: ...
    def summary(self, summary: Summary) -> None: ...


@dataclass(frozen=True)
class Work:
    """A sweep and the trials that are to run."""

    request: SweepRequest
    results: Results
    wanted: list[Trial]  # all trials of this command; those that the study proposes are added
    left: Sequence[Trial]  # those that have not succeeded yet
    begun: float  # by time.monotonic
    study: OptunaStudy | None = None  # which proposes trials, or says which of them stop
    curves: Sequence[Curve] = ()  # of trials that have succeeded before, for --stop-below


@dataclass(frozen=True)
class _Begin:
    """The event by which the sweep begins: the hosts are ready."""


class SweepController(Monitor):
    """Applies events to the sweep's state; updates logs, results and the display.

    To the driver (lifecycle/driver.py) it is both the state and the monitor.
    """

    def __init__(self, work: Work, finder: SeatFinder, reporter: SweepDisplay, seating: Seating) -> None:
        (seats, others), request, left = seating, work.request, work.left
        self.state = SweepState(
            trials={trial.number: trial for trial in left},
            make=TrialRequests(request.run, request.per_gpu),
            hosts={host: host for host in {seat.host for seat in seats} | others.keys()},
            seats=seats,
            queue=tuple(trial.number for trial in left),
            to_come=work.study.left if work.study else 0,
            others=others,
            retries=request.retries,
            grace_s=request.run.grace_s,
            share_gpus=request.run.gpus.share,
            timeout_s=request.timeout_s,
            attempts=work.results.attempts(),
            keep_going=request.keep_going or bool(len(work.wanted) - len(left)),
        )
        self._request = request
        self._results = work.results
        self._study = work.study
        self._wanted = work.wanted
        self._numbers = {trial.number for trial in work.wanted}
        self._finder = finder
        self._reporter = reporter
        self._readings: dict[tuple[int, int], MetricReading] = {}
        self._seats: dict[tuple[int, int], Seat] = {}
        self._attempts: dict[int, int] = {}  # trial -> the newest; one on a lost host may still print
        self._placed: set[tuple[int, str]] = set()  # (trial, host)
        # Trials that have ended, while some of their logs is still to come.
        self._unread: dict[int, TaskExit] = {}
        # (trial, attempt) -> the size of its log, once it has ended and until all of the log is here.
        self._sizes: dict[tuple[int, int], int] = {}
        self._events: list[Any] = [_Begin()]  # for the state machine
        self._failed = 0
        self.first_host = ""  # where the first trial has started
        self._took: list[float] = []  # seconds of each trial that has succeeded
        self._stopped = 0
        self._done_before = len(work.wanted) - len(left)
        self._ended_curves = list(work.curves)  # of the trials that have succeeded
        self.looks = TrialLooks()
        self._told_of_metric = False
        self._notes: set[tuple[str, str]] = set()  # (host, text), which may come again after a reconnect
        self._best: Result | None = None
        self._best_values: list[float] = []  # after each trial that succeeded
        mine = [each for number, each in self._results.last.items() if number in self._numbers]
        for each in sorted(mine, key=lambda each: each.ended):
            self._compare(each)

    # --- as the driver's state

    @property
    def hosts(self) -> Mapping[str, str]:
        """See State."""
        return self.state.hosts

    @property
    def all_hosts(self) -> frozenset[str]:
        """See Ending."""
        return self.state.all_hosts

    @property
    def phase(self) -> str:
        """See State."""
        return self.state.phase

    @property
    def status(self) -> str:
        """How it ends, as far as is known now."""
        return self.state.status

    @property
    def lost(self) -> Mapping[str, str]:
        """See State."""
        return self.state.lost

    @property
    def swept(self) -> Mapping[str, tuple[str, ...]]:
        """See State."""
        return self.state.swept

    def has_task(self, host: str, task: TaskId) -> bool:
        """See State."""
        return (task.index, host) in self._placed and task.job == TRIAL

    def is_busy(self, host: str) -> bool:
        """See State."""
        return self.state.is_busy(host)

    def step(self, event: Any, now: float) -> tuple[SweepController, list[Action]]:
        """Apply an event to the state; update logs, results and the display."""
        before = self.state
        if isinstance(event, _Begin):
            self.state, actions = machine.begin(before)
        else:
            self.state, actions = before.step(event, now)
        for number, attempt in self.state.running.items():
            if before.running.get(number) is not attempt:
                self._begins(self.state.trials[number], attempt)
        for number in self.state.ended.keys() - before.ended.keys():
            self._unread[number] = self.state.ended[number]
        self._write_results()
        self._ask()
        self._show()
        return self, actions

    # --- as the driver's monitor

    def happened(self, event: Any, now: float) -> tuple[()]:
        """Show a trial that has started; close the log of one that has ended."""
        if isinstance(event, TaskExit) and (key := (event.task.index, event.attempt)) in self._readings:
            self._sizes[key] = event.log_bytes
            self._maybe_end_log(event.task, event.attempt)
        if isinstance(event, TaskStarted) and (number := event.task.index) in self.state.trials:
            self.looks.started(str(event.task), now)
            self.first_host = self.first_host or event.host
            seat = self._seats.get((number, event.attempt))
            if seat is not None:
                self._reporter.trial(self.state.trials[number], event, seat)
        return ()

    def said(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:  # noqa: ARG002
        """Take the facts of a host: some of its GPUs may have become free; show, once, what its agent says."""
        if type == "said" and (host, fields["text"]) not in self._notes:
            self._notes.add((host, fields["text"]))
            self._reporter.note(f"{host}: {fields['text']}")
        if type == "facts":
            inventory = {host: HostFacts.from_wire(host, fields)}
            try:
                seats = self._finder.seats(inventory, [], self.state.seats)
            except PlanError:
                seats = ()
            self._events.append(GpusSeen(host, seats))

    def questions(self, hosts: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What the trials use, for the report; the other questions the state machine sends as orders."""
        return self.looks.questions(filter(self.is_busy, hosts), now)

    def sentences(self, now: float) -> list[Any]:  # noqa: ARG002
        """None: trials do not wait for each other."""
        return []

    def holds(self) -> tuple[list[str], list[str]]:
        """Nothing: trials are not watched over."""
        return [], []

    def next_event(self, now: float) -> Any:  # noqa: ARG002
        """The next event of this object's own: the beginning, or free GPUs."""
        return self._events.pop(0) if self._events else None

    def wake_at(self) -> float:
        """At once when there is an event, else when it looks at the trials."""
        return 0.0 if self._events else self.looks.wake_at

    # --- logs and results

    def read(self, task: TaskId, attempt: int, offset: int, data: bytes) -> None:
        """Write a piece of a log into the record, and look for the metric in it."""
        try:
            self._results.record.logs.append(task, offset, data, attempt)
        except RecordError as error:
            self._reporter.warn(f"{error.message}. {error.hint}")
        reading = self._readings.get((task.index, attempt))
        if reading is not None:
            reports = reading.curve.count
            changed = reading.feed(offset, data)
            if reading.curve.count > reports and attempt == self._attempts[task.index]:
                self._judge(task.index, attempt, reading.curve)
            if changed:
                self._show()
        self._maybe_end_log(task, attempt)
        if self._unread:
            self._write_results()
            self._ask()

    def _ask(self) -> None:
        """Have the study propose trials for the free seats, once it knows all results that there are."""
        if self._study is None or any(exit.host not in self.state.lost for exit in self._unread.values()):
            return
        asked = sum(isinstance(each, Proposed) for each in self._events)
        for _ in range(self.state.wanted - asked):
            trial = self._study.ask()
            self._events.append(Proposed(trial))
            if trial is None:
                return
            self._wanted.append(trial)
            self._numbers.add(trial.number)

    def end(self) -> None:
        """Write the remaining results: no more bytes of logs come."""
        self._write_results(whole=True)

    def _maybe_end_log(self, task: TaskId, attempt: int) -> None:
        key = (task.index, attempt)
        if key in self._sizes and self._readings[key].received >= self._sizes[key]:
            del self._sizes[key]
            self._results.record.logs.end(task, attempt)

    def _judge(self, number: int, attempt: int, curve: Curve) -> None:
        """Have the trial stopped if --stop-below or --pruner says so."""
        study, rule, metric = self._study, self._request.stop_below, self._request.metric
        value = self._readings[number, attempt].value
        if metric is None or value is None or number in self.state.bad:
            return
        why = study.verdict(number, curve.count, value) if study is not None else ""
        if rule is not None and not why:
            why = rule.verdict(curve, self._ended_curves, metric.maximize, metric.name)
        if why:
            self._events.append(BadTrial(number, attempt, why))

    def _compare(self, found: Result) -> None:
        """Take a result into account for the best trial so far."""
        if self._request.metric is None or found.status != "succeeded" or found.metric is None:
            return
        self._best = ranked([found, *([self._best] if self._best else [])], self._request.metric)[0]
        if self._best.metric is not None:
            self._best_values.append(self._best.metric)

    def _tell_of_metric(self, found: Result, reading: MetricReading) -> None:
        """Tell the user, once, that the metric is not in what a trial has printed."""
        metric = self._request.metric
        if metric is None or found.metric is not None or self._told_of_metric:
            return
        self._told_of_metric = True
        what, todo = no_metric(metric, reading.keys)
        self._reporter.warn(
            f"{TRIAL}/{found.trial} printed no {metric.name}; its {what}. Once the sweep has ended, this scores all "
            f"trials anew from their logs: tflaunch sweep {todo} {self._results.record.run_id}"
        )

    def _begins(self, trial: Trial, attempt: machine.Attempt) -> None:
        key = (trial.number, attempt.number)
        if key not in self._readings:
            self._readings[key] = MetricReading(self._request.metric)
            self._seats[key] = attempt.seat
            self._attempts[trial.number] = attempt.number
            self.looks.begins(str(trial.task), attempt.seat.gpus)
            self._placed.add((trial.number, attempt.seat.host))
            if self._study is not None:
                self._study.begins(trial)
            # Make an empty log, from which a later resume of the sweep knows of this attempt.
            self.read(trial.task, attempt.number, 0, b"")

    def _write_results(self, whole: bool = False) -> None:
        for number, exit in list(self._unread.items()):
            key = (number, exit.attempt)
            reading, seat = self._readings[key], self._seats[key]
            if reading.received < exit.log_bytes and not whole:
                continue
            del self._unread[number]
            reading.end()
            trial = self.state.trials[number]
            log = self._results.record.logs.path(trial.task, exit.attempt)
            late = f"was ended (--timeout {self.state.timeout_s:g})"
            late = late if self.state.late.get(number) == exit.attempt and exit.code == EXIT_TIMEOUT else ""
            attempt, why = self.state.bad.get(number, (None, ""))
            bad = why if attempt == exit.attempt and exit.stopped else ""
            found = result(trial, exit, reading, seat.labels, log, late=late, bad=bad)
            if found.status == "succeeded":
                self._took.append(found.seconds)
                self._ended_curves.append(reading.curve)
                self._compare(found)
                self._tell_of_metric(found, reading)
            try:
                self._results.add(found)
            except RecordError as error:
                self._reporter.warn(f"{error.message}. {error.hint}")
            if self._study is not None:
                self._study.ended(found)
            self._failed += found.status == "failed"
            self._stopped += found.status == "stopped"
            self._reporter.result(found)
            self._show()

    def _show(self) -> None:
        state = self.state
        rows = tuple(
            _row(state.trials[number], attempt, self._readings[number, attempt.number])
            for number, attempt in state.running.items()
        )
        enough = len(self._took) >= max(3, len(state.seats))
        self._reporter.progress(
            SweepProgress(
                total=len(self._numbers) + state.to_come,
                succeeded=self._done_before + len(self._took),
                failed=self._failed,
                queued=state.queued,
                seats=len(state.seats),
                running=rows,
                best=self._best,
                seconds=sum(self._took) / len(self._took) if enough else None,
                stopped=self._stopped,
                curve=tuple(self._best_values),
            )
        )


def _row(trial: Trial, attempt: machine.Attempt, reading: MetricReading) -> TrialRow:
    """A trial that runs, for the display."""
    return TrialRow(trial, str(attempt.seat), attempt.started, reading.value, tuple(reading.curve.values))
