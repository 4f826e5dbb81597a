"""What the coordinator of a detached run leaves with its agent, as JSON, for a coordinator that may replace it.

The new coordinator checks every field.  It takes over everything or, if any field does not fit the run, nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tflaunch.lifecycle.ending import PURGE_DUE
from tflaunch.lifecycle.states import DRAIN, RESTART
from tflaunch.protocol.fields import (
    Each,
    OneOf,
    RuledRecord,
    a_flag,
    a_number,
    a_signal,
    a_text,
    a_whole_number,
    an_attempt,
    an_exit_code,
    anything,
    check,
    of_the_run,
    one_of,
    or_null,
)
from tflaunch.protocol.messages import EXIT_FACTS
from tflaunch.protocol.outcome import EndedByRule, Failure, GpuLeft, HostLost, Reclaimed, TaskExit, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.lifecycle.states import State
    from tflaunch.protocol.job import TaskId

PHASES = ("running", "restarting", "draining", "ending")


# ---- a state; what it began with (states.state_data) is left out


def memory_of(state: State) -> dict[str, Any]:
    """All that has happened to a state since the run began, as JSON can hold it; for `remembered`."""
    return {
        "phase": state.phase,
        "places": dict(state.places),
        "moving": [str(task) for task in state.moving],
        "runs_on_until": state.runs_on_until,
        "attempts": {str(task): number for task, number in state.attempts.items()},
        "waiting": [str(task) for task in state.waiting],
        "restarted": [[at, str(task) if task else None] for at, task in state.restarted],
        "exits": [_exit_data(exit) for exit in state.exits.values()],
        "first_failure": _failure_data(state.first_failure),
        "work_done": state.work_done,
        "longest_grace_expired_s": state.longest_grace_expired_s,
        "interrupts": list(state.interrupts),
        "lost": dict(state.lost),
        "swept": {host: list(left) for host, left in state.swept.items()},
        "gpus": {host: [vars(gpu) for gpu in gpus] for host, gpus in state.gpus.items()},
    }


def remembered(state: State, data: Any) -> State:
    """Apply to `state`, in which the run began, all that `data` (from `memory_of`) says has happened.

    Raises ValueError unless `data` fits the run.
    """
    state = _moved(state, data)
    check(_record_of(state), data)
    tasks = {str(task): task for task in state.hosts}
    exits = [_exit_from(exit, tasks) for exit in data["exits"]]
    return replace(
        state,
        phase=data["phase"],
        moving=frozenset(map(tasks.__getitem__, data["moving"])),
        runs_on_until=data["runs_on_until"],
        attempts={tasks[task]: number for task, number in data["attempts"].items()},
        waiting=frozenset(map(tasks.__getitem__, data["waiting"])),
        restarted=tuple((at, tasks[task] if task else None) for at, task in data["restarted"]),
        exits={exit.task: exit for exit in exits},
        first_failure=_failure_from(data["first_failure"], tasks),
        work_done=data["work_done"],
        longest_grace_expired_s=data["longest_grace_expired_s"],
        interrupts=tuple(data["interrupts"]),
        lost=data["lost"],
        swept={host: tuple(left) for host, left in data["swept"].items()},
        gpus={host: tuple(GpuLeft(**gpu) for gpu in gpus) for host, gpus in data["gpus"].items()},
    )


def _moved(state: State, data: Any) -> State:
    """`state`, in which the run began, with the seats where `data` says that they are now."""
    places = data.get("places", {}) if isinstance(data, dict) else {}
    fit = isinstance(places, dict) and all(
        spare in state.reserve.get(seat, ()) for seat, spare in places.items()
    )
    if not fit:
        raise ValueError("it has moved to a host that is no spare")
    hosts = {task: places.get(host, host) for task, host in state.hosts.items()}
    return replace(state, hosts=hosts, places=places)


def _record_of(state: State) -> dict[str, Any]:
    """The fields of what `memory_of` returns for this run (see protocol/fields.py)."""
    tasks = {str(task): task for task in state.hosts}
    a_task, a_host = of_the_run("a task", tasks), of_the_run("a host", state.all_hosts)
    an_exit = RuledRecord(
        {
            "task": a_task,
            "host": a_host,
            "code": or_null(an_exit_code),
            "signal": or_null(a_signal),
            "seconds": a_number,
            "stopped": a_flag,
            "signal_name": a_text,
            "attempt": an_attempt,
            "log_bytes": a_whole_number,
            "?facts": EXIT_FACTS,
        },
        lambda exit: (
            (exit["code"] is None) != (exit["signal"] is None)
            and state.hosts[tasks[exit["task"]]] == exit["host"]
        ),
        "an exit of that task",
    )
    by_rule = {"reason": a_text, "tasks": [a_task], "exit_code": an_exit_code}
    reclaimed = {"host": a_host, "reason": a_text, "exit_code": an_exit_code}
    timed_out = {"reason": a_text, "tasks": [a_task], "states": [a_text]}
    return {
        "phase": one_of(*PHASES),
        "places": anything,  # see `_moved`
        "moving": [a_task],
        "runs_on_until": a_number,
        "attempts": Each(a_task, an_attempt),
        "waiting": [a_task],
        "restarted": [(a_number, or_null(a_task))],
        "exits": [an_exit],
        "first_failure": or_null(
            OneOf(reclaimed, {"host": a_host, "reason": a_text}, timed_out, by_rule, an_exit)
        ),
        "work_done": a_flag,
        "longest_grace_expired_s": a_number,
        "interrupts": [a_signal],
        "lost": Each(a_host, a_text),
        "swept": Each(a_host, [a_text]),
        "gpus": Each(a_host, [{"text": a_text, "own": a_flag}]),
    }


def _exit_data(exit: TaskExit) -> dict[str, Any]:
    data = {**vars(exit), "task": str(exit.task)}
    del data["tail"]  # a coordinator shows no logs
    return data


def _exit_from(data: Mapping[str, Any], tasks: Mapping[str, TaskId]) -> TaskExit:
    return TaskExit(**{**data, "task": tasks[data["task"]]})


def _failure_data(first: Failure | None) -> dict[str, Any] | None:
    if isinstance(first, TaskExit):
        return _exit_data(first)
    if isinstance(first, TimedOut):
        tasks = [str(task) for task in first.tasks]
        return {"reason": first.reason, "tasks": tasks, "states": [*first.states]}
    if isinstance(first, EndedByRule):
        return {**vars(first), "tasks": [str(task) for task in first.tasks]}
    if isinstance(first, Reclaimed):
        return {**vars(first), "exit_code": first.exit_code}
    return {"host": first.host, "reason": first.reason} if first else None


def _failure_from(data: Mapping[str, Any] | None, tasks: Mapping[str, TaskId]) -> Failure | None:
    if data is None:
        return None
    if "task" in data:
        return _exit_from(data, tasks)
    if "exit_code" in data and "host" in data:
        return Reclaimed(data["reason"], data["host"])
    if "exit_code" in data:
        return EndedByRule(data["reason"], tuple(map(tasks.__getitem__, data["tasks"])), data["exit_code"])
    if "tasks" in data:
        return TimedOut(data["reason"], tuple(map(tasks.__getitem__, data["tasks"])), (*data["states"],))
    return HostLost(**data)


# ---- a driver


def check_driver(state: State, data: Any) -> None:
    """Raise ValueError unless `data` can come from Driver.memory of this run, which began in `state`."""
    tasks = set(map(str, state.hosts))
    a_task, a_host = of_the_run("a task", tasks), of_the_run("a host", state.all_hosts)
    orders = OneOf(
        (one_of("move"), {"places": Each(a_host, a_host), "tasks": [a_task], "attempt": an_attempt}),
        (one_of("end"), {"grace_s": a_number, "stacks": a_flag}),
        (one_of("stop"), {"tasks": [a_task], "grace_s": a_number}),
        (one_of("restart", "signal"), {"tasks": Each(a_task, an_attempt)}),
    )
    order_names = of_the_run(
        "an order", ["end", "stop", "signal", "move", *(f"{RESTART} {task}" for task in tasks)]
    )

    def a_timer(name: str) -> bool:
        kind, _, of = name.partition(" ")
        if kind == DRAIN and of:
            return a_number(float(of))
        return of in tasks if kind == RESTART and of else name in (PURGE_DUE, RESTART)

    check(
        {
            "state": anything,
            "after": Each(a_host, a_whole_number),
            "timers": Each(a_timer, a_number),
            "orders": Each(a_host, Each(order_names, orders)),
        },
        data,
    )
