"""The record of a run that was never started: what a report reads of it, as a test wants it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tflaunch.documents.kept_events import EVENTS_KEPT
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome
from tflaunch.runs.record import Record
from tflaunch.runs.samples import NAMES, SAMPLES, SampleFile

BEGAN = 1_764_500_000.0
BINS = 12


def recorded(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_id: str,
    tasks: Mapping[str, str],
    *,
    events: Sequence[Mapping[str, Any]] = (),
    outcome: Outcome | None = None,
    detached: bool = False,
    spares: Sequence[str] = (),
) -> Record:
    """A record with these tasks, each on its host; its launcher is gone.  `time` of events: seconds after BEGAN."""
    monkeypatch.setenv("TFLAUNCH_STATE", str(root))
    plans = tuple(
        TaskPlan(TaskId.parse(task), host, "10.0.0.1", 2222, (), (), ("python3", "t.py"), {}, (), None)
        for task, host in tasks.items()
    )
    hostfile = Hostfile("hosts.yaml", tuple(Host(host) for host in dict.fromkeys([*tasks.values(), *spares])))
    record = Record.create(
        run_id,
        plan=ClusterPlan(run_id, plans),
        hostfile=hostfile,
        command=("tflaunch", "run", "hosts.yaml", "t.py"),
        detached=detached,
        code="0123abcd",
    )
    lines = [json.dumps({**event, "time": BEGAN + event["time"]}) for event in events]
    (record.path / EVENTS_KEPT).write_text("".join(line + "\n" for line in lines))
    if outcome is not None:
        record.finish(outcome)
    record.close()
    return Record.open(run_id)


def sampled(
    record: Record,
    hosts: Mapping[str, Sequence[Sequence[float | None]]] | None = None,
    **columns: Mapping[str, Sequence[float | None]],
) -> None:
    """Write samples into it: column -> task -> its values, one to a bin; host -> its rows, one to a bin."""
    tasks = list(dict.fromkeys(task for values in columns.values() for task in values))
    file = SampleFile(record.path / SAMPLES, tasks, BEGAN + 2)
    length = max(len(values) for of_tasks in columns.values() for values in of_tasks.values())
    for number in range(length):
        rows = {
            task: [
                values[number] if number < len(values := columns.get(name, {}).get(task, ())) else None
                for name in NAMES
            ]
            for task in tasks
        }
        of_hosts = {host: of_it[number] for host, of_it in (hosts or {}).items() if number < len(of_it)}
        known = {task: row for task, row in rows.items() if any(each is not None for each in row)}
        file.add(number, known, of_hosts)


def started(tasks: Mapping[str, str], time: float = 2.0) -> list[dict[str, Any]]:
    """The events of tasks that run."""
    return [
        {"event": "started", "time": time, "task": task, "host": host, "pid": os.getpid(), "attempt": 0}
        for task, host in tasks.items()
    ]
