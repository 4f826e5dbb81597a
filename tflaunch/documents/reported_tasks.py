"""The tasks that a report is about: those of a run, by its plan, or the trials of a sweep, by its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tflaunch.documents.json_reports import ReportedTrialData
from tflaunch.protocol.job import TRIAL
from tflaunch.runs.record import Record
from tflaunch.runs.samples import Sampled
from tflaunch.sweeps.results import TRIALS, Result, Results

_Event = Mapping[str, Any]


@dataclass(frozen=True)
class ReportedTask:
    """A task, and how its last attempt ended."""

    name: str
    host: str  # "": not known, of a trial that has not ended
    gpus: tuple[str, ...] = ()  # as people see them
    end: Mapping[str, Any] | None = None  # code, signal, seconds, stopped, attempt
    attempts: int = 1
    trial: ReportedTrialData | None = None


@dataclass(frozen=True)
class Reported:
    """The tasks of a record, and the events that it has of them."""

    tasks: Sequence[ReportedTask]
    events: Sequence[_Event]
    programs: Mapping[str, list[str]]  # job -> the command line of its first task

    def only(self, task: str) -> Reported:
        """What it has of that task."""
        events = [event for event in self.events if event.get("task", task) == task]
        return replace(self, tasks=[each for each in self.tasks if each.name == task], events=events)


def reported(
    record: Record,
    events: Sequence[_Event],
    sampled: Sampled | None,
    outcome: Mapping[str, Any] | None,
) -> Reported:
    """What that record is about.  Raises RecordError."""
    if record.read(TRIALS) is not None:
        return _sweep(Results(record), sampled)
    ends = {str(event["task"]): event for event in events if event["event"] == "exited"}
    ends |= {str(end["task"]): end for end in (outcome or {}).get("exits", ())}
    attempts = {str(event["task"]): event["attempt"] for event in events if event["event"] == "started"}
    plan, found = record.plan, list[ReportedTask]()
    for task in plan.tasks:
        name, end = str(task.id), ends.get(str(task.id))
        last = max(attempts.get(name, 0), (end or {}).get("attempt", 0))
        found.append(ReportedTask(name, task.host, tuple(task.gpu_labels), end, last + 1))
    return Reported(found, events, {task.id.job: list(task.argv) for task in reversed(plan.tasks)})


def _sweep(results: Results, sampled: Sampled | None) -> Reported:
    """The trials that have ended, and those that were seen to run; a sweep keeps no events but the ends."""
    seen = {task for _, rows in sampled.bins for task in rows} if sampled is not None else set[str]()
    tasks, events = list[ReportedTask](), list[_Event]()
    for number, params in enumerate(results.known):
        name, end = f"{TRIAL}/{number}", results.last.get(number)
        about: ReportedTrialData = {"params": dict(params), "metric": None, "status": "running", "why": ""}
        if end is not None:
            about |= {"metric": end.metric, "status": end.status, "why": end.why}
            events += _events(name, end)
            ended = {**events[-1], "seconds": end.seconds}
            tasks.append(ReportedTask(name, end.host, tuple(end.gpus), ended, end.attempts, about))
        elif name in seen:
            tasks.append(ReportedTask(name, "", trial=about))
    events.sort(key=lambda event: event["time"])
    program = [*results.about.get("program", ()), *results.about.get("args", ())]
    return Reported(tasks, events, {TRIAL: program})


def _events(name: str, end: Result) -> Iterable[_Event]:
    """The start and the end of its last attempt."""
    of_it = {"task": name, "host": end.host, "attempt": end.attempts - 1}
    yield {"event": "started", "time": end.ended - end.seconds, **of_it}
    stopped, killed = end.status == "stopped", end.signal is not None
    how = {"code": None if killed else end.exit_code, "signal": end.signal, "stopped": stopped}
    yield {"event": "exited", "time": end.ended, **of_it, **how}
