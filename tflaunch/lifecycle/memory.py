"""What the coordinator of a detached run leaves to the next one: data, taken over only where all of it fits the run.

It passes through the agent's socket as JSON.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tflaunch.lifecycle.states import DRAIN, HURRY, RESTART
from tflaunch.protocol.fields import (
    Each,
    OneOf,
    Record,
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
from tflaunch.protocol.outcome import CardLeft, HostLost, TaskExit, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.lifecycle.states import State

PHASES = ("running", "restarting", "draining", "ending")


# ---- a state, without what it began with (tflaunch.lifecycle.states.state_data)


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
        "longest_grace_expired_s": state.longest_grace_expired_s,
        "interrupts": list(state.interrupts),
        "lost": dict(state.lost),
        "swept": {host: list(left) for host, left in state.swept.items()},
        "cards": {host: [vars(card) for card in cards] for host, cards in state.cards.items()},
    }


def remembered(state: State, data: Any) -> State:
    """That state, of a run that begins, with what `data` says has become of it; raises ValueError."""
    tasks = {str(task): task for task in state.hosts}
    a_task, a_host = of_the_run("a task", tasks), of_the_run("a host", state.hosts.values())
    exit_of_it = Record(
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
        },
        lambda exit: (
            (exit["code"] is None) != (exit["signal"] is None)
            and state.hosts[tasks[exit["task"]]] == exit["host"]
        ),
        "an end of that task",
    )
    timed_out = {"reason": a_text, "tasks": [a_task], "states": [a_text]}
    check(
        {
            "phase": one_of(*PHASES),
            "attempts": Each(a_task, an_attempt),
            "waiting": [a_task],
            "restarted": [(a_number, or_null(a_task))],
            "exits": [exit_of_it],
            "first_failure": or_null(OneOf({"host": a_host, "reason": a_text}, timed_out, exit_of_it)),
            "work_done": a_flag,
            "longest_grace_expired_s": a_number,
            "interrupts": [a_signal],
            "lost": Each(a_host, a_text),
            "swept": Each(a_host, [a_text]),
            "cards": Each(a_host, [{"text": a_text, "own": a_flag}]),
        },
        data,
    )

    def exit_from(told: Mapping[str, Any]) -> TaskExit:
        return TaskExit(**{**told, "task": tasks[told["task"]]})

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
        longest_grace_expired_s=data["longest_grace_expired_s"],
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
    """Raise ValueError unless `data` is what a drive of that state has: see tflaunch.lifecycle.driver.Driver.memory."""
    tasks = set(map(str, state.hosts))
    a_task, a_host = of_the_run("a task", tasks), of_the_run("a host", state.hosts.values())
    orders = OneOf(
        (one_of("end"), {"grace_s": a_number, "stacks": a_flag}),
        (one_of("stop"), {"tasks": [a_task], "grace_s": a_number}),
        (one_of("restart"), {"tasks": Each(a_task, an_attempt)}),
    )
    order_names = of_the_run("an order", ["end", "stop", *(f"{RESTART} {task}" for task in tasks)])

    def a_timer(name: str) -> bool:
        kind, _, of = name.partition(" ")
        if kind == DRAIN and of:
            return a_number(float(of))
        return of in tasks if kind == RESTART and of else name in (HURRY, RESTART)

    check(
        {
            "state": anything,
            "after": Each(a_host, a_whole_number),
            "timers": Each(a_timer, a_number),
            "orders": Each(a_host, Each(order_names, orders)),
        },
        data,
    )
