"""What a program reads of the logs of its run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tflaunch.api.running import Run
from tflaunch.hosts import Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.job import TaskId
from tflaunch.runs.record import Record


def test_a_log_has_what_all_attempts_of_the_task_have_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFLAUNCH_STATE", str(tmp_path / "runs"))
    plan, tasks = ClusterPlan("lr-abcdef", ()), (TaskId("worker", 0), TaskId("worker", 1))
    run: Any = object.__new__(Run)
    run.id = plan.run_id
    run._prepared = SimpleNamespace(
        reporter=SimpleNamespace(plans=[SimpleNamespace(tasks=[SimpleNamespace(id=task) for task in tasks])])
    )
    made = Record.create(plan.run_id, plan=plan, hostfile=Hostfile("here", ()), command=())
    with contextlib.closing(made) as record:
        for attempt in range(12):
            record.logs.append(tasks[0], 0, b"attempt %d\n" % attempt, attempt)
        assert run.log("worker/0").splitlines() == [f"attempt {attempt}" for attempt in range(12)]
        assert run.log("worker/1") == ""
