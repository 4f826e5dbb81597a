"""The state machine of a run: pure `step(state, event, now) -> (state, actions)`; no I/O, no clock.

running ──all done──▶ draining ──the rest ended, or its grace is over──▶ ending ──every host swept or lost──▶ over
  │ ▲└────── a failure that is not restarted, lost host, Ctrl-C ──────▲
  ▼ │ all have ended, and the back-off is over: all start again
restarting (only where the whole cluster is: all its tasks are stopped first; evaluators are beside it)

Shipped to the hosts: the coordinating agent of a detached run decides by the same rules as a launcher.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_TIMEOUT, EXIT_UNCLEAN
from tflaunch.protocol.events import AgentGaveUp, Event, HostSwept, Interrupted, TaskStarted, TimerFired
from tflaunch.protocol.job import CHIEF, EVALUATOR, MASTER, WORKER, TaskId, ends_as
from tflaunch.protocol.outcome import CardLeft, HostLost, Outcome, TaskExit, TimedOut, how

if TYPE_CHECKING:
    from typing import Literal

    from tflaunch.protocol.job import Done, RestartOn, RestartPolicy, RoleEnd

# ---- events; those that belong to a run's end are in tflaunch.protocol.outcome


# ---- actions


class End(NamedTuple):
    """Every host: stop all tasks (TERM, KILL after the grace), sweep, report."""

    grace_s: float
    stacks: bool = False  # they are stuck: have them write where


class StopTasks(NamedTuple):
    """These tasks: TERM, KILL after the grace; the run goes on."""

    tasks: tuple[TaskId, ...]
    grace_s: float


class Restart(NamedTuple):
    """Start these tasks again, each as the attempt of that number."""

    tasks: Mapping[TaskId, int]


class Order(NamedTuple):
    """Tell that host, now or when it is back; `name` replaces an earlier order of that name."""

    host: str
    name: str
    type: str
    fields: Mapping[str, Any]


class StartTimer(NamedTuple):
    """Feed TimerFired(name) back after `seconds`."""

    name: str
    seconds: float


class Say(NamedTuple):
    """Tell the user; an answer to what he did is urgent and goes ahead of any log line."""

    text: str
    urgent: bool = True


Action = Union[End, StopTasks, Restart, Order, StartTimer, Say]

DRAIN, HURRY, RESTART = "drain", "hurry", "restart"
SWEEP_MARGIN_S = 25.0  # beyond the grace: to kill, sweep and see the cards free, before a host counts as lost


BACKOFF_S = (1.0, 60.0)  # before a restart: at first, at most; doubled each time
RETRYABLE = (
    128  # an exit code from here on comes from outside the program (a signal, mostly): kubeflow's rule
)


@dataclass(frozen=True)
class Restarts:
    """What may be started again, and how often."""

    most: int = 0  # within the window: of one task, or of the cluster
    window_s: float = 3600.0
    policy: Mapping[str, RestartPolicy] = field(default_factory=dict)  # job -> policy
    default: RestartPolicy = "task"
    on: RestartOn = "any"

    def wanted(self, exit: TaskExit) -> RestartPolicy:
        """How this end of a task is answered, as long as there are restarts left."""
        if not self.most or (self.on == "retryable" and exit.exit_code < RETRYABLE):
            return "never"
        return self.policy.get(exit.task.job, self.default)


@dataclass(frozen=True)
class State:
    """Everything that decides what happens next."""

    hosts: Mapping[TaskId, str]  # where every task runs
    done: Done = "workers"
    grace_s: float = 10.0
    drain_s: float = 3.0  # to end by itself when the work is done
    drains_s: Mapping[str, float] = field(default_factory=dict)  # likewise, for these jobs
    ends: Mapping[str, RoleEnd] = field(
        default_factory=dict
    )  # job -> what it has to do with the end, if said
    share_gpus: bool = False  # others compute on its cards, too
    restarts: Restarts = field(default_factory=Restarts)
    phase: Literal["running", "restarting", "draining", "ending", "over"] = "running"
    attempts: Mapping[TaskId, int] = field(default_factory=dict)  # 0 where there is none
    waiting: frozenset[TaskId] = frozenset()  # ended, and to be started again one by one
    restarted: tuple[tuple[float, TaskId | None], ...] = ()  # when, and which task; None: the cluster
    exits: Mapping[TaskId, TaskExit] = field(default_factory=dict)  # of those that do not run now
    first_failure: TaskExit | HostLost | TimedOut | None = None
    work_done: bool = False  # all that decides success has ended well
    longest_grace_expired_s: float = -1.0  # since then: the longest time to end by itself that is over
    interrupts: tuple[int, ...] = ()  # signals, in the order in which they came
    lost: Mapping[str, str] = field(default_factory=dict)
    swept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cards: Mapping[str, tuple[CardLeft, ...]] = field(default_factory=dict)  # of each host that is swept

    @property
    def status(self) -> Literal["succeeded", "failed", "interrupted"]:
        if self.first_failure is not None:
            return "failed"
        return "interrupted" if self.interrupts and not self.work_done else "succeeded"

    def had(self, host: str, task: TaskId) -> bool:
        """Whether that task runs, or ran, on that host."""
        return self.hosts.get(task) == host

    def works(self, host: str) -> bool:
        """Whether tasks of that host have not ended, and nothing ends them."""
        if self.phase in ("ending", "over") or host in self.lost:
            return False
        return any(where == host and task not in self.exits for task, where in self.hosts.items())

    def step(self, event: Event, now: float) -> tuple[State, list[Action]]:
        """As the function of that name."""
        return step(self, event, now)

    def exit_code(self, clean: bool) -> int:
        """The launcher's exit code, as errors.py tells it; `clean`: nothing of the run is alive anywhere."""
        if isinstance(self.first_failure, HostLost):
            return EXIT_UNCLEAN
        if isinstance(self.first_failure, TimedOut):
            return EXIT_TIMEOUT
        if self.first_failure is not None:
            return self.first_failure.exit_code
        if self.status == "interrupted":
            return EXIT_INTERRUPTED if self.interrupts[0] == signal.SIGINT else 128 + self.interrupts[0]
        return 0 if clean else EXIT_UNCLEAN


