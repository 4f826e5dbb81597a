"""Trials that succeeded while no launcher of their sweep was alive: their hosts know of them, and have their logs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from tflaunch.hosts import Hostfile
from tflaunch.protocol.job import TRIAL, TaskId
from tflaunch.protocol.outcome import TaskExit
from tflaunch.runs.follow import Follower
from tflaunch.runs.run_states import RunState, TaskState
from tflaunch.runs.visits import Visits
from tflaunch.runs.wanted import WantedLogs
from tflaunch.sessions.watcher import ProgressWatcher, Watcher
from tflaunch.sweeps.results import Metric, MetricReading, Result, Results, result
from tflaunch.sweeps.resume import is_done
from tflaunch.sweeps.trials import Trial


class RecoveryWatcher(ProgressWatcher, Protocol):
    """What shows the user how it goes."""

    def note(self, text: str) -> None: ...


class _LogTaker:
    """Takes the logs that a Follower reads, instead of showing them."""

    def __init__(self, take: Callable[[TaskId, int, int, bytes], None]) -> None:
        self._take = take

    def log(
        self,
        task: TaskId,
        host: str,  # noqa: ARG002
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None = None,
        *,
        attempt: int = 0,
    ) -> None:
        self._take(task, attempt, offset, data)
        if written is not None:
            written(len(data))

    def log_end(self, task: TaskId) -> None: ...
    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def unreachable(self, host: str, reason: str) -> None: ...
    def back(self, host: str, away_s: float) -> None: ...


def recover(
    visits: Visits, results: Results, metric: Metric | None, hostfile: Hostfile, watcher: RecoveryWatcher
) -> list[Result]:
    """Add the results of trials that have succeeded on these hosts and are not on record, with their logs.

    The sweep's agents must have ended.  A trial whose log does not come whole is left out, and so runs again.  Raises
    RecordError, Stopped.
    """
    run_id = results.record.run_id
    states = [each for each in visits.runs(everything=True, only=run_id).runs if each.run_id == run_id]
    found = {number: task for state in states for number, task in _succeeded(state, results).items()}
    if not found:
        return []
    readings = {number: MetricReading(metric) for number in found}

    def take(task: TaskId, attempt: int, offset: int, data: bytes) -> None:
        if task.job == TRIAL and task.index in found and attempt == found[task.index].attempts - 1:
            results.record.logs.append(task, offset, data, attempt)
            readings[task.index].feed(offset, data)

    wanted = WantedLogs(tasks=tuple(TaskId(TRIAL, number) for number in found))
    follower = Follower(states[0], visits.sessions, hostfile, cast("Watcher", _LogTaker(take)), wanted)
    follower.attach()
    follower.print_logs()
    added = []
    for number, task in sorted(found.items()):
        if task.host in follower.unreached or readings[number].received < _least(task):
            continue
        readings[number].end()
        added.append(_result(results, number, task, readings[number]))
        results.record.logs.end(TaskId(TRIAL, number), task.attempts - 1)
        results.add(added[-1])
    if added:
        names = ", ".join(f"{TRIAL}/{each.trial}" for each in added[:8]) + (", ..." if len(added) > 8 else "")
        watcher.note(
            f"{run_id}: {names} succeeded while no launcher was alive, and count{'s' * (len(added) == 1)}"
        )
    return added


def _least(task: TaskState) -> int:
    """How many bytes the log of the last attempt has, where the host's number is of that attempt alone; else 0."""
    return task.log_bytes if task.attempts == 1 else 0


def _succeeded(state: RunState, results: Results) -> Mapping[int, TaskState]:
    """The trials that have succeeded there, and for the launcher have not."""
    found = {}
    for each in state.tasks:
        task = TaskId.parse(each.task)
        known = results.last.get(task.index)
        newer = known is None or each.attempts > known.attempts
        ended = each.state == "exited" and each.code == 0 and not each.stopped
        if (
            task.job == TRIAL
            and task.index < len(results.known)
            and ended
            and newer
            and not is_done(results, task.index)
        ):
            found[task.index] = each
    return found


def _result(results: Results, number: int, task: TaskState, reading: MetricReading) -> Result:
    trial, attempt = Trial(number, results.known[number]), task.attempts - 1
    exit = TaskExit(trial.task, task.host, 0, None, task.seconds or 0.0, attempt=attempt)
    log = results.record.logs.path(trial.task, attempt)
    made = result(trial, exit, reading, task.gpu_labels, log)
    return dataclasses.replace(made, ended=task.ended or time.time())
