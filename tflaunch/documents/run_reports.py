"""What a run did, from its record: what stands out, what happened when, what each task used and how it ended."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tflaunch import __version__
from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.json_things import ComparedData, ReportedRunData, ReportedTaskData, SamplesData
from tflaunch.documents.kept_events import read_events
from tflaunch.documents.run_timeline import timeline
from tflaunch.documents.run_verdicts import verdicts
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.runs.host_samples import HOST_SAMPLES, merged, read_host_samples
from tflaunch.runs.record import Record
from tflaunch.runs.record_files import reading
from tflaunch.runs.samples import COLUMNS, NAMES, SAMPLES, Sampled, read_samples

_MEANS = tuple(name for name in NAMES if name not in ("step", "loss", "quiet_s"))
LEAST_S = 10.0  # of two steps that a log names, for a rate


def report(records: Sequence[Record], unasked: Mapping[str, str] | None = None) -> ReportDocument:
    """The report of one run, or of two beside each other.  Raises RecordError.

    unasked: run -> why its hosts, which may have samples of it, were not asked.
    """
    runs = [run_report(record, (unasked or {}).get(record.run_id, "")) for record in records]
    return {"time": time.time(), "runs": runs, "compared": compared(*runs) if len(runs) == 2 else []}


def run_report(record: Record, unasked: str = "") -> ReportedRunData:
    """The report of one run; `unasked`: why its hosts were not asked for samples.  Raises RecordError."""
    outcome, plan = record.outcome(), record.plan
    with reading(record.path):
        events = list(read_events(record.path))
        sampled = read_samples(record.path / SAMPLES)
        there = read_host_samples(record.path / HOST_SAMPLES, {str(task.id) for task in plan.tasks})
    if there is not None:
        sampled = merged(sampled, there)
    began = min([record.started, *(event["time"] for event in events[:1])])
    tasks = _tasks(plan, sampled, outcome, events)
    found: ReportedRunData = {
        "run_id": record.run_id,
        "status": _status(record, outcome),
        "exit_code": outcome["exit_code"] if outcome else None,
        "began": began,
        "seconds": outcome["seconds"] if outcome else None,
        "verdicts": [],
        "timeline": timeline(events, sampled),
        "tasks": tasks,
        "command": list(record.command),
        "directory": str(record.about.get("cwd", "")),
        "programs": {task.id.job: list(task.argv) for task in reversed(plan.tasks)},
        "code": record.code,
        "versions": {"tflaunch": str(record.about["tflaunch"])},
        "samples": samples_data(sampled) if sampled is not None else None,
        "missing": _missing(record, events, sampled, unasked),
    }
    with reading(record.path):
        found["verdicts"] = verdicts(found, events, sampled, outcome)
    return found


def _status(record: Record, outcome: Mapping[str, Any] | None) -> Any:
    if outcome:
        return outcome["status"]
    if record.running():
        return "running"
    return "detached" if record.about.get("detached") else "unknown"


def _missing(
    record: Record, events: Sequence[Mapping[str, Any]], sampled: Sampled | None, unasked: str
) -> list[str]:
    said = []
    detached = bool(record.about.get("detached"))
    if not events:
        said.append(
            f"its record has no events: tflaunch {record.about['tflaunch']} started it, this is {__version__}"
            if record.about["tflaunch"] != __version__
            else "its record has no events"
        )
    if detached:
        said.append(
            "it was detached: what happened after that is not on this machine; for how it stands:"
            f" tflaunch status {record.run_id}"
        )
    if unasked:
        said.append(f"what its tasks used is with its hosts, which do not tell it now: {unasked}")
    elif sampled is None or not sampled.bins:
        said.append("no samples of what its tasks used: there are some once they have run for ten seconds")
    return said


def samples_data(sampled: Sampled) -> SamplesData:
    """The samples as a document has them."""
    numbers = {task: number for number, task in enumerate(sampled.tasks)}
    bins: list[list[Any]] = [
        [number, *([numbers[task], *map(_whole, row)] for task, row in rows.items())]
        for number, rows in sampled.bins
    ]
    columns = {column.name: column.says for column in COLUMNS}
    return {
        "began": sampled.began,
        "every_s": sampled.every_s,
        "columns": columns,
        "tasks": list(sampled.tasks),
        "bins": bins,
    }


def _whole(value: float | None) -> float | None:
    """The same number without `.0`, by which a page of many tasks would be much larger."""
    return int(value) if value is not None and value == int(value) else value


def _tasks(
    plan: ClusterPlan,
    sampled: Sampled | None,
    outcome: Mapping[str, Any] | None,
    events: Iterable[Mapping[str, Any]],
) -> list[ReportedTaskData]:
    ends = {str(end["task"]): end for end in events_of(events, "exited")}
    ends |= {str(end["task"]): end for end in (outcome or {}).get("exits", ())}
    attempts = {event["task"]: event["attempt"] for event in events_of(events, "started")}
    by_task = values_of(sampled) if sampled is not None else {}
    found: list[ReportedTaskData] = []
    for task in plan.tasks:
        name, end = str(task.id), ends.get(str(task.id))
        values = by_task.get(name, {})
        fields = ("code", "signal", "seconds", "stopped", "attempt")
        found.append(
            {
                "task": name,
                "host": task.host,
                "gpus": list(task.gpu_labels),
                "means": {name: statistics.fmean(values[name]) for name in _MEANS if values.get(name)},
                "steps_s": steps_s(sampled, name) if sampled is not None else None,
                "step": values["step"][-1] if values.get("step") else None,
                "loss": values["loss"][-1] if values.get("loss") else None,
                "restarts": max(attempts.get(name, 0), (end or {}).get("attempt", 0)),
                "end": {field: end.get(field) for field in fields} if end else None,
            }
        )
    return found


def events_of(events: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """The events of that kind."""
    return [event for event in events if event["event"] == kind]


def values_of(sampled: Sampled) -> dict[str, dict[str, list[float]]]:
    """Task -> column -> its values, as far as they are known."""
    found: dict[str, dict[str, list[float]]] = {task: {} for task in sampled.tasks}
    for _, rows in sampled.bins:
        for task, row in rows.items():
            for name, value in zip(NAMES, row, strict=False):
                if value is not None:
                    found[task].setdefault(name, []).append(value)
    return found


def steps_s(sampled: Sampled, task: str) -> float | None:
    """Steps in a second, by those that the task's log names; None where there are too few.

    A task that was started again begins with a lower one: the time until then does not count.
    """
    steps = list(sampled.series(task, "step"))
    made = passed_s = 0.0
    for (begun, first), (ended, last) in itertools.pairwise(steps):
        if last >= first:
            made, passed_s = made + last - first, passed_s + ended - begun
    return made / passed_s if made and passed_s >= LEAST_S else None


def compared(first: ReportedRunData, second: ReportedRunData) -> list[ComparedData]:
    """Numbers of two runs side by side; what neither has is left out."""
    rows = (
        ("tasks", lambda run: float(len(run["tasks"]))),
        ("hosts", lambda run: float(len({task["host"] for task in run["tasks"]}))),
        ("seconds, from the command to the end", lambda run: run["seconds"]),
        ("seconds until the tasks ran", _start_s),
        ("steps in a second of a task, mean", lambda run: _mean(task["steps_s"] for task in run["tasks"])),
        *((f"{column.name}: {column.says}; mean of the tasks", _mean_of(column.name)) for column in COLUMNS),
    )
    found: list[ComparedData] = []
    for what, number in rows:
        values = [number(first), number(second)]
        if values != [None, None]:
            one, two = values
            ratio = two / one if one and two is not None else None
            found.append({"what": what, "values": values, "ratio": ratio})
    return found


def _mean_of(column: str) -> Any:
    return lambda run: _mean(task["means"].get(column) for task in run["tasks"])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _start_s(run: ReportedRunData) -> float | None:
    at = next((moment["at"] for moment in run["timeline"] if moment["kind"] == "started"), None)
    return None if at is None else at - run["began"]
