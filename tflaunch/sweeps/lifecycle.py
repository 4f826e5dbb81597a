"""The state machine of a sweep: pure `step`; it stands where tflaunch.lifecycle.states stands for a run.

A trial waits in the queue until a seat is free: the cards of one trial, or a share of a host without cards.  When it
has ended, its seat is the next one's.  One that failed goes back to the end of the queue, and to another host if there
is one, as often as `retries` allow; those of a host that is lost go back to the front, and that counts for nothing.

running ──no trial waits or runs, no host is left, Ctrl-C──▶ ending ──every host swept or lost──▶ over
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tflaunch.lifecycle.states import HURRY, SWEEP_MARGIN_S, Action, End, Order, Say, StartTimer
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_LAUNCH, EXIT_TIMEOUT, EXIT_UNCLEAN
from tflaunch.protocol.events import AgentGaveUp, HostSwept, Interrupted, TaskStarted, TimerFired
from tflaunch.protocol.outcome import CardLeft, HostLost, Outcome, TaskExit, how
from tflaunch.sweeps.trials import JOB, Trial

LOOK = "look"
LOOK_S = 5.0  # between two looks for cards that have become free
LATE = "late "  # and which attempt of which trial: the time that one may take is over


@dataclass(frozen=True)
class Seat:
    """What one trial at a time can have: cards of one host, or none; `share` tells seats apart that have the same."""

    host: str
    gpus: tuple[str, ...] = ()  # UUIDs
    labels: tuple[str, ...] = ()  # the same as people see them
    share: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{','.join(self.labels)}" if self.labels else self.host


@dataclass(frozen=True)
class CardsSeen:
    """A host has told which seats its cards make that are free now; they are held for this sweep."""

    host: str
    seats: tuple[Seat, ...]


@dataclass(frozen=True)
class Attempt:
    """A trial that runs, or is being started."""

    seat: Seat
    number: int
    started: float | None = None  # by the clock of `step`


Make = Callable[[Trial, Seat], Mapping[str, Any]]  # the complete request for the agent


@dataclass(frozen=True)
class State:
    """Everything that decides what happens next."""

    trials: Mapping[int, Trial]
    make: Make
    hosts: Mapping[str, str]  # each by its own name
    seats: tuple[Seat, ...]
    queue: tuple[int, ...]
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # host -> cards to look for
    retries: int = 0
    grace_s: float = 10.0
    timeout_s: float = 0.0  # for a trial; 0: as long as it likes
    phase: Literal["running", "ending", "over"] = "running"
    running: Mapping[int, Attempt] = field(default_factory=dict)
    attempts: Mapping[int, int] = field(default_factory=dict)  # the number of its next one
    failed_on: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # hosts, one for each failure
    late: Mapping[int, int] = field(default_factory=dict)  # trial -> the attempt that took too long
    ended: Mapping[int, TaskExit] = field(default_factory=dict)  # for good
    first_failure: TaskExit | HostLost | None = None
    unfit: bool = False  # it ended because no host was left on which a trial can start
    interrupts: tuple[int, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    swept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cards: Mapping[str, tuple[CardLeft, ...]] = field(default_factory=dict)

    @property
    def free(self) -> list[Seat]:
        """The seats that nobody has."""
        taken = {attempt.seat for attempt in self.running.values()}
        return [seat for seat in self.seats if seat not in taken]

    @property
    def status(self) -> Literal["succeeded", "failed", "interrupted"]:
        """As of a run."""
        if self.interrupts and (self.queue or self.running):
            return "interrupted"
        return "failed" if self.first_failure is not None else "succeeded"

    def works(self, host: str) -> bool:
        """Whether trials run on that host, and nothing ends them."""
        if self.phase != "running" or host in self.lost:
            return False
        return any(attempt.seat.host == host for attempt in self.running.values())

    def step(self, event: Any, now: float) -> tuple[State, list[Action]]:
        """The next state, and what to do at once; `now` is any clock that only goes forward, in seconds."""
        return step(self, event, now)


def begin(state: State) -> tuple[State, list[Action]]:
    """The first trials, and the first look for cards that are still in use."""
    state, actions = _fill(state)
    return state, [*actions, StartTimer(LOOK, LOOK_S)]


def step(state: State, event: Any, now: float) -> tuple[State, list[Action]]:
    """See `State.step`."""
    match event:
        case TaskStarted() if (attempt := _attempt(state, event)) is not None:
            started = dataclasses.replace(attempt, started=now)
            running = {**state.running, event.task.index: started}
            limit = StartTimer(f"{LATE}{event.task.index}.{event.attempt}", state.timeout_s)
            return dataclasses.replace(state, running=running), [limit] if state.timeout_s else []
        case TaskExit() if _attempt(state, event) is not None:
            return _exited(state, event)
        case CardsSeen():
            return _seen(state, event)
        case HostLost() if event.host not in {**state.lost, **state.swept}:
            state = dataclasses.replace(state, lost={**state.lost, event.host: event.reason})
            if state.phase != "running":
                return _maybe_over(state), []
            return _without(state, event)
        case AgentGaveUp() if state.phase == "running":
            if event.asked:
                state = dataclasses.replace(state, interrupts=(signal.SIGTERM,))
                state, actions = _end(state, state.grace_s)
                return state, [Say(f"{event.host}: {event.reason}"), *actions]
            return _without(state, HostLost(event.host, event.reason))
        case HostSwept():
            lost = {host: reason for host, reason in state.lost.items() if host != event.host}
            state = dataclasses.replace(
                state,
                swept={**state.swept, event.host: event.survivors},
                cards={**state.cards, event.host: event.cards},
                lost=lost,
            )
            return _maybe_over(state), []
        case Interrupted():
            return _interrupted(state, event)
        case TimerFired(name) if name == LOOK:
            return _look(state)
        case TimerFired(name) if name.startswith(LATE) and state.phase == "running":
            return _late(state, *map(int, name.removeprefix(LATE).split(".")))
        case TimerFired(name) if name == HURRY and state.phase == "ending":
            return _give_up(state, "its agent did not report in time"), []
    return state, []


def _attempt(state: State, event: TaskStarted | TaskExit) -> Attempt | None:
    """What is running of which the event tells; None when that is history."""
    attempt = state.running.get(event.task.index) if event.task.job == JOB else None
    of_it = attempt and (attempt.number, attempt.seat.host) == (event.attempt, event.host)
    return attempt if of_it else None


def _exited(state: State, exited: TaskExit) -> tuple[State, list[Action]]:
    if state.phase != "running" and exited.stopped:
        return state, []  # it stays among those that ran: it is not done
    number = exited.task.index
    if state.running[number].started is None and state.phase == "running":
        return _unfit(state, exited)
    running = {each: attempt for each, attempt in state.running.items() if each != number}
    state = dataclasses.replace(state, running=running)
    if exited.stopped and state.late.get(number) == exited.attempt:  # however it took that
        exited = dataclasses.replace(exited, code=EXIT_TIMEOUT, signal=None, signal_name="", stopped=False)
    if state.first_failure or exited.exit_code == 0:  # nobody reads it, and there may be thousands
        exited = dataclasses.replace(exited, tail=b"")
    if exited.exit_code == 0:
        return _fill(dataclasses.replace(state, ended={**state.ended, number: exited}))
    failed_on = (*state.failed_on.get(number, ()), exited.host)
    state = dataclasses.replace(state, failed_on={**state.failed_on, number: failed_on})
    if len(failed_on) > state.retries:
        first = state.first_failure or exited
        ended = {**state.ended, number: exited}
        return _fill(dataclasses.replace(state, ended=ended, first_failure=first))
    state, actions = _fill(dataclasses.replace(state, queue=(*state.queue, number)))
    again = f"it is tried again ({len(failed_on)} of {state.retries})"
    return state, [
        Say(f"{exited.task} on {exited.host} {how(exited)}; {again}", urgent=False),
        *actions,
    ]


def _late(state: State, number: int, attempt: int) -> tuple[State, list[Action]]:
    running = state.running.get(number)
    if running is None or running.number != attempt:
        return state, []
    task, host = state.trials[number].task, running.seat.host
    fields = {"tasks": [str(task)], "grace_s": state.grace_s}
    return dataclasses.replace(state, late={**state.late, number: attempt}), [
        Say(f"{task} on {host} has taken {state.timeout_s:g} s (--timeout) and is ended", urgent=False),
        # Named as what starts it: where it is tried again, nobody is told to end it any more.
        Order(host, f"restart {task}", "stop", fields),
    ]


def _fill(state: State) -> tuple[State, list[Action]]:
    """Give the free seats to those that wait; at the end, cards and all go back."""
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
            # Named as a restart is: it is carried out when the task has started.
            Order(
                seat.host,
                f"restart {trial.task}",
                "add",
                {"tasks": [state.make(trial, seat)], "attempt": attempt},
            )
        )
    state = dataclasses.replace(state, queue=tuple(queue), running=running, attempts=attempts)
    if not (queue or running):
        state, more = _end(state, state.grace_s)
        return state, [*actions, *more]
    state, more = _give_back(state)
    return state, [*actions, *more]


def _give_back(state: State) -> tuple[State, list[Action]]:
    """Cards that no trial of this sweep will need are not kept from others."""
    may_fail = any(len(state.failed_on.get(number, ())) < state.retries for number in state.running)
    if state.queue or may_fail:
        return state, []
    taken = {uuid for attempt in state.running.values() for uuid in attempt.seat.gpus}
    kept = tuple(seat for seat in state.seats if not seat.gpus or not taken.isdisjoint(seat.gpus))
    others = dict(state.others)  # there they are found again if a trial has to run once more
    for seat in state.seats:
        if seat not in kept:
            others[seat.host] = tuple(dict.fromkeys((*others.get(seat.host, ()), *seat.gpus)))
    hosts = {seat.host for seat in state.seats if seat not in kept}
    state = dataclasses.replace(state, seats=kept, others=others)
    return state, [_keep(state, host) for host in sorted(hosts)]


def _keep(state: State, host: str, more: Sequence[Seat] = ()) -> Order:
    uuids = {uuid: None for seat in (*state.seats, *more) if seat.host == host for uuid in seat.gpus}
    return Order(host, "keep", "keep", {"gpus": list(uuids)})


# --- cards that become free ------------------------------------------------------------------------------


def _look(state: State) -> tuple[State, list[Action]]:
    if state.phase != "running":
        return state, []
    held = {uuid for seat in state.seats for uuid in seat.gpus}
    actions: list[Action] = [StartTimer(LOOK, LOOK_S)]
    for host, uuids in state.others.items():
        wanted = [uuid for uuid in uuids if uuid not in held]
        if state.queue and wanted and host not in state.lost and not state.free:
            fields = {"ports": None, "count": 0, "lease": wanted}
            actions.append(Order(host, LOOK, "probe", fields))
    return state, actions


def _seen(state: State, seen: CardsSeen) -> tuple[State, list[Action]]:
    held = {uuid for seat in state.seats for uuid in seat.gpus}
    wanted = state.phase == "running" and state.queue and seen.host not in state.lost
    more = [seat for seat in seen.seats if wanted and held.isdisjoint(seat.gpus)]
    keep = _keep(state, seen.host, more)
    if not more:
        return state, [keep] if state.phase == "running" else []
    state, actions = _fill(dataclasses.replace(state, seats=(*state.seats, *more)))
    return state, [keep, *actions]


# --- hosts that are lost, and the end --------------------------------------------------------------------


def _without(state: State, lost: HostLost) -> tuple[State, list[Action]]:
    """Go on without a host: by the time it counts as lost, its own agent has ended what ran there."""
    back = [number for number, attempt in state.running.items() if attempt.seat.host == lost.host]
    state = dataclasses.replace(
        state,
        seats=tuple(seat for seat in state.seats if seat.host != lost.host),
        others={host: uuids for host, uuids in state.others.items() if host != lost.host},
        running={number: each for number, each in state.running.items() if number not in back},
        queue=(*back, *state.queue),
    )
    said: list[Action] = []
    if back:
        trials = ", ".join(f"{JOB}/{number}" for number in back)
        said = [Say(f"{lost.host}: {lost.reason}; {trials} will run elsewhere")]
    if not state.seats and not state.others:
        state, actions = _end(dataclasses.replace(state, first_failure=lost), state.grace_s)
        return state, [*said, *actions]
    state, actions = _fill(state)
    return state, [*said, *actions]


def _unfit(state: State, exited: TaskExit) -> tuple[State, list[Action]]:
    """It did not even begin (`setup:`, the interpreter, a full disk): that is the host's fault, and no trial's."""
    lines = exited.tail.decode("utf-8", "replace").strip().splitlines() or [how(exited)]
    why = f"no trial can start there: {lines[-1].replace('tflaunch: ', '')}"
    state, actions = _without(state, HostLost(exited.host, why))
    if state.phase != "running":  # it was the last one
        state = dataclasses.replace(state, first_failure=exited, unfit=True)
    return state, actions


def _interrupted(state: State, event: Interrupted) -> tuple[State, list[Action]]:
    state = dataclasses.replace(state, interrupts=(*state.interrupts, event.signal))
    name = "Ctrl-C" if event.signal == signal.SIGINT else signal.Signals(event.signal).name
    count = f"{len(state.running)} trial{'s' if len(state.running) != 1 else ''}"
    if len(state.interrupts) == 1:
        if state.phase == "ending":
            return state, [Say(f"{name}: the sweep is at its end already; once more kills at once")]
        state, actions = _end(state, state.grace_s)
        text = f"{name}: stopping {count}, {state.grace_s:g} s to end by themselves; once more kills at once"
        return state, [Say(text), *actions]
    if len(state.interrupts) == 2:
        return state, [Say(f"{name} again: killing {count}"), *_end(state, 0.0)[1]]
    return dataclasses.replace(_give_up(state, "tflaunch was told not to wait"), phase="over"), []


def _end(state: State, grace_s: float) -> tuple[State, list[Action]]:
    actions: list[Action] = [End(grace_s), StartTimer(HURRY, grace_s + SWEEP_MARGIN_S)]
    return _maybe_over(dataclasses.replace(state, phase="ending")), actions


def _give_up(state: State, why: str) -> State:
    missing = sorted(state.hosts.keys() - state.swept.keys() - state.lost.keys())
    return _maybe_over(dataclasses.replace(state, lost={**state.lost, **dict.fromkeys(missing, why)}))


def _maybe_over(state: State) -> State:
    if state.phase == "ending" and state.hosts.keys() <= state.swept.keys() | state.lost.keys():
        return dataclasses.replace(state, phase="over")
    return state


def outcome_of(state: State, run_id: str, seconds: float, **more: Any) -> Outcome:
    """How a sweep that is over has ended; `more` are fields of Outcome that only who asks knows."""
    more.setdefault("survivors", {host: left for host, left in state.swept.items() if left})
    more.setdefault("cards", {host: left for host, left in state.cards.items() if left})
    exits = {state.trials[number].task: exit for number, exit in state.ended.items()}
    outcome = Outcome(run_id, state.status, 0, seconds, exits=exits, **more)
    own_cards = any(card.own for left in outcome.cards.values() for card in left)
    return dataclasses.replace(
        outcome,
        exit_code=_exit_code(state, clean=not (outcome.unverified or outcome.survivors or own_cards)),
        first_failure=state.first_failure,
        restarts=sum(state.attempts.values()) - len(state.attempts),
    )


def _exit_code(state: State, clean: bool) -> int:
    if state.status == "interrupted":
        return EXIT_INTERRUPTED if state.interrupts[0] == signal.SIGINT else 128 + state.interrupts[0]
    if state.unfit:
        return EXIT_LAUNCH
    if isinstance(state.first_failure, TaskExit):
        return state.first_failure.exit_code
    return 0 if clean and state.first_failure is None else EXIT_UNCLEAN
