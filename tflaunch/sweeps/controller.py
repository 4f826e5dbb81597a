"""A sweep while it runs: what tflaunch.lifecycle.driver drives, and beside it the logs, the results and the screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tflaunch.launch.watcher import RunWatcher
from tflaunch.lifecycle.driver import Monitor
from tflaunch.lifecycle.states import Action
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol.errors import EXIT_TIMEOUT, PlanError, RecordError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TRIAL, TaskId
from tflaunch.protocol.outcome import TaskExit
from tflaunch.sweeps import lifecycle as machine
from tflaunch.sweeps.lifecycle import CardsSeen, Seat, State
from tflaunch.sweeps.results import Metric, Reading, Result, Results, ranked, result
from tflaunch.sweeps.seats import Requests, SeatFinder, SweepRequest
from tflaunch.sweeps.trials import Trial


@dataclass(frozen=True)
class Row:
    """A trial that runs."""

    trial: Trial
    seat: str
    since: float | None  # by time.monotonic
    value: float | None


@dataclass(frozen=True)
class Progress:
    """How a sweep stands."""

    total: int
    succeeded: int
    failed: int
    queued: int
    seats: int
    running: tuple[Row, ...]
    best: Result | None
    seconds: float | None  # what a trial took, on the average; None while too few have ended


@dataclass(frozen=True)
class Planned:
    """What a sweep would do."""

    run_id: str  # of the one that would go on; "": it would be a new one
    trials: tuple[Trial, ...]  # that would run
    total: int  # with those that have succeeded before
    seats: tuple[Seat, ...]
    others: Mapping[str, int]  # host -> its cards that may be free later
    words: tuple[str, ...]  # the program and its arguments, without the values
    seed: int | None  # that the trials are drawn by


@dataclass(frozen=True)
class Summary:
    """What a sweep has come to."""

    run_id: str
    results: tuple[Result, ...]  # of all trials that have ended, now or before
    best: tuple[Result, ...]  # the best first
    total: int
    metric: Metric | None
    path: str  # of the results
    run_best: tuple[str, ...]  # the command that runs the best one again
    resume: str  # the command that goes on; "" when all have succeeded


class Reporter(RunWatcher, Protocol):
    """`tflaunch.console.sweep`, as far as it is needed here."""

    def begins(
        self, run_id: str, total: int, left: int, seats: Sequence[Seat], metric: Metric | None
    ) -> None: ...
    def planned(self, planned: Planned) -> None: ...
    def progress(self, progress: Progress) -> None: ...
    def trial(self, trial: Trial, started: TaskStarted, seat: Seat) -> None: ...
    def result(self, result: Result) -> None: ...
    def summary(self, summary: Summary) -> None: ...


@dataclass(frozen=True)
class Work:
    """What there is to do."""

    request: SweepRequest
    results: Results
    wanted: Sequence[Trial]  # those of this command
    left: Sequence[Trial]  # those of them that have not succeeded yet
    begun: float  # by time.monotonic


@dataclass(frozen=True)
class _Begin:
    """The hosts are ready."""


class SweepController(Monitor):
    """What the driver of a sweep drives: its state, and beside it the logs, the results and the screen."""

    def __init__(
        self,
        work: Work,
        finder: SeatFinder,
        reporter: Reporter,
        seats: tuple[Seat, ...],
        others: Mapping[str, tuple[str, ...]],
    ) -> None:
        request, left = work.request, work.left
        self.state = State(
            trials={trial.number: trial for trial in left},
            make=Requests(request.run, request.per_gpu),
            hosts={host: host for host in {seat.host for seat in seats} | others.keys()},
            seats=seats,
            queue=tuple(trial.number for trial in left),
            others=others,
            retries=request.retries,
            grace_s=request.run.grace_s,
            timeout_s=request.timeout_s,
            attempts=work.results.attempts(),
        )
        self._request = request
        self._results = work.results
        self._numbers = {trial.number for trial in work.wanted}
        self._finder = finder
        self._reporter = reporter
        self._readings: dict[tuple[int, int], Reading] = {}
        self._seats: dict[tuple[int, int], Seat] = {}
        self._placed: set[tuple[int, str]] = set()  # trial and host
        self._unread: dict[int, TaskExit] = {}  # ended for good, while some of the log is still to come
        # Of the logs of attempts that have ended, until they are here.
        self._sizes: dict[tuple[int, int], int] = {}
        self._found: list[Any] = [_Begin()]  # events
        self._failed = 0
        self.first_host = ""  # on which a trial has started
        self._took: list[float] = []
        mine = [each for number, each in self._results.last.items() if number in self._numbers]
        self._best = next(iter(ranked(mine, request.metric)), None) if request.metric else None
        self._before = len(work.wanted) - len(left)

    # What the drive asks of a state.

    @property
    def hosts(self) -> Mapping[str, str]:
        """See State."""
        return self.state.hosts

    @property
    def phase(self) -> str:
        """See State."""
        return self.state.phase

    @property
    def lost(self) -> Mapping[str, str]:
        """See State."""
        return self.state.lost

    @property
    def swept(self) -> Mapping[str, tuple[str, ...]]:
        """See State."""
        return self.state.swept

    def had(self, host: str, task: TaskId) -> bool:
        """See State."""
        return (task.index, host) in self._placed and task.job == TRIAL

    def works(self, host: str) -> bool:
        """See State."""
        return self.state.works(host)

    def step(self, event: Any, now: float) -> tuple[SweepController, list[Action]]:
        """The state goes on, and all that hangs on it."""
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
        self._show()
        return self, actions

    # What happens beside.

    def happened(self, event: Any, now: float) -> None:  # noqa: ARG002
        """A trial has started: that is worth a word."""
        if isinstance(event, TaskExit) and (key := (event.task.index, event.attempt)) in self._readings:
            self._sizes[key] = event.log_bytes
            self._maybe_end_log(event.task, event.attempt)
        if isinstance(event, TaskStarted) and (number := event.task.index) in self.state.trials:
            self.first_host = self.first_host or event.host
            seat = self._seats.get((number, event.attempt))
            if seat is not None:
                self._reporter.trial(self.state.trials[number], event, seat)

    def said(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:  # noqa: ARG002
        """What a host tells of its cards."""
        if type == "facts":
            inventory = {host: HostFacts.from_wire(host, fields)}
            try:
                seats = self._finder.seats(inventory, [], self.state.seats)
            except PlanError:
                seats = ()
            self._found.append(CardsSeen(host, seats))

    def questions(self, hosts: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:  # noqa: ARG002
        """None: the state asks."""
        return []

    def sentences(self, now: float) -> list[Any]:  # noqa: ARG002
        """None: trials wait for nobody."""
        return []

    def next_event(self, now: float) -> Any:  # noqa: ARG002
        """What was found out since."""
        return self._found.pop(0) if self._found else None

    def wake_at(self) -> float:
        """At once when there is something."""
        return 0.0 if self._found else float("inf")

    def read(self, task: TaskId, attempt: int, offset: int, data: bytes) -> None:
        """A piece of a log."""
        try:
            self._results.record.logs.append(task, offset, data, attempt)
        except RecordError as error:
            self._reporter.warn(f"{error.message}. {error.hint}")
        reading = self._readings.get((task.index, attempt))
        if reading is not None and reading.feed(offset, data):
            self._show()
        self._maybe_end_log(task, attempt)
        if self._unread:
            self._write_results()

    def end(self) -> None:
        """All that comes of the logs is here."""
        self._write_results(whole=True)

    def _maybe_end_log(self, task: TaskId, attempt: int) -> None:
        key = (task.index, attempt)
        if key in self._sizes and self._readings[key].received >= self._sizes[key]:
            del self._sizes[key]
            self._results.record.logs.end(task, attempt)

    def _begins(self, trial: Trial, attempt: machine.Attempt) -> None:
        key = (trial.number, attempt.number)
        if key not in self._readings:
            self._readings[key] = Reading(self._request.metric)
            self._seats[key] = attempt.seat
            self._placed.add((trial.number, attempt.seat.host))
            # Whoever resumes this sweep sees by its log that there was such an attempt.
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
            found = result(trial, exit, reading, seat.labels, log, late=late)
            if found.status == "succeeded":
                self._took.append(found.seconds)
                best = [found, *([self._best] if self._best else [])]
                self._best = ranked(best, self._request.metric)[0] if self._request.metric else None
            else:
                self._failed += 1
            try:
                self._results.add(found)
            except RecordError as error:
                self._reporter.warn(f"{error.message}. {error.hint}")
            self._reporter.result(found)
            self._show()

    def _show(self) -> None:
        state = self.state
        rows = []
        for number, attempt in state.running.items():
            value = self._readings[number, attempt.number].value
            rows.append(Row(state.trials[number], str(attempt.seat), attempt.started, value))
        enough = len(self._took) >= max(3, len(state.seats))
        self._reporter.progress(
            Progress(
                total=len(self._numbers),
                succeeded=self._before + len(self._took),
                failed=self._failed,
                queued=len(state.queue),
                seats=len(state.seats),
                running=tuple(rows),
                best=self._best if self._best and self._best.metric is not None else None,
                seconds=sum(self._took) / len(self._took) if enough else None,
            )
        )
