"""The state machine of a run: pure `step(state, event, now) -> (state, actions)`; no I/O, no clock.

running ──all done──▶ draining ──the rest ended, or its grace is over──▶ ending ──every host swept or lost──▶ over
  │ ▲└────── a failure that is not restarted, lost host, Ctrl-C ──────▲
  ▼ │ all have ended, and the back-off is over: all start again
restarting (the whole cluster: all its tasks are stopped first; an evaluator goes on unless its policy says cluster)

What happens once a run, or a sweep, begins to end is in lifecycle/ending.py.

Shipped to hosts: the coordinator of a detached run decides by the same rules as a launcher.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tflaunch.lifecycle import ending
from tflaunch.lifecycle.actions import Action, Move, Restart, Say, Signal, StartTimer, StopTasks
from tflaunch.lifecycle.ending import Ending
from tflaunch.protocol.events import AgentGaveUp, Event, LimitNears, TaskStarted, TimerFired
from tflaunch.protocol.job import CHIEF, EVALUATOR, MASTER, WORKER, TaskId, ends_as
from tflaunch.protocol.outcome import EndedByRule, Failure, HostLost, Reclaimed, TaskExit, TimedOut, how
from tflaunch.protocol.wire import LAST_GRACE_S
from tflaunch.text.numbers import agreeing, counted

if TYPE_CHECKING:
    from typing import Literal

    from tflaunch.protocol.job import Done, RestartOn, RestartPolicy, RoleEnd

DRAIN, RESTART = "drain", "restart"  # how the names of timers begin
BACKOFF_S = (1.0, 60.0)  # before a restart: at first, at most; doubled each time
RETRYABLE = 128  # exit codes from here on come from outside the program (a signal, mostly): kubeflow's rule


@dataclass(frozen=True)
class Restarts:
    """Which failed tasks are started again, and how often."""

    most: int = 0  # restarts within the window: of one task, or of the whole cluster
    window_s: float = 3600.0
    policy: Mapping[str, RestartPolicy] = field(default_factory=dict)  # job -> policy
    default: RestartPolicy = "task"
    on: RestartOn = "any"

    def wanted(self, exit: TaskExit) -> RestartPolicy:
        """What starts again after this failure, as long as restarts are left."""
        if not self.most or (self.on == "retryable" and exit.exit_code < RETRYABLE):
            return "never"
        return self.policy.get(exit.task.job, self.default)


@dataclass(frozen=True)
class State(Ending):
    """Everything that decides what happens next in a run; the keys of `hosts` are its tasks."""

    hosts: Mapping[TaskId, str]
    done: Done = "workers"
    drain_s: float = 3.0  # for a task to end by itself once the work is done
    drains_s: Mapping[str, float] = field(default_factory=dict)  # job -> the same, instead of drain_s
    ends: Mapping[str, RoleEnd] = field(
        default_factory=dict
    )  # job -> its part in the end, where the user said so
    restarts: Restarts = field(default_factory=Restarts)
    phase: Literal["running", "restarting", "draining", "ending", "over"] = "running"
    attempts: Mapping[TaskId, int] = field(default_factory=dict)  # a task without an entry is in attempt 0
    waiting: frozenset[TaskId] = frozenset()  # tasks that have ended, each to start again alone
    restarted: tuple[tuple[float, TaskId | None], ...] = ()  # when, and which task; None: the cluster
    exits: Mapping[TaskId, TaskExit] = field(default_factory=dict)  # of the tasks that do not run now
    # seat (the host that has these tasks at first) -> the spares that it may move to
    reserve: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)  # seat -> the spare that it has moved to
    moving: frozenset[TaskId] = frozenset()  # tasks of a lost host, to start on a spare
    runs_on_until: float = 0.0  # by the clock of `step`: until then tasks of a lost host may run on there
    work_done: bool = False  # every task whose success decides has succeeded
    longest_grace_expired_s: float = -1.0  # of the graces (drain_s, drains_s) of the drain; -1: none

    @property
    def all_hosts(self) -> frozenset[str]:
        """As Ending promises."""
        spares = {spare for spares in self.reserve.values() for spare in spares}
        return frozenset(self.hosts.values()) | self.reserve.keys() | spares

    @property
    def alive(self) -> str:
        """As Ending promises."""
        return counted(len(_left(self)), "task")

    @property
    def final_exits(self) -> Mapping[TaskId, TaskExit]:
        """As Ending promises."""
        return self.exits

    @property
    def restart_count(self) -> int:
        """As Ending promises."""
        return len(self.restarted)

    @property
    def status(self) -> Literal["succeeded", "failed", "interrupted"]:
        """As Ending promises."""
        if self.first_failure is not None:
            return "failed"
        return "interrupted" if self.interrupts and not self.work_done else "succeeded"

    def has_task(self, host: str, task: TaskId) -> bool:
        """Whether that task runs, or ran, on that host."""
        return self.hosts.get(task) == host

    def is_busy(self, host: str) -> bool:
        """Whether tasks run on that host, and nothing has been done to end them."""
        if self.phase in ("ending", "over") or host in self.lost:
            return False
        return any(where == host and task not in self.exits for task, where in self.hosts.items())

    def step(self, event: Event, now: float) -> tuple[State, list[Action]]:
        """See the function `step`."""
        return step(self, event, now)


def decisive(
    tasks: Mapping[TaskId, str], done: Done, ends: Mapping[str, RoleEnd] | None = None
) -> frozenset[TaskId]:
    """The tasks that must succeed for the run to succeed; for jobs in `ends`, that decides instead of `done`."""
    return frozenset(filter(_decides(tasks, done, ends or {}), tasks))


def _decides(
    tasks: Mapping[TaskId, str], done: Done, ends: Mapping[str, RoleEnd]
) -> Callable[[TaskId], bool]:
    """Whether a task is one of those that are decisive."""
    chief = next((task for job in (CHIEF, MASTER) if (task := TaskId(job, 0)) in tasks), TaskId(WORKER, 0))

    def decides(task: TaskId) -> bool:
        usual = done == "all" or (done == "workers" and ends_as(task.job) == "decides")
        by_done = done == "chief" and task == chief
        return ends[task.job] == "decides" if task.job in ends else usual or by_done

    return decides


def _unended(state: State) -> Iterator[TaskId]:
    """The tasks that have not ended, or start again: those of `_left`, and those that wait."""
    gone = state.lost.keys() | state.swept.keys()
    for task, host in state.hosts.items():
        if (task not in state.exits and host not in gone) or task in state.waiting:
            yield task


def _left(state: State) -> list[TaskId]:
    """The tasks that have not ended, on hosts that are neither lost nor swept."""
    gone = state.lost.keys() | state.swept.keys()
    return [task for task, host in state.hosts.items() if task not in state.exits and host not in gone]


def _together(state: State) -> list[TaskId]:
    """The tasks that stop and start again with the cluster.

    An evaluator has no connections to the others, so it is among them only if its policy says `cluster`.
    """
    gone = state.lost.keys() | state.swept.keys()
    evaluator = state.restarts.policy.get(EVALUATOR, state.restarts.default) == "cluster"
    return [
        task
        for task, host in state.hosts.items()
        if host not in gone and (evaluator or task.job != EVALUATOR)
    ]


def _can_be_missed(state: State, host: str) -> bool:
    """Whether the run can go on without that host: it has only sidecars, and evaluators count as such by default."""
    ends = {EVALUATOR: "sidecar", **state.ends}
    wanted = decisive(state.hosts, state.done, state.ends)
    tasks = [task for task, where in state.hosts.items() if where == host]
    return all(ends.get(task.job) == "sidecar" and task not in wanted for task in tasks)


def step(state: State, event: Event, now: float = 0.0) -> tuple[State, list[Action]]:
    """The next state, and what to do at once; `now` is any clock that only goes forward, in seconds."""
    if (answer := ending.step(state, event)) is not None:
        return answer
    if isinstance(event, TaskStarted):
        return _started(state, event, now), []
    if isinstance(event, TaskExit):
        if event.attempt < state.attempts.get(event.task, 0):
            return state, []  # a later attempt has begun
        state = dataclasses.replace(state, exits={**state.exits, event.task: event})
        return _after_exit(state, event, now)
    if isinstance(event, HostLost):
        return _lost(state, event, now)
    if isinstance(event, (TimedOut, EndedByRule)):
        return _fail(state, event) if state.phase == "running" else (state, [])
    if isinstance(event, LimitNears):
        return state, _warn(state, event)
    if isinstance(event, AgentGaveUp):
        return _gave_up(state, event, now)
    return _timer(state, event.name, now) if isinstance(event, TimerFired) else (state, [])


def _warn(state: State, near: LimitNears) -> list[Action]:
    left = _left(state) if state.phase == "running" else []
    warned = {task: state.attempts.get(task, 0) for task in near.tasks if task in left}
    if not warned:
        return []
    tasks = counted(len(warned), "task")
    text = f"{math.ceil(near.left_s)} s before the time limit: {tasks} got SIGUSR1 (--warn-before)"
    return [Signal(warned), Say(text, urgent=False)]


def _started(state: State, started: TaskStarted, now: float) -> State:
    known = state.attempts.get(started.task, 0)
    if started.attempt < known:
        return state
    if started.attempt > known:  # an earlier coordinator has ordered that restart: it counts
        policy = state.restarts.policy.get(started.task.job, state.restarts.default)
        task = None if policy == "cluster" else started.task
        counted = sum(1 for _, each in state.restarted if each == task)
        # A host may lie and send any number; to count more than `most` restarts changes nothing.
        uncounted = ((now, task),) * min(state.restarts.most, max(0, started.attempt - counted))
        state = dataclasses.replace(state, restarted=state.restarted + uncounted)
    attempts = {**state.attempts, started.task: started.attempt}
    exits = state.exits
    if started.task in exits:
        exits = {task: exit for task, exit in exits.items() if task != started.task}
    return dataclasses.replace(state, attempts=attempts, exits=exits, waiting=state.waiting - {started.task})


def _after_exit(state: State, exited: TaskExit, now: float) -> tuple[State, list[Action]]:
    if exited.host in state.lost:  # the run goes on without that host, however its tasks end
        return state, []
    if state.phase == "restarting" and exited.task in _together(state):
        return _cluster_stopped(state, now)
    if state.phase in ("running", "restarting"):
        if exited.exit_code != 0:
            return _failed(state, exited, now)
        return _drain_if_done(state)
    if state.phase == "draining":
        return _end_if_drained(state)
    return state, []


def _drain_if_done(state: State) -> tuple[State, list[Action]]:
    """Once all decisive tasks have ended, begin the drain: the others get time to end by themselves."""
    if state.phase != "running":
        return state, []
    decides = _decides(state.hosts, state.done, state.ends)
    # Mostly it is one of the first: a run of thousands asks thousands of times.
    if any(map(decides, _unended(state))):
        return state, []
    left = _left(state)
    if (left or state.waiting) and not any(map(decides, state.hosts)):
        return state, []
    state = dataclasses.replace(state, phase="draining", work_done=True)
    if not left:
        return ending.end(state, state.grace_s)
    usual = [task for task in left if task.job not in state.drains_s]
    times = [(counted(len(usual), "task"), state.drain_s, "--ps-grace")] if usual else []
    for job in dict.fromkeys(task.job for task in left if task.job in state.drains_s):
        of_job = [task for task in left if task.job == job]
        name = str(of_job[0]) if len(of_job) == 1 else f"{len(of_job)} {job} tasks"
        times.append((name, state.drains_s[job], f"--job-grace {job}=TIME"))
    (first, first_s, option), *more = times
    sentences = [f"{first} may take {first_s:g} s to end ({option})"]
    sentences += [f"{name} {seconds:g} s ({option})" for name, seconds, option in more]
    timers = [StartTimer(f"{DRAIN} {s!r}", s) for s in sorted({_drain_s(state, task) for task in left})]
    return state, [Say(f"the work is done; {', '.join(sentences)}", urgent=False), *timers]


def _drain_s(state: State, task: TaskId) -> float:
    return state.drains_s.get(task.job, state.drain_s)


def _end_if_drained(state: State) -> tuple[State, list[Action]]:
    if all(_drain_s(state, task) <= state.longest_grace_expired_s for task in _left(state)):
        return ending.end(state, state.grace_s)
    return state, []


def _failed(state: State, exited: TaskExit, now: float) -> tuple[State, list[Action]]:
    """After a task has failed: start it, or the whole cluster, again, or end the run."""
    policy = state.restarts.wanted(exited)
    if policy == "never":
        return _not_restarted(state, exited)
    task = exited.task if policy == "task" else None
    recent = [each for at, each in state.restarted if each == task and now - at < state.restarts.window_s]
    if len(recent) >= state.restarts.most:
        state, actions = _not_restarted(state, exited)
        times = "once" if len(recent) == 1 else f"{len(recent)} times"
        text = (
            f"{task or 'the cluster'} was started again {times} (--restarts {state.restarts.most}); no more"
        )
        return state, [Say(text, urgent=False), *actions]
    delay_s = min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** len(recent))
    what = f"{exited.task} on {exited.host} {how(exited)} after {exited.seconds:.1f} s"
    count = f"restart {len(recent) + 1} of {state.restarts.most}"
    state = dataclasses.replace(state, restarted=(*state.restarted, (now, task)))
    if task is not None:
        state = dataclasses.replace(state, waiting=state.waiting | {task})
        text = f"{what}; it starts again in {delay_s:g} s ({count})"
        return state, [Say(text, urgent=False), StartTimer(f"{RESTART} {task}", delay_s)]
    together = _together(state)
    state = dataclasses.replace(state, phase="restarting", waiting=state.waiting.difference(together))
    apart = [str(task) for task in _left(state) if task not in together]
    these = f"all tasks but {', '.join(apart)}" if apart else "all tasks"
    text = f"{what}; {these} are stopped and start again in {delay_s:g} s ({count})"
    state, actions = _cluster_stopped(state, now)
    return state, [Say(text, urgent=False), StopTasks(tuple(together), state.grace_s), *actions]


def _not_restarted(state: State, exited: TaskExit) -> tuple[State, list[Action]]:
    """A failed task does not start again: end the run, unless the task is a sidecar."""
    if state.ends.get(exited.task.job) != "sidecar":
        return _fail(state, exited)
    state, actions = _drain_if_done(state)
    text = f"{exited.task} on {exited.host} {how(exited)}; the run goes on without it"
    return state, [Say(text, urgent=False), *actions]


def _cluster_stopped(state: State, now: float) -> tuple[State, list[Action]]:
    """Once all tasks of the cluster have ended, start the timer for their restart."""
    if not (state.exits.keys() | state.moving) >= set(_together(state)):
        return state, []
    count = sum(1 for at, task in state.restarted if task is None and now - at < state.restarts.window_s)
    return state, [StartTimer(RESTART, min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** max(0, count - 1)))]


def _timer(state: State, name: str, now: float) -> tuple[State, list[Action]]:
    if name.startswith(DRAIN + " ") and state.phase == "draining":
        expired_s = max(float(name.partition(" ")[2]), state.longest_grace_expired_s)
        return _end_if_drained(dataclasses.replace(state, longest_grace_expired_s=expired_s))
    if name == RESTART and state.phase == "restarting":
        if (early_s := _too_early_s(state, now)) > 0:
            return state, [StartTimer(RESTART, early_s)]
        # One attempt number for all tasks: one that had more attempts than the others must not start twice.
        together = [*dict.fromkeys([*_together(state), *state.moving])]
        number = 1 + max((state.attempts.get(task, 0) for task in together), default=0)
        moves = bool(state.moving)
        restarted = dataclasses.replace(state, phase="running", moving=frozenset())
        state, actions = _restart(restarted, dict.fromkeys(together, number))
        return state, [Move(state.places, tuple(together), number)] if moves else actions
    if name.startswith(RESTART + " ") and state.phase in ("running", "restarting"):
        task = TaskId.parse(name.partition(" ")[2])
        if task in state.waiting:
            return _restart(state, {task: 1 + state.attempts.get(task, 0)})
    return state, []


def _too_early_s(state: State, now: float) -> float:
    """For how long tasks that move may still run on their lost host, while its agent ends them."""
    lost_at = max((at for at, task in state.restarted if task is None), default=now)
    return max(lost_at + LAST_GRACE_S + 1.0, state.runs_on_until) - now if state.moving else 0.0


def _restart(state: State, tasks: Mapping[TaskId, int]) -> tuple[State, list[Action]]:
    exits = {task: exit for task, exit in state.exits.items() if task not in tasks}
    attempts, waiting = {**state.attempts, **tasks}, state.waiting.difference(tasks)
    return dataclasses.replace(state, attempts=attempts, exits=exits, waiting=waiting), [Restart(tasks)]


def _gave_up(state: State, event: AgentGaveUp, now: float) -> tuple[State, list[Action]]:
    reclaimed = event.ends_in is not None
    grace_s = ending.grace_left(event) if reclaimed else state.grace_s
    if state.phase == "draining":  # the work is done
        return ending.end(state, min(grace_s, state.grace_s))
    lost = HostLost(event.host, event.reason, reclaimed)
    if _can_be_missed(state, event.host):
        state, actions = _lost(state, lost, now)
        return state, [Say(f"{event.host}: {event.reason}"), *actions]
    moved = None
    if (
        not reclaimed or grace_s <= LAST_GRACE_S
    ):  # else its tasks may still run there when they start on a spare
        moved = _move(ending.lose(state, {event.host: event.reason}), lost, now)
    return moved if moved is not None else _fail(state, _as_failure(lost), grace_s)


def _lost(state: State, event: HostLost, now: float) -> tuple[State, list[Action]]:
    state = ending.lose(state, {event.host: event.reason})
    if event.runs_on_s:
        until = max(state.runs_on_until, now + event.runs_on_s)
        state = dataclasses.replace(state, runs_on_until=until)
    if state.phase == "draining":  # the work is done; only the proof that nothing is left there is lost
        return ending.end(state, state.grace_s)
    if not _can_be_missed(state, event.host):
        moved = _move(state, event, now)
        return moved if moved is not None else _fail(state, _as_failure(event))
    on_it = [task for task, host in state.hosts.items() if host == event.host]
    missed = [task for task in on_it if task in state.waiting or task not in state.exits]
    state = dataclasses.replace(state, waiting=state.waiting.difference(on_it))
    state, actions = _cluster_stopped(state, now) if state.phase == "restarting" else _drain_if_done(state)
    without = f"{event.host} and {', '.join(map(str, missed))}" if missed else event.host
    return state, [Say(f"the run goes on without {without}"), *actions]


def _move(state: State, event: HostLost, now: float) -> tuple[State, list[Action]] | None:
    """The tasks of a lost host start on a spare, and all others again; None where no spare or no restart is left."""
    lost = event.host
    used = {seat: state.places.get(seat, seat) for seat in state.reserve}
    seat = next((seat for seat, host in used.items() if host == lost), "")
    gone = {*state.lost, *state.swept, *used.values()}
    spare = next((host for host in state.reserve.get(seat, ()) if host not in gone), "")
    if (
        not spare
        or len(state.restarted) >= state.restarts.most
        or state.phase not in ("running", "restarting")
    ):
        return None
    moving = [task for task, host in state.hosts.items() if host == lost]
    state = dataclasses.replace(
        state,
        phase="restarting",
        hosts={task: spare if host == lost else host for task, host in state.hosts.items()},
        places={**state.places, seat: spare},
        moving=state.moving | frozenset(moving),
        exits={task: exit for task, exit in state.exits.items() if task not in moving},
        restarted=(*state.restarted, (now, None)),
    )
    together = _together(state)
    state = dataclasses.replace(state, waiting=state.waiting.difference(together, moving))
    text = (
        f"{lost} is lost ({event.reason}): {', '.join(map(str, moving))} {agreeing(len(moving), 'moves', 'move')} to "
        f"{spare}, and all tasks start again (restart {len(state.restarted)} of {state.restarts.most}). Files that lie "
        f"on {lost} alone are not there"
    )
    state, actions = _cluster_stopped(state, now)
    there = tuple(task for task in together if task not in state.moving)
    return state, [Say(text), StopTasks(there, state.grace_s), *actions]


def _as_failure(lost: HostLost) -> HostLost | Reclaimed:
    return Reclaimed(lost.reason, lost.host) if lost.reclaimed else lost


def _fail(state: State, failure: Failure, grace_s: float | None = None) -> tuple[State, list[Action]]:
    """End the run as failed because of `failure`; the tasks have `grace_s`, or as long as the user gave them."""
    if grace_s is None:
        grace_s = state.grace_s
    state = dataclasses.replace(state, first_failure=failure)
    state, actions = ending.end(state, grace_s, stacks=isinstance(failure, TimedOut))
    left = _left(state)
    if left:
        text = f"stopping the {counted(len(left), 'task')} left, {grace_s:.3g} s to end by themselves"
        if isinstance(failure, (TimedOut, EndedByRule)):
            text = f"{failure.reason}: {text}"
        elif isinstance(failure, Reclaimed):
            text = f"{failure.host}: {failure.reason}; {text}"
        actions = [Say(text, urgent=False), *actions]
    return state, actions


# ---- as JSON, for the coordinator of a detached run


def state_data(state: State) -> dict[str, Any]:
    """The settings and tasks of a run, as JSON can hold them; what has happened is in lifecycle/memory.py."""
    return {
        "hosts": {str(task): host for task, host in state.hosts.items()},
        "done": state.done,
        "grace_s": state.grace_s,
        "drain_s": state.drain_s,
        "drains_s": dict(state.drains_s),
        "ends": dict(state.ends),
        "share_gpus": state.share_gpus,
        "reserve": {seat: list(spares) for seat, spares in state.reserve.items()},
        "restarts": {**vars(state.restarts), "policy": dict(state.restarts.policy)},
    }


def state_from(data: Mapping[str, Any]) -> State:
    """The state of a run that begins, from `state_data`."""
    hosts = {TaskId.parse(task): host for task, host in data["hosts"].items()}
    reserve = {seat: tuple(spares) for seat, spares in data["reserve"].items()}
    return State(**{**data, "hosts": hosts, "reserve": reserve, "restarts": Restarts(**data["restarts"])})
