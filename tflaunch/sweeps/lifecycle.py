"""The state machine of a sweep: pure `step`, as that of a run (lifecycle/states.py); the driver is the same.

A trial waits in the queue until a seat is free: the GPUs of one trial, or a share of a host without GPUs.  When it has
ended, the next trial gets its seat.  A trial that failed goes back to the end of the queue, and to another host if
there is one, at most `retries` times.  The trials of a lost host go back to the front; this is no retry.  Where they
may run on there for a while, they go back once that is over.

running ──no trial waits or runs, no host is left, Ctrl-C──▶ ending ──every host swept or lost──▶ over

tflaunch/lifecycle/ending.py has what happens once a sweep, or any run, ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tflaunch.lifecycle import ending
from tflaunch.lifecycle.actions import Action, Order, Say, StartTimer
from tflaunch.lifecycle.ending import Ending
from tflaunch.planning.binding import UNBOUND, Cores
from tflaunch.protocol.errors import EXIT_LAUNCH, EXIT_TIMEOUT
from tflaunch.protocol.events import AgentGaveUp, TaskStarted, TimerFired
from tflaunch.protocol.job import TRIAL, TaskId
from tflaunch.protocol.outcome import HostLost, Reclaimed, TaskExit, how
from tflaunch.sweeps.trials import Trial

LOOK = "look"
LOOK_S = 5.0  # between two looks for GPUs that have become free
ALIKE_FIRST = 3  # so many first trials that fail alike, each within AT_ONCE_S, end the sweep
AT_ONCE_S = 30.0
BACK = "back "  # the timer `back HOST`: the trials of that lost host have certainly ended
LATE = "late "  # the timer `late 3.1`: attempt 1 of trial 3 has used the time that a trial may take


@dataclass(frozen=True)
class Seat:
    """What one trial at a time gets: GPUs of one host, or none; `share` numbers the seats that have the same GPUs."""

    host: str
    gpus: tuple[str, ...] = ()  # UUIDs
    labels: tuple[str, ...] = ()  # the same GPUs as the user sees them
    share: int = 0
    cores: Cores = UNBOUND

    def __str__(self) -> str:
        return f"{self.host}:{','.join(self.labels)}" if self.labels else self.host


@dataclass(frozen=True)
class GpusSeen:
    """GPUs of this host have become free and make these seats; its agent holds the GPUs for the sweep."""

    host: str
    seats: tuple[Seat, ...]


@dataclass(frozen=True)
class BadTrial:
    """The metric of this attempt is so bad that --stop-below stops it; `why` is a predicate."""

    trial: int
    attempt: int
    why: str


@dataclass(frozen=True)
class Attempt:
    """An attempt of a trial that runs, or is being started."""

    seat: Seat
    number: int
    started: float | None = None  # by the clock of `step`; None: not yet


@dataclass(frozen=True)
class Proposed:
    """A trial that a search has proposed; None: it proposes no more."""

    trial: Trial | None


Make = Callable[[Trial, Seat], Mapping[str, Any]]  # the complete request for the agent


@dataclass(frozen=True, kw_only=True)
class SweepState(Ending):
    """Everything that decides what happens next in a sweep; `hosts` maps each host to itself."""

    trials: Mapping[int, Trial]
    make: Make
    seats: tuple[Seat, ...]
    queue: tuple[int, ...]  # trials that wait for a seat
    to_come: int = 0  # trials that a search has not proposed yet: it does once a seat is free
    # Lost host -> its trials, which may still run there.
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Host -> GPUs in use that may become free.
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    retries: int = 0
    timeout_s: float = 0.0  # for one attempt of a trial; 0: no limit
    phase: Literal["running", "ending", "over"] = "running"
    running: Mapping[int, Attempt] = field(default_factory=dict)
    attempts: Mapping[int, int] = field(default_factory=dict)  # trial -> the number of its next attempt
    # Trial -> the hosts of its failures.
    failed_on: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)  # trial -> the attempt that took too long
    # Trial -> its last exit: it is not tried again.
    ended: Mapping[int, TaskExit] = field(default_factory=dict)
    # Trial -> (the attempt that --stop-below stops, why).
    bad: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    alike: tuple[str, ...] = ()  # why each trial that has ended failed, while all did at once and alike
    keep_going: bool = False  # also when the first trials fail at once and alike
    unfit: bool = False  # the sweep ended because no host was left on which a trial can start

    what = "sweep"

    @property
    def alive(self) -> str:
        """As Ending promises."""
        return f"{len(self.running)} trial{'s' if len(self.running) != 1 else ''}"

    @property
    def final_exits(self) -> Mapping[TaskId, TaskExit]:
        """As Ending promises."""
        return {self.trials[number].task: exit for number, exit in self.ended.items()}

    @property
    def restart_count(self) -> int:
        """As Ending promises."""
        return sum(self.attempts.values()) - len(self.attempts)

    @property
    def queued(self) -> int:
        """How many trials wait for a seat, to be proposed, or until they have certainly ended on a lost host."""
        return len(self.queue) + self.to_come + sum(map(len, self.held.values()))

    @property
    def wanted(self) -> int:
        """How many trials are to be proposed now: there are seats for them."""
        return min(self.to_come, len(self.free) - len(self.queue)) if self.phase == "running" else 0

    @property
    def free(self) -> list[Seat]:
        """The seats on which no trial runs."""
        taken = {attempt.seat for attempt in self.running.values()}
        return [seat for seat in self.seats if seat not in taken]

    @property
    def status(self) -> Literal["succeeded", "failed", "interrupted"]:
        """As Ending promises."""
        if self.interrupts and (self.queued or self.running):
            return "interrupted"
        return "failed" if self.first_failure is not None else "succeeded"

    def exit_code(self, clean: bool) -> int:
        """As Ending promises; EXIT_LAUNCH where no host was left on which a trial can start."""
        return EXIT_LAUNCH if self.unfit and self.status != "interrupted" else super().exit_code(clean)

    def is_busy(self, host: str) -> bool:
        """Whether trials run on that host, and the sweep has not begun to end them."""
        if self.phase != "running" or host in self.lost:
            return False
        return any(attempt.seat.host == host for attempt in self.running.values())

    def step(self, event: Any, now: float) -> tuple[SweepState, list[Action]]:
        """See the function `step`."""
        return step(self, event, now)


def begin(state: SweepState) -> tuple[SweepState, list[Action]]:
    """Start the first trials, and look for GPUs that become free from now on."""
    state, actions = _fill(state)
    return state, [*actions, StartTimer(LOOK, LOOK_S)]


def step(state: SweepState, event: Any, now: float) -> tuple[SweepState, list[Action]]:
    """The next state, and what to do at once; `now` is any clock that only goes forward, in seconds."""
    if (answer := ending.step(state, event)) is not None:
        return answer
    match event:
        case TaskStarted() if (attempt := _attempt(state, event)) is not None:
            started = dataclasses.replace(attempt, started=now)
            running = {**state.running, event.task.index: started}
            limit = StartTimer(f"{LATE}{event.task.index}.{event.attempt}", state.timeout_s)
            return dataclasses.replace(state, running=running), [limit] if state.timeout_s else []
        case TaskExit() if _attempt(state, event) is not None:
            return _exited(state, event)
        case GpusSeen():
            return _seen(state, event)
        case Proposed(None):
            return _fill(dataclasses.replace(state, to_come=0))
        case Proposed(Trial() as trial):
            return _fill(
                dataclasses.replace(
                    state,
                    trials={**state.trials, trial.number: trial},
                    queue=(*state.queue, trial.number),
                    to_come=max(0, state.to_come - 1),
                )
            )
        case BadTrial():
            return _bad(state, event)
        case HostLost():
            return _without(ending.lose(state, {event.host: event.reason}), event)
        case AgentGaveUp():
            lost = HostLost(event.host, event.reason, reclaimed=event.ends_in is not None)
            return _without(state, lost, ending.grace_left(event) if lost.reclaimed else None)
        case TimerFired(name) if name == LOOK:
            return _look(state)
        case TimerFired(name) if name.startswith(BACK):
            return _back(state, name.removeprefix(BACK))
        case TimerFired(name) if name.startswith(LATE) and state.phase == "running":
            return _late(state, *map(int, name.removeprefix(LATE).split(".")))
    return state, []


def _attempt(state: SweepState, event: TaskStarted | TaskExit) -> Attempt | None:
    """The running attempt that the event is about; None for an earlier attempt."""
    attempt = state.running.get(event.task.index) if event.task.job == TRIAL else None
    fits = attempt and (attempt.number, attempt.seat.host) == (event.attempt, event.host)
    return attempt if fits else None


def _exited(state: SweepState, exited: TaskExit) -> tuple[SweepState, list[Action]]:
    if state.phase != "running" and exited.stopped:
        return state, []  # it stays in `running`: the trial is not done, and the sweep is interrupted
    number = exited.task.index
    if state.running[number].started is None and state.phase == "running":
        return _unfit(state, exited)
    running = {each: attempt for each, attempt in state.running.items() if each != number}
    state = dataclasses.replace(state, running=running)
    if exited.stopped and state.late.get(number) == exited.attempt:  # its own exit code does not matter
        exited = dataclasses.replace(exited, code=EXIT_TIMEOUT, signal=None, signal_name="", stopped=False)
    if state.phase == "running" and exited.stopped and state.bad.get(number, (None,))[0] == exited.attempt:
        return _fill(dataclasses.replace(state, ended={**state.ended, number: exited}))  # no failure
    alike = _alike(state, exited)
    # Of all failures only the first one's tail is shown, and there may be thousands.
    if state.first_failure or exited.exit_code == 0:
        exited = dataclasses.replace(exited, tail=b"")
    if exited.exit_code == 0:
        return _fill(dataclasses.replace(state, ended={**state.ended, number: exited}))
    failed_on = (*state.failed_on.get(number, ()), exited.host)
    state = dataclasses.replace(state, failed_on={**state.failed_on, number: failed_on})
    if len(failed_on) > state.retries:
        first = state.first_failure or exited
        ended = {**state.ended, number: exited}
        state = dataclasses.replace(state, ended=ended, first_failure=first, alike=alike)
        return _too_alike(state) if len(alike) == ALIKE_FIRST else _fill(state)
    state, actions = _fill(dataclasses.replace(state, queue=(*state.queue, number)))
    again = f"it is tried again ({len(failed_on)} of {state.retries})"
    return state, [
        Say(f"{exited.task} on {exited.host} {how(exited)}; {again}", urgent=False),
        *actions,
    ]


def _alike(state: SweepState, exited: TaskExit) -> tuple[str, ...]:
    """`state.alike` after this end: one more, if it failed at once and with the same words; else () from now on."""
    if exited.exit_code == 0 or exited.seconds > AT_ONCE_S or len(state.alike) < len(state.ended):
        return ()
    why = reason(exited)
    return (*state.alike, why) if all(each == why for each in state.alike) else ()


def reason(exited: TaskExit) -> str:
    """How a trial ended, and its last line; equal for trials that differ in their number only."""
    lines = exited.tail.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1].strip() if lines else ""
    return f"{how(exited)}: {last}".replace(f"{TRIAL}-{exited.task.index}", TRIAL).removesuffix(": ")


def _too_alike(state: SweepState) -> tuple[SweepState, list[Action]]:
    """The first trials have failed at once, and all alike: the others would, too (--keep-going: go on)."""
    left = state.queued + len(state.running)
    if state.keep_going or state.phase != "running" or not left:
        return _fill(state)
    text = (
        f"the first {len(state.alike)} trials {state.alike[0]}, each within {AT_ONCE_S:g} s; the other {left} "
        "are not run (--keep-going runs them)"
    )
    state, actions = ending.end(state, state.grace_s)
    return state, [Say(text), *actions]


def _bad(state: SweepState, bad: BadTrial) -> tuple[SweepState, list[Action]]:
    running = state.running.get(bad.trial)
    if state.phase != "running" or running is None or running.number != bad.attempt or bad.trial in state.bad:
        return state, []
    task = state.trials[bad.trial].task
    fields = {"tasks": [str(task)], "grace_s": state.grace_s}
    state = dataclasses.replace(state, bad={**state.bad, bad.trial: (bad.attempt, bad.why)})
    # Named as the order that starts the trial, as in `_late`.
    return state, [Order(running.seat.host, f"restart {task}", "stop", fields)]


def _late(state: SweepState, number: int, attempt: int) -> tuple[SweepState, list[Action]]:
    running = state.running.get(number)
    if running is None or running.number != attempt:
        return state, []
    task, host = state.trials[number].task, running.seat.host
    fields = {"tasks": [str(task)], "grace_s": state.grace_s}
    return dataclasses.replace(state, late={**state.late, number: attempt}), [
        Say(f"{task} on {host} has taken {state.timeout_s:g} s (--timeout) and is ended", urgent=False),
        # Named as the order that starts the trial, so that the order for a new attempt replaces it.
        Order(host, f"restart {task}", "stop", fields),
    ]


def _fill(state: SweepState) -> tuple[SweepState, list[Action]]:
    """Give the free seats to the trials that wait; end the sweep once none waits or runs."""
    if state.phase != "running":
        return state, []
    actions: list[Action] = []
    free, queue = state.free, list(state.queue)
    running, attempts = dict(state.running), dict(state.attempts)
    while free and queue:
        pairs = ((each, seat) for each in queue for seat in free)
        fresh = (pair for pair in pairs if pair[1].host not in state.failed_on.get(pair[0], ()))
        number, seat = next(fresh, (queue[0], free[0]))
        queue.remove(number)
        free.remove(seat)
        attempt = attempts.get(number, 0)
        running[number], attempts[number] = Attempt(seat, attempt), attempt + 1
        trial = state.trials[number]
        actions.append(
            # Named as a restart: the driver drops the order when the task has started.
            Order(
                seat.host,
                f"restart {trial.task}",
                "add",
                {"tasks": [state.make(trial, seat)], "attempt": attempt},
            )
        )
    state = dataclasses.replace(state, queue=tuple(queue), running=running, attempts=attempts)
    if not (queue or running or state.held or state.to_come):
        state, more = ending.end(state, state.grace_s)
        return state, [*actions, *more]
    state, more = _give_back(state)
    return state, [*actions, *more]


def _give_back(state: SweepState) -> tuple[SweepState, list[Action]]:
    """Give back the GPUs that no trial of this sweep will need: other users may take them."""
    may_fail = any(len(state.failed_on.get(number, ())) < state.retries for number in state.running)
    if state.queued or may_fail:
        return state, []
    taken = {uuid for attempt in state.running.values() for uuid in attempt.seat.gpus}
    kept = tuple(seat for seat in state.seats if not seat.gpus or not taken.isdisjoint(seat.gpus))
    # If a trial of a lost host has to run again, the sweep finds these GPUs in `others`.
    others = dict(state.others)
    for seat in state.seats:
        if seat not in kept:
            others[seat.host] = tuple(dict.fromkeys((*others.get(seat.host, ()), *seat.gpus)))
    hosts = {seat.host for seat in state.seats if seat not in kept}
    state = dataclasses.replace(state, seats=kept, others=others)
    return state, [_keep(state, host) for host in sorted(hosts)]


def _keep(state: SweepState, host: str, more: Sequence[Seat] = ()) -> Order:
    uuids = {uuid: None for seat in (*state.seats, *more) if seat.host == host for uuid in seat.gpus}
    return Order(host, "keep", "keep", {"gpus": list(uuids)})


# --- GPUs that become free ------------------------------------------------------------------------------


def _look(state: SweepState) -> tuple[SweepState, list[Action]]:
    if state.phase != "running":
        return state, []
    held = {uuid for seat in state.seats for uuid in seat.gpus}
    actions: list[Action] = [StartTimer(LOOK, LOOK_S)]
    for host, uuids in state.others.items():
        wanted = [uuid for uuid in uuids if uuid not in held]
        if (state.queue or state.to_come) and wanted and host not in state.lost and not state.free:
            fields = {"ports": None, "count": 0, "lease": wanted}
            actions.append(Order(host, LOOK, "probe", fields))
    return state, actions


def _seen(state: SweepState, seen: GpusSeen) -> tuple[SweepState, list[Action]]:
    held = {uuid for seat in state.seats for uuid in seat.gpus}
    wanted = state.phase == "running" and (state.queue or state.to_come) and seen.host not in state.lost
    more = [seat for seat in seen.seats if wanted and held.isdisjoint(seat.gpus)]
    keep = _keep(state, seen.host, more)
    if not more:
        return state, [keep] if state.phase == "running" else []
    state, actions = _fill(dataclasses.replace(state, seats=(*state.seats, *more)))
    return state, [keep, *actions]


# --- hosts that are lost -------------------------------------------------------------------------------------


def _without(
    state: SweepState, lost: HostLost, grace_s: float | None = None
) -> tuple[SweepState, list[Action]]:
    """Go on without a lost host; its trials are not alive, unless it says so: its agent ended them before.

    Where that was the last host, and its slot is taken back, its agent may still have `grace_s`.
    """
    back = [number for number, attempt in state.running.items() if attempt.seat.host == lost.host]
    state = dataclasses.replace(
        state,
        seats=tuple(seat for seat in state.seats if seat.host != lost.host),
        others={host: uuids for host, uuids in state.others.items() if host != lost.host},
        running={number: each for number, each in state.running.items() if number not in back},
        held={**state.held, **({lost.host: tuple(back)} if back else {})},
    )
    said: list[Action] = []
    if back:
        trials = ", ".join(f"{TRIAL}/{number}" for number in back)
        after = f" in {lost.runs_on_s:.0f} s, when they have certainly ended there" if lost.runs_on_s else ""
        said = [Say(f"{lost.host}: {lost.reason}; {trials} will run elsewhere{after}")]
    if not state.seats and not state.others:
        failure = Reclaimed(lost.reason, lost.host) if lost.reclaimed else lost
        state = dataclasses.replace(state, first_failure=failure)
        state, actions = ending.end(state, state.grace_s if grace_s is None else grace_s)
        return state, [*said, *actions]
    if lost.runs_on_s:
        return state, [*said, StartTimer(f"{BACK}{lost.host}", lost.runs_on_s)] if back else said
    state, actions = _back(state, lost.host)
    return state, [*said, *actions]


def _back(state: SweepState, host: str) -> tuple[SweepState, list[Action]]:
    """The trials of a lost host are not alive any more: they go back to the front of the queue."""
    held = {other: trials for other, trials in state.held.items() if other != host}
    return _fill(dataclasses.replace(state, held=held, queue=(*state.held.get(host, ()), *state.queue)))


def _unfit(state: SweepState, exited: TaskExit) -> tuple[SweepState, list[Action]]:
    """A task did not even start (`setup:`, the interpreter, a full disk): the host is at fault, not the trial."""
    lines = exited.tail.decode("utf-8", "replace").strip().splitlines() or [how(exited)]
    why = f"no trial can start there: {lines[-1].replace('tflaunch: ', '')}"
    state, actions = _without(state, HostLost(exited.host, why))
    if state.phase != "running":  # that was the last host
        state = dataclasses.replace(state, first_failure=exited, unfit=True)
    return state, actions