def decisive(
    tasks: Mapping[TaskId, str], done: Done, ends: Mapping[str, RoleEnd] | None = None
) -> frozenset[TaskId]:
    """The tasks whose success is the run's; what `ends` says of their job goes before `done`."""
    chief = next((task for job in (CHIEF, MASTER) if (task := TaskId(job, 0)) in tasks), TaskId(WORKER, 0))
    found: set[TaskId] = {chief} if done == "chief" and chief.job not in (ends or {}) else set()
    jobs = set()
    for job in {task.job for task in tasks}:
        usual = done == "all" or (done == "workers" and ends_as(job) == "decides")
        if (ends or {}).get(job, "decides" if usual else "") == "decides":
            jobs.add(job)
    found.update(task for task in tasks if task.job in jobs)
    return frozenset(found)


def _left(state: State) -> list[TaskId]:
    """The tasks that have not ended, nor are gone with their hosts."""
    gone = state.lost.keys() | state.swept.keys()
    return [task for task, host in state.hosts.items() if task not in state.exits and host not in gone]


def _together(state: State) -> list[TaskId]:
    """The tasks that are stopped and start again with the cluster; nobody in it talks to an evaluator."""
    gone = state.lost.keys() | state.swept.keys()
    evaluator = state.restarts.policy.get(EVALUATOR, state.restarts.default) == "cluster"
    return [
        task
        for task, host in state.hosts.items()
        if host not in gone and (evaluator or task.job != EVALUATOR)
    ]


def _can_be_missed(state: State, host: str) -> bool:
    """Whether only sidecars are on that host, or evaluators that nobody has said to be something else."""
    ends = {EVALUATOR: "sidecar", **state.ends}
    wanted = decisive(state.hosts, state.done, state.ends)
    tasks = [task for task, where in state.hosts.items() if where == host]
    return all(ends.get(task.job) == "sidecar" and task not in wanted for task in tasks)


def step(state: State, event: Event, now: float = 0.0) -> tuple[State, list[Action]]:
    """The next state, and what to do at once; `now` is any clock that only goes forward, in seconds."""
    if isinstance(event, TaskStarted):
        return _started(state, event, now), []
    if isinstance(event, TaskExit):
        if event.attempt < state.attempts.get(event.task, 0):
            return state, []  # of an attempt that has been followed by another one
        state = dataclasses.replace(state, exits={**state.exits, event.task: event})
        return _after_exit(state, event, now)
    if isinstance(event, HostLost):
        if event.host in state.swept or event.host in state.lost:
            return state, []
        return _lost(state, event, now)
    if isinstance(event, TimedOut):
        return _fail(state, event, state.grace_s) if state.phase == "running" else (state, [])
    if isinstance(event, AgentGaveUp):
        return _gave_up(state, event, now)
    if isinstance(event, HostSwept):
        swept = {**state.swept, event.host: event.survivors}
        # A late answer after all: it counts.
        lost = {host: reason for host, reason in state.lost.items() if host != event.host}
        cards = {**state.cards, event.host: event.cards}
        return _maybe_over(dataclasses.replace(state, swept=swept, lost=lost, cards=cards)), []
    if isinstance(event, Interrupted):
        return _interrupted(state, event)
    return _timer(state, event.name)


