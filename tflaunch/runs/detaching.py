"""Asking the launcher of a run, through the agents, to hand the run over to its hosts."""

from __future__ import annotations

from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.protocol.job import TRIAL, TaskId, deciding
from tflaunch.runs.run_states import RunState
from tflaunch.sessions.group import Sessions

ANSWER_S = 30.0  # for an agent to accept this command
HANDED_S = 120.0  # for the launcher to hand the run over: longer than its own patience


def detach_run(run: RunState, sessions: Sessions) -> None:
    """Have the launcher hand that run over; returns when the run goes on without it.

    `sessions` are visits to the hosts of the run.  Raises UsageError for a run that cannot be handed over, ConnectError
    when its launcher did not, Stopped.
    """
    why_not(run)
    if run.detached:
        return
    there = {share.host: share.asked for share in run.shares if share.asked in sessions.by_host}
    tasks = sorted((TaskId.parse(task.task), task.host) for task in run.tasks if task.host in there)
    if not tasks:
        raise ConnectError("none of the hosts of its tasks can be asked", "try again when they are back")
    host = min(tasks, key=lambda each: deciding(each[0]))[1]
    asked = there[host]
    sessions.send([asked], "attach", run=run.run_id, host=host)
    _, failures = sessions.gather("hello", [asked], ANSWER_S)
    if not failures:
        sessions.send([asked], "detach")
        replies, failures = sessions.gather("handed", [asked], HANDED_S)
    if failures:
        error = failures[asked]
        raise ConnectError(f"{run.run_id}: {host}: {error.message}", error.hint)
    if reason := replies[asked]["reason"]:
        raise ConnectError(f"{run.run_id} was not handed over: {reason}", replies[asked]["hint"])


def why_not(run: RunState) -> None:
    """Raise UsageError if no launcher can hand over that run."""
    if any(TaskId.parse(task.task).job == TRIAL for task in run.tasks):
        raise UsageError(
            f"{run.run_id} is a sweep: its launcher starts the trials, and cannot leave",
            f"stop it and go on later: tflaunch sweep --resume {run.run_id}; tmux or screen keeps a launcher alive",
        )
    if not run.alive:
        raise UsageError(f"{run.run_id} is not alive", f"how it ended: tflaunch status {run.run_id}")
