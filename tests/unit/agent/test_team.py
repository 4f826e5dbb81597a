"""Tasks that cannot start, of a team that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tflaunch.agent.host.journal import Journal
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.tasks.team import Team
from tflaunch.protocol.selector import Selector


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    place = RunDirectory(str(tmp_path), "run", "h1")
    for each in (place.logs, place.work):
        Path(each).mkdir(parents=True)
    return place


@pytest.fixture
def team(directory: RunDirectory) -> Iterator[Team]:
    selector = Selector()
    yield Team(directory, Journal(directory), selector, lambda *_, **__: None)


def test_a_trial_whose_directory_has_a_name_that_is_no_text_ends_alone(
    directory: RunDirectory, team: Team
) -> None:
    request = {"id": "trial/0", "cwd": "/nowhere/caf\udce9", "env": {}, "argv": ["python3"], "setup": []}
    team.add([request], 0)
    team.tick(time.monotonic())
    assert team.tasks["trial/0"].code == 70
    assert Path(directory.log_path("trial/0")).read_bytes() == (
        b"tflaunch: /nowhere/caf\\udce9: no such directory\n"
    )
