"""What a run did, from its record: what stands out, what happened when, what each task used and how it ended."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal

from tflaunch import __version__
from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.json_reports import (
    ComparedData,
    ReportedHostData,
    ReportedRunData,
    ReportedTaskData,
    SamplesData,
)
from tflaunch.documents.kept_events import read_events
from tflaunch.documents.reported_tasks import ReportedTask, reported
from tflaunch.documents.run_timeline import timeline
from tflaunch.documents.run_verdicts import verdicts
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import TRIAL
from tflaunch.runs.host_samples import HOST_SAMPLES, HostSamples, merged, read_host_samples
from tflaunch.runs.record import Record, hostfile_from
from tflaunch.runs.record_files import reading
from tflaunch.runs.samples import (
    COLUMNS,
    HOST_COLUMNS,
    HOST_NAMES,
    NAMES,
    SAMPLES,
    Rows,
    Sampled,
    read_samples,
)
from tflaunch.tuning.tried import TUNE

_MEANS = tuple(name for name in NAMES if name not in ("step", "loss", "quiet_s"))
LEAST_S = 10.0  # of two steps that a log names, for a rate


def report(
    records: Sequence[Record], unasked: Mapping[str, str] | None = None, only: str = ""
) -> ReportDocument:
    """The report of one run, or of two beside each other.  Raises RecordError, UsageError.

    unasked: run -> why its hosts, which may have samples of it, were not asked.  only: of that task alone.
    """
    runs = [run_report(record, (unasked or {}).get(record.run_id, ""), only) for record in records]
    return {"time": time.time(), "runs": runs, "compared": compared(*runs) if len(runs) == 2 else []}


def run_report(record: Record, unasked: str = "", only: str = "") -> ReportedRunData:
    """The report of one run; `unasked`: why its hosts were not asked for samples.  Raises RecordError.

    only: of that task alone; raises UsageError where there is none of that name.
    """
    with reading(record.path):
        return _run_report(record, unasked, only)


def _run_report(record: Record, unasked: str, only: str) -> ReportedRunData:
    """The same; raises OSError, and what data that are damaged raise."""
    outcome = record.outcome()
    kept = list(read_events(record.path))
    sampled = read_samples(record.path / SAMPLES)
    there = _of_the_hosts(record)
    if there is not None:
        sampled = merged(sampled, there)
    about, end = reported(record, kept, sampled, outcome), outcome
    if only:
        about = about.only(only)
        if not about.tasks:
            what = f"{record.run_id} has no {only}"
            raise UsageError(what, f"what it has: tflaunch report {record.run_id}")
        sampled = sampled.only(only, about.tasks[0].host) if sampled is not None else None
        end = outcome if outcome and (outcome["first_failure"] or {}).get("task") == only else None
    left = _was_left(record, kept)
    status, kind = _status(record, outcome, left), _kind(record, about.programs)
    found: ReportedRunData = {
        "run_id": record.run_id,
        "status": status,
        "exit_code": outcome["exit_code"] if outcome else None,
        "began": min([record.started, *(event["time"] for event in kept[:1])]),
        "seconds": outcome["seconds"] if outcome else None,
        "verdicts": [],
        "timeline": timeline(about.events, sampled),
        "tasks": _tasks(about.tasks, sampled),
        "hosts": _hosts(about.tasks, sampled) if sampled is not None else [],
        "command": list(record.command),
        "directory": str(record.about.get("cwd", "")),
        "programs": dict(about.programs),
        "code": record.code,
        "versions": {"tflaunch": str(record.about["tflaunch"])},
        "samples": samples_data(sampled) if sampled is not None else None,
        "missing": _missing(
            record, status, kind, left=left, told=bool(kept), sampled=sampled, unasked=unasked
        ),
    }
    found["verdicts"] = [
        each
        for each in verdicts(found, about.events, sampled, end)
        if not (only and each["kind"] == "slow start")  # of which one task says nothing
    ]
    return found


def _of_the_hosts(record: Record) -> HostSamples | None:
    """What its hosts have kept of its tasks, and of themselves: one may have been a spare when it began."""
    path = record.path / HOST_SAMPLES
    if not path.exists():
        return None
    hosts = {host.name for host in hostfile_from(record).hosts}
    return read_host_samples(path, {str(task.id) for task in record.plan.tasks}, hosts)


def _was_left(record: Record, kept: Sequence[Mapping[str, Any]]) -> bool:
    """Whether its launcher has left it to its hosts.

    `run --detach` notes from the start that it will; that it has is an event.  Where none is kept, the note must do.
    """
    detached = any(event["event"] == "detached" for event in kept)
    return detached or (not kept and bool(record.about.get("detached")))


def _status(record: Record, outcome: Mapping[str, Any] | None, left: bool) -> Any:
    if outcome:
        return outcome["status"]
    if record.running():
        return "running"
    return "detached" if left else "unknown"


def _kind(record: Record, programs: Container[str]) -> Literal["run", "sweep", "tune"]:
    """What it is a record of; the trials of a sweep are in it, the layouts of `tune` are runs of their own."""
    if TRIAL in programs:
        return "sweep"
    return "tune" if (record.path / TUNE).exists() else "run"


def _missing(
    record: Record,
    status: str,
    kind: Literal["run", "sweep", "tune"],
    *,
    left: bool,
    told: bool,
    sampled: Sampled | None,
    unasked: str,
) -> list[str]:
    said = []
    if not told and kind == "run":
        said.append(
            f"its record has no events: tflaunch {record.about['tflaunch']} started it, this is {__version__}"
            if record.about["tflaunch"] != __version__
            else "its record has no events"
        )
    if status == "detached":
        said.append(
            "it was detached: what happened after that is not on this machine; for how it stands:"
            f" tflaunch status {record.run_id}"
        )
    elif left and status != "running":
        said.append("it was detached: what happened between that and its end is not on this machine")
    elif status == "unknown":
        gone = "its launcher has gone without a word (killed, or this machine was restarted)"
        how = f"what happened after that is not on this machine; for how it stands: tflaunch status {record.run_id}"
        again = f"this goes on with it: tflaunch {kind} --resume {record.run_id}"
        said.append(f"{gone}: {how}" if kind == "run" else f"{gone}; {again}")
    if unasked:
        said.append(f"what its tasks used is with its hosts, which do not tell it now: {unasked}")
    elif kind == "tune":
        said.append("each layout is a run of its own, with a report of its own: tflaunch ps -a lists them")
    elif sampled is None or not sampled.bins:
        said.append("no samples of what its tasks used: there are some once they have run for ten seconds")
    return said


def samples_data(sampled: Sampled) -> SamplesData:
    """The samples as a document has them."""
    return {
        "began": sampled.began,
        "every_s": sampled.every_s,
        "columns": {column.name: column.says for column in COLUMNS},
        "tasks": list(sampled.tasks),
        "bins": _bins(sampled.tasks, sampled.bins),
        "host_columns": {column.name: column.says for column in HOST_COLUMNS},
        "hosts": list(sampled.hosts),
        "host_bins": _bins(sampled.hosts, sampled.host_bins),
    }


def _bins(names: Iterable[str], bins: Iterable[tuple[int, Rows]]) -> list[list[Any]]:
    numbers = {name: number for number, name in enumerate(names)}
    return [
        [number, *([numbers[name], *map(_whole, row)] for name, row in rows.items())] for number, rows in bins
    ]


def _whole(value: float | None) -> float | None:
    """The same number without `.0`, by which a page of many tasks would be much larger."""
    return int(value) if value is not None and value == int(value) else value


def _tasks(tasks: Iterable[ReportedTask], sampled: Sampled | None) -> list[ReportedTaskData]:
    by_task = values_of(sampled) if sampled is not None else {}
    steps = sampled.every_series("step") if sampled is not None else {}
    found: list[ReportedTaskData] = []
    for task in tasks:
        values, end = by_task.get(task.name, {}), task.end
        fields = ("code", "signal", "seconds", "stopped", "attempt")
        found.append(
            {
                "task": task.name,
                "host": task.host,
                "gpus": list(task.gpus),
                "means": {name: statistics.fmean(values[name]) for name in _MEANS if values.get(name)},
                "steps_s": steps_s(steps.get(task.name, ())),
                "step": values["step"][-1] if values.get("step") else None,
                "loss": values["loss"][-1] if values.get("loss") else None,
                "restarts": task.attempts - 1,
                "end": {field: end.get(field) for field in fields} if end else None,
                "trial": task.trial,
            }
        )
    return found


def _hosts(tasks: Iterable[ReportedTask], sampled: Sampled) -> list[ReportedHostData]:
    """In the order of their tasks."""
    places = {host: number for number, host in enumerate(dict.fromkeys(task.host for task in tasks))}
    ordered = sorted(sampled.hosts, key=lambda host: places.get(host, len(places)))
    values = _values_of(ordered, sampled.host_bins, HOST_NAMES)
    return [
        {
            "host": host,
            "means": {name: statistics.fmean(each) for name, each in of_it.items()},
            "most": {name: max(each) for name, each in of_it.items()},
        }
        for host, of_it in values.items()
        if of_it
    ]


def values_of(sampled: Sampled) -> dict[str, dict[str, list[float]]]:
    """Task -> column -> its values, as far as they are known."""
    return _values_of(sampled.tasks, sampled.bins, NAMES)


def _values_of(
    subjects: Iterable[str], bins: Iterable[tuple[int, Rows]], names: Sequence[str]
) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {subject: {} for subject in subjects}
    for _, rows in bins:
        for subject, row in rows.items():
            for name, value in zip(names, row, strict=False):
                if value is not None:
                    found[subject].setdefault(name, []).append(value)
    return found


def steps_s(steps: Sequence[tuple[float, float]]) -> float | None:
    """Steps in a second, by those that a task's log names (seconds, step); None where there are too few.

    A task that was started again begins with a lower one: the time until then does not count.
    """
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
        *(
            (f"{column.name}: {column.says}; mean of the tasks", _mean_of("tasks", column.name))
            for column in COLUMNS
        ),
        *(
            (f"{column.name}: {column.says}; mean of the hosts", _mean_of("hosts", column.name))
            for column in HOST_COLUMNS
        ),
    )
    found: list[ComparedData] = []
    for what, number in rows:
        values = [number(first), number(second)]
        if values != [None, None]:
            one, two = values
            ratio = two / one if one and two is not None else None
            found.append({"what": what, "values": values, "ratio": ratio})
    return found


def _mean_of(subjects: str, column: str) -> Any:
    return lambda run: _mean(each["means"].get(column) for each in run[subjects])


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _start_s(run: ReportedRunData) -> float | None:
    at = next((moment["at"] for moment in run["timeline"] if moment["kind"] == "started"), None)
    return None if at is None else at - run["began"]
