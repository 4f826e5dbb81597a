"""What the coordinator of a detached run leaves to the next one: data, taken over only where all of it fits the run.

It passes through the agent's socket as JSON.  A shape says what a value must be: a function is true of it, [X] is a
list of X, (X, Y) a list of just these, {name: X} an object with just these fields, and {function: X} one from keys
that the function is true of to X.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tflaunch.outcome import CardLeft, HostLost, TaskExit, TimedOut
from tflaunch.supervise import DRAIN, HURRY, RESTART

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tflaunch.supervise import State

PHASES = ("running", "restarting", "draining", "ending")
_MOST = 1e15  # of anything that is counted or measured
_SIGNALS = frozenset(map(int, signal.Signals))


def fault(shape: Any, value: Any, where: str = "") -> str:
    """Where `value` is not what `shape` says, or ""."""
    if callable(shape):
        return "" if shape(value) else f"{where or 'all of it'} is {ascii(value)[:60]}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        return _first(fault(shape[0], each, f"{where}.{at}") for at, each in enumerate(value))
    if isinstance(shape, tuple):
        if not (isinstance(value, list) and len(value) == len(shape)):
            return f"{where} is no list of {len(shape)}"
        return _first(fault(shape[at], value[at], f"{where}.{at}") for at in range(len(shape)))
    if not isinstance(value, dict):
        return f"{where or 'all of it'} is no object"
    if all(map(callable, shape)):
        [(is_key, of_each)] = shape.items()
        return _first(
            fault(of_each, each, f"{where}.{key}") if is_key(key) else f"{where}.{ascii(key)[:60]} is unknown"
            for key, each in value.items()
        )
    if value.keys() != shape.keys():
        return f"{where or 'all of it'} lacks {sorted(shape.keys() - value.keys())} or has more"
    return _first(fault(shape[name], value[name], f"{where}.{name}" if where else name) for name in shape)


def _first(faults: Any) -> str:
    return next(filter(None, faults), "")


def check(shape: Any, value: Any) -> None:
    """Raise ValueError with where `value` is not what `shape` says."""
    if found := fault(shape, value):
        raise ValueError(found)


def anything(_: Any) -> bool:
    """It has a check of its own."""
    return True


def a_text(value: Any) -> bool:
    return isinstance(value, str)


def a_flag(value: Any) -> bool:
    return value is True or value is False


def a_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def a_number(value: Any) -> bool:
    return type(value) in (int, float) and -_MOST < value < _MOST  # of NaN neither is true


def one_of(known: Any) -> Callable[[Any], bool]:
    """Whether it is one of these texts or numbers."""
    return lambda value: type(value) in (str, int) and value in known


def either(*shapes: Any) -> Callable[[Any], bool]:
    """Whether one of these shapes fits; None is null."""
    return lambda value: any(
        value is None if shape is None else not fault(shape, value, "it") for shape in shapes
    )


# ---- a state, without what it began with (tflaunch.supervise.state_data)


def memory_of(state: State) -> dict[str, Any]:
    """What has become of a state, as JSON can hold it."""
    return {
        "phase": state.phase,
        "attempts": {str(task): number for task, number in state.attempts.items()},
        "waiting": [str(task) for task in state.waiting],
        "restarted": [[at, str(task) if task else None] for at, task in state.restarted],
        "exits": [_exit_data(exit) for exit in state.exits.values()],
        "first_failure": _failure_data(state.first_failure),
        "work_done": state.work_done,
        "drained_s": state.drained_s,
        "interrupts": list(state.interrupts),
        "lost": dict(state.lost),
        "swept": {host: list(left) for host, left in state.swept.items()},
        "cards": {host: [vars(card) for card in cards] for host, cards in state.cards.items()},
    }


def remembered(state: State, data: Any) -> State:
    """That state, of a run that begins, with what `data` says has become of it; raises ValueError."""
    tasks = {str(task): task for task in state.hosts}
    a_task, a_host = one_of(tasks), one_of(set(state.hosts.values()))
    exit_shape = {
        "task": a_task,
        "host": a_host,
        "code": either(None, a_count),
        "signal": either(None, a_count),
        "seconds": a_number,
        "stopped": a_flag,
        "signal_name": a_text,
        "attempt": a_count,
        "log_bytes": a_count,
    }
    timed_out = {"reason": a_text, "tasks": [a_task], "states": [a_text]}
    failure = either(None, exit_shape, {"host": a_host, "reason": a_text}, timed_out)
    check(
        {
            "phase": one_of(PHASES),
            "attempts": {a_task: a_count},
            "waiting": [a_task],
            "restarted": [(a_number, either(None, a_task))],
            "exits": [exit_shape],
            "first_failure": failure,
            "work_done": a_flag,
            "drained_s": a_number,
            "interrupts": [one_of(_SIGNALS)],
            "lost": {a_host: a_text},
            "swept": {a_host: [a_text]},
            "cards": {a_host: [{"text": a_text, "own": a_flag}]},
        },
        data,
    )

    def exit_from(told: Mapping[str, Any]) -> TaskExit:
        exit = TaskExit(**{**told, "task": tasks[told["task"]]})
        if state.hosts[exit.task] != exit.host or (exit.code is None) == (exit.signal is None):
            raise ValueError(f"{exit.task} on {exit.host} has no such end")
        return exit

    first: TaskExit | HostLost | TimedOut | None = None
    if told := data["first_failure"]:
        if "task" in told:
            first = exit_from(told)
        elif "tasks" in told:
            first = TimedOut(told["reason"], tuple(map(tasks.__getitem__, told["tasks"])), (*told["states"],))
        else:
            first = HostLost(**told)
    exits = map(exit_from, data["exits"])
    return replace(
        state,
        phase=data["phase"],
        attempts={tasks[task]: number for task, number in data["attempts"].items()},
        waiting=frozenset(map(tasks.__getitem__, data["waiting"])),
        restarted=tuple((at, tasks[task] if task else None) for at, task in data["restarted"]),
        exits={exit.task: exit for exit in exits},
        first_failure=first,
        work_done=data["work_done"],
        drained_s=data["drained_s"],
        interrupts=tuple(data["interrupts"]),
        lost=data["lost"],
        swept={host: tuple(left) for host, left in data["swept"].items()},
        cards={host: tuple(CardLeft(**card) for card in cards) for host, cards in data["cards"].items()},
    )


def _exit_data(exit: TaskExit) -> dict[str, Any]:
    told = {**vars(exit), "task": str(exit.task)}
    del told["tail"]  # nobody shows it here
    return told


def _failure_data(first: TaskExit | HostLost | TimedOut | None) -> dict[str, Any] | None:
    if isinstance(first, TaskExit):
        return _exit_data(first)
    if isinstance(first, TimedOut):
        tasks = [str(task) for task in first.tasks]
        return {"reason": first.reason, "tasks": tasks, "states": [*first.states]}
    return vars(first) if first else None


# ---- what a drive has on the way


def check_drive(state: State, data: Any) -> None:
    """Raise ValueError unless `data` is what a drive of that state has: see tflaunch.drive.Drive.memory."""
    tasks = set(map(str, state.hosts))
    a_task, a_host = one_of(tasks), one_of(set(state.hosts.values()))
    orders = {
        "end": {"grace_s": a_number, "stacks": a_flag},
        "stop": {"tasks": [a_task], "grace_s": a_number},
        "restart": {"tasks": {a_task: a_count}},
    }
    known = {*orders, *(f"{RESTART} {task}" for task in tasks)}

    def an_order(value: Any) -> bool:
        fits = isinstance(value, list) and len(value) == 2 and one_of(orders)(value[0])
        return fits and not fault(orders[value[0]], value[1])

    def a_timer(name: str) -> bool:
        kind, _, of = name.partition(" ")
        if kind == DRAIN and of:
            return a_number(float(of))
        return of in tasks if kind == RESTART and of else name in (HURRY, RESTART)

    check(
        {
            "state": anything,
            "after": {a_host: a_count},
            "timers": {a_timer: a_number},
            "orders": {a_host: {one_of(known): an_order}},
        },
        data,
    )