def _started(state: State, started: TaskStarted, now: float) -> State:
    known = state.attempts.get(started.task, 0)
    if started.attempt < known:
        return state
    if started.attempt > known:  # one who decided before this one has ordered that: it counts
        policy = state.restarts.policy.get(started.task.job, state.restarts.default)
        who = None if policy == "cluster" else started.task
        counted = sum(1 for _, each in state.restarted if each == who)
        # More than there may be at once change nothing, and a host may make up any number.
        uncounted = ((now, who),) * min(state.restarts.most, max(0, started.attempt - counted))
        state = dataclasses.replace(state, restarted=state.restarted + uncounted)
    attempts = {**state.attempts, started.task: started.attempt}
    exits = {task: exit for task, exit in state.exits.items() if task != started.task}
    return dataclasses.replace(state, attempts=attempts, exits=exits, waiting=state.waiting - {started.task})


def _after_exit(state: State, exited: TaskExit, now: float) -> tuple[State, list[Action]]:
    if exited.host in state.lost:  # the run goes on without it, however its tasks end
        return state, []
    if state.phase == "restarting" and exited.task in _together(state):
        return _cluster_stopped(state, now)
    if state.phase in ("running", "restarting"):
        if exited.exit_code != 0:
            return _failed(state, exited, now)
        return _maybe_done(state)
    if state.phase == "draining":
        return _maybe_drained(state)
    return state, []


def _maybe_done(state: State) -> tuple[State, list[Action]]:
    """Once all that decides has ended, the others may take their time to end by themselves."""
    if state.phase != "running":
        return state, []
    wanted, left = decisive(state.hosts, state.done, state.ends), _left(state)
    ended = state.hosts.keys() - state.waiting.union(left)
    if not (wanted and wanted <= ended) and len(ended) < len(state.hosts):
        return state, []
    state = dataclasses.replace(state, phase="draining", work_done=True)
    if not left:
        return _end(state, state.grace_s)
    usual = [task for task in left if task.job not in state.drains_s]
    times = [(_tasks(len(usual)), state.drain_s, "--ps-grace")] if usual else []
    for job in dict.fromkeys(task.job for task in left if task.job in state.drains_s):
        who = [task for task in left if task.job == job]
        name = str(who[0]) if len(who) == 1 else f"{len(who)} {job} tasks"
        times.append((name, state.drains_s[job], f"--job-grace {job}=TIME"))
    (first, first_s, option), *more = times
    told = [f"{first} may take {first_s:g} s to end ({option})"]
    told += [f"{name} {seconds:g} s ({option})" for name, seconds, option in more]
    timers = [StartTimer(f"{DRAIN} {s!r}", s) for s in sorted({_drain_s(state, task) for task in left})]
    return state, [Say(f"the work is done; {', '.join(told)}", urgent=False), *timers]


def _drain_s(state: State, task: TaskId) -> float:
    return state.drains_s.get(task.job, state.drain_s)


def _maybe_drained(state: State) -> tuple[State, list[Action]]:
    if all(_drain_s(state, task) <= state.longest_grace_expired_s for task in _left(state)):
        return _end(state, state.grace_s)
    return state, []


def _failed(state: State, exited: TaskExit, now: float) -> tuple[State, list[Action]]:
    """A task has failed: it, or all, start again, or the run ends."""
    policy = state.restarts.wanted(exited)
    if policy == "never":
        return _give_up(state, exited)
    who = exited.task if policy == "task" else None
    recent = [each for at, each in state.restarted if each == who and now - at < state.restarts.window_s]
    if len(recent) >= state.restarts.most:
        state, actions = _give_up(state, exited)
        times = "once" if len(recent) == 1 else f"{len(recent)} times"
        text = f"{who or 'the cluster'} was started again {times} (--restarts {state.restarts.most}); no more"
        return state, [Say(text, urgent=False), *actions]
    delay_s = min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** len(recent))
    what = f"{exited.task} on {exited.host} {how(exited)} after {exited.seconds:.1f} s"
    count = f"restart {len(recent) + 1} of {state.restarts.most}"
    state = dataclasses.replace(state, restarted=(*state.restarted, (now, who)))
    if who is not None:
        state = dataclasses.replace(state, waiting=state.waiting | {who})
        text = f"{what}; it starts again in {delay_s:g} s ({count})"
        return state, [Say(text, urgent=False), StartTimer(f"{RESTART} {who}", delay_s)]
    together = _together(state)
    state = dataclasses.replace(state, phase="restarting", waiting=state.waiting.difference(together))
    apart = [str(task) for task in _left(state) if task not in together]
    who_stops = f"all tasks but {', '.join(apart)}" if apart else "all tasks"
    text = f"{what}; {who_stops} are stopped and start again in {delay_s:g} s ({count})"
    state, actions = _cluster_stopped(state, now)
    return state, [Say(text, urgent=False), StopTasks(tuple(together), state.grace_s), *actions]


