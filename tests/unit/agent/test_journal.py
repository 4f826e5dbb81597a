"""The journal of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.agent.host import journal
from tflaunch.agent.host.rundir import RunDirectory


@pytest.mark.parametrize("last_plan", [False, True])
def test_the_journal_of_a_run_that_was_planned_anew(tmp_path: Path, last_plan: bool) -> None:
    directory = RunDirectory(str(tmp_path), "run-1", "gpu01")
    directory.create()
    for types in (("started", "swept"), ("started",)):
        agent = journal.Journal(directory)
        for type in types:
            agent.add(type)
    read = journal.read(directory, last_plan)
    assert read.has("swept") is not last_plan
    assert [event["n"] for event in read.events] == ([1] if last_plan else [1, 2, 3])
