"""Where the tasks of a run are just now: what their agents say, asked through visits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tflaunch.diagnosis.frames import is_own
from tflaunch.protocol.errors import ConnectError, UsageError

if TYPE_CHECKING:
    from tflaunch.runs.run_states import RunState
    from tflaunch.runs.visits import Visits

ANSWER_S = 30.0


@dataclass(frozen=True)
class TaskStacks:
    """What the processes of a task are doing (`inspected`, tflaunch.agent.tasks.inspection), the program first."""

    task: str
    host: str
    processes: tuple[Mapping[str, Any], ...]


def wanted_tasks(run: RunState, tasks: Collection[str]) -> dict[str, str]:
    """The tasks that run, of those that are named, or of all: task -> host.  Raises UsageError."""
    known = {task.task: task for task in run.tasks}
    if missing := [task for task in tasks if task not in known]:
        raise UsageError(
            f"run {run.run_id} has no task {missing[0]}", f"it has {', '.join([*known][:8]) or 'none'}"
        )
    running = {name: task.host for name, task in known.items() if task.state == "running"}
    wanted = {name: host for name, host in running.items() if not tasks or name in tasks}
    if not wanted:
        who = ", ".join(tasks) if tasks else f"no task of run {run.run_id}"
        text = f"{who} does not run" if tasks else f"{who} runs"
        raise UsageError(text, f"what they printed: tflaunch logs {run.run_id}")
    return wanted


def ask_stacks(
    visits: Visits, run: RunState, wanted: Mapping[str, str]
) -> tuple[list[TaskStacks], dict[str, ConnectError]]:
    """Ask the agents of the run where these tasks are; returns the answers, and the hosts that sent none.

    A task that has ended meanwhile has no answer.  Raises Stopped.
    """
    sessions = visits.sessions
    there = {share.asked: share.host for share in run.shares if share.asked in sessions.by_host}
    asked = {name: host for name, host in there.items() if host in wanted.values()}
    for name, host in asked.items():
        sessions.send([name], "attach", run=run.run_id, host=host)
    hellos, failures = sessions.gather("hello", list(asked), ANSWER_S)
    living = [name for name, hello in hellos.items() if hello.fields.get("alive", True)]
    for name in living:
        tasks = [task for task, host in wanted.items() if host == asked[name]]
        sessions.send([name], "inspect", tasks=tasks, stacks=True, on_demand=True)
    answers, silent = sessions.gather("inspected", living, ANSWER_S, "asking the tasks")
    found = [
        TaskStacks(task, host, tuple(answers[name]["tasks"][task]))
        for task, host in wanted.items()
        for name in answers
        if asked[name] == host and task in answers[name]["tasks"]
    ]
    return found, {**failures, **silent}


def stacks_data(found: TaskStacks) -> dict[str, Any]:
    """The answer as JSON can hold it; the innermost frame is last."""
    return {
        "task": found.task,
        "host": found.host,
        "processes": [
            {
                "pid": each["pid"],
                "name": each["name"],
                "threads": [
                    dict(zip(("tid", "name", "state", "waits_in", "cpu_s"), thread, strict=True))
                    for thread in each["threads"]
                ],
                "stacks": each["stacks"] and [_stack_data(stack) for stack in each["stacks"]],
                "why_none": each["why_none"],
                "age_s": each.get("age_s", 0.0),
            }
            for each in found.processes
        ],
    }


def _stack_data(stack: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "main": stack["main"],
        "threads": stack.get("count", 1),
        "frames": [
            {"file": file, "line": line, "function": function, "own": is_own(file)}
            for file, line, function in reversed(stack["frames"])
        ],
    }