def _give_up(state: State, exited: TaskExit) -> tuple[State, list[Action]]:
    """A task that has failed does not start again: that is the end of the run, unless it is a mere sidecar."""
    if state.ends.get(exited.task.job) != "sidecar":
        return _fail(state, exited, state.grace_s)
    state, actions = _maybe_done(state)
    text = f"{exited.task} on {exited.host} {how(exited)}; the run goes on without it"
    return state, [Say(text, urgent=False), *actions]


def _cluster_stopped(state: State, now: float) -> tuple[State, list[Action]]:
    """Once all have ended, in this attempt or before, the time until they start again begins."""
    if not state.exits.keys() >= set(_together(state)):
        return state, []
    count = sum(1 for at, who in state.restarted if who is None and now - at < state.restarts.window_s)
    return state, [StartTimer(RESTART, min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** max(0, count - 1)))]


def _timer(state: State, name: str) -> tuple[State, list[Action]]:
    if name.startswith(DRAIN + " ") and state.phase == "draining":
        over_s = float(name.partition(" ")[2])
        return _maybe_drained(
            dataclasses.replace(state, longest_grace_expired_s=max(over_s, state.longest_grace_expired_s))
        )
    if name == HURRY and state.phase == "ending":
        missing = sorted(set(state.hosts.values()) - set(state.swept) - set(state.lost))
        lost = {**state.lost, **dict.fromkeys(missing, "its agent did not report in time")}
        return _maybe_over(dataclasses.replace(state, lost=lost)), []
    if name == RESTART and state.phase == "restarting":
        # One number for all: whoever had more attempts than the others is not started twice.
        together = _together(state)
        number = 1 + max((state.attempts.get(task, 0) for task in together), default=0)
        return _restart(dataclasses.replace(state, phase="running"), dict.fromkeys(together, number))
    if name.startswith(RESTART + " ") and state.phase in ("running", "restarting"):
        task = TaskId.parse(name.partition(" ")[2])
        if task in state.waiting:
            return _restart(state, {task: 1 + state.attempts.get(task, 0)})
    return state, []


def _restart(state: State, tasks: Mapping[TaskId, int]) -> tuple[State, list[Action]]:
    exits = {task: exit for task, exit in state.exits.items() if task not in tasks}
    attempts, waiting = {**state.attempts, **tasks}, state.waiting.difference(tasks)
    return dataclasses.replace(state, attempts=attempts, exits=exits, waiting=waiting), [Restart(tasks)]


def _gave_up(state: State, event: AgentGaveUp, now: float) -> tuple[State, list[Action]]:
    if state.phase in ("ending", "over"):
        return state, []
    if event.asked:
        state = dataclasses.replace(state, interrupts=(signal.SIGTERM,))
        state, actions = _end(state, state.grace_s)
        return state, [Say(f"{event.host}: {event.reason}"), *actions]
    if state.phase == "draining":  # the work is done
        return _end(state, state.grace_s)
    if _can_be_missed(state, event.host):
        state, actions = _lost(state, HostLost(event.host, event.reason), now)
        return state, [Say(f"{event.host}: {event.reason}"), *actions]
    return _fail(state, HostLost(event.host, event.reason), state.grace_s)


def _lost(state: State, event: HostLost, now: float) -> tuple[State, list[Action]]:
    state = dataclasses.replace(state, lost={**state.lost, event.host: event.reason})
    if state.phase in ("ending", "over"):
        return _maybe_over(state), []
    if state.phase == "draining":  # the work is done; what is lost is the proof that it is clean there
        return _end(state, state.grace_s)
    if not _can_be_missed(state, event.host):
        return _fail(state, event, state.grace_s)
    on_it = [task for task, host in state.hosts.items() if host == event.host]
    missed = [task for task in on_it if task in state.waiting or task not in state.exits]
    state = dataclasses.replace(state, waiting=state.waiting.difference(on_it))
    state, actions = _cluster_stopped(state, now) if state.phase == "restarting" else _maybe_done(state)
    without = f"{event.host} and {', '.join(map(str, missed))}" if missed else event.host
    return state, [Say(f"the run goes on without {without}"), *actions]


def _fail(
    state: State, failure: TaskExit | HostLost | TimedOut, grace_s: float
) -> tuple[State, list[Action]]:
    state, actions = _end(
        dataclasses.replace(state, first_failure=failure), grace_s, stacks=isinstance(failure, TimedOut)
    )
    alive = _left(state)
    if alive:
        text = f"stopping the {_tasks(len(alive))} left, {grace_s:g} s to end by themselves"
        if isinstance(failure, TimedOut):
            text = f"{failure.reason}: {text}"
        actions = [Say(text, urgent=False), *actions]
    return state, actions


def _interrupted(state: State, event: Interrupted) -> tuple[State, list[Action]]:
    state = dataclasses.replace(state, interrupts=(*state.interrupts, event.signal))
    name = "Ctrl-C" if event.signal == signal.SIGINT else signal.Signals(event.signal).name
    alive = len(_left(state))
    if len(state.interrupts) == 1:
        if state.phase == "ending":
            return state, [Say(f"{name}: the run is being stopped already; once more kills at once")]
        state, actions = _end(state, state.grace_s)
        text = f"{name}: stopping {_tasks(alive)}, {state.grace_s:g} s to end by themselves; once more kills at once"
        return state, [Say(text), *actions]
    if len(state.interrupts) == 2:
        return state, [Say(f"{name} again: killing {_tasks(alive)}"), *_end(state, 0.0)[1]]
    missing = sorted(set(state.hosts.values()) - set(state.swept) - set(state.lost))
    lost = {**state.lost, **dict.fromkeys(missing, "tflaunch was told not to wait")}
    return dataclasses.replace(state, lost=lost, phase="over"), []


def _tasks(count: int) -> str:
    return f"{count} task" if count == 1 else f"{count} tasks"


def _end(state: State, grace_s: float, *, stacks: bool = False) -> tuple[State, list[Action]]:
    actions: list[Action] = [End(grace_s, stacks), StartTimer(HURRY, grace_s + SWEEP_MARGIN_S)]
    return _maybe_over(dataclasses.replace(state, phase="ending")), actions


def _maybe_over(state: State) -> State:
    if state.phase == "ending" and set(state.hosts.values()) <= state.swept.keys() | state.lost.keys():
        return dataclasses.replace(state, phase="over")
    return state


# ---- as data, for the agent that decides when no launcher is there


def state_data(state: State) -> dict[str, Any]:
    """What a state begins with, as JSON can hold it."""
    return {
        "hosts": {str(task): host for task, host in state.hosts.items()},
        "done": state.done,
        "grace_s": state.grace_s,
        "drain_s": state.drain_s,
        "drains_s": dict(state.drains_s),
        "ends": dict(state.ends),
        "share_gpus": state.share_gpus,
        "restarts": {**vars(state.restarts), "policy": dict(state.restarts.policy)},
    }


def state_from(data: Mapping[str, Any]) -> State:
    """The state of a run that begins."""
    hosts = {TaskId.parse(task): host for task, host in data["hosts"].items()}
    return State(**{**data, "hosts": hosts, "restarts": Restarts(**data["restarts"])})


def outcome_of(state: State, run_id: str, seconds: float, **more: Any) -> Outcome:
    """How a run that is over has ended; `more` are fields of Outcome that only who asks knows."""
    more.setdefault("survivors", {host: left for host, left in state.swept.items() if left})
    more["cards"] = _of_concern(state, more.get("cards", state.cards))
    outcome = Outcome(run_id, state.status, 0, seconds, exits=state.exits, **more)
    own_cards = any(card.own for left in outcome.cards.values() for card in left)
    return dataclasses.replace(
        outcome,
        exit_code=state.exit_code(clean=not (outcome.unverified or outcome.survivors or own_cards)),
        first_failure=state.first_failure,
        restarts=len(state.restarted),
    )


def _of_concern(state: State, cards: Mapping[str, tuple[CardLeft, ...]]) -> dict[str, tuple[CardLeft, ...]]:
    """The cards that are not free; of shared ones only those that the run itself is on."""
    found = {
        host: tuple(card for card in left if card.own or not state.share_gpus) for host, left in cards.items()
    }
    return {host: left for host, left in found.items() if left}
