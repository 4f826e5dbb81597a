"""What agent and guard look into at the end of a run: no process that was there before them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import until
from tflaunch.agent.host import foreign, processes
from tflaunch.agent.host.guard import leftovers
from tflaunch.agent.host.rundir import RunDirectory


@contextmanager
def sleeper(**marks: str) -> Iterator[int]:
    """The pid of a process that has these variables, and waits."""
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **marks}) as program:
        until(lambda: processes.command(program.pid)[:1] == [b"sleep"], "it has its own environment")
        try:
            yield program.pid
        finally:
            program.kill()


def start_of(pid: int) -> int:
    found = processes.read(pid)
    assert found is not None
    return found.start


def test_what_is_older_than_the_first_agent_of_a_run_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[processes.Process] = []
    each_in_time = foreign.each_in_time

    def recorded(things: list[Any], work: Any) -> list[Any]:
        looked.extend(things)
        return each_in_time(things, work)

    monkeypatch.setattr(foreign, "each_in_time", recorded)
    directory = RunDirectory(str(tmp_path / "runs"), "run-abcdef", "h1")
    directory.create()
    assert directory.first
    marks = {processes.RUN_MARK: directory.run, processes.HOST_MARK: directory.host}
    with ExitStack() as alive:
        before = alive.enter_context(sleeper(**marks))
        agents: list[int] = []

        def is_newer() -> bool:  # by the kernel's clock, which ticks a hundred times a second
            agents.append(alive.enter_context(sleeper()))
            return start_of(agents[-1]) > start_of(before)

        until(is_newer, "an agent that is newer")
        after, kept = alive.enter_context(sleeper(**marks)), alive.enter_context(sleeper(**marks))
        assert [each.pid for each in leftovers(directory, agents[-1], [kept])] == [after]
        assert min(each.start for each in looked) >= start_of(agents[-1])
        assert kept not in {each.pid for each in looked}

        again = RunDirectory(directory.parent, directory.run, directory.host)
        again.create()
        assert not again.first, "an earlier agent of the run may have left something"
        assert {each.pid for each in leftovers(again, agents[-1], [kept])} == {before, after}


def test_where_there_is_nothing_to_look_into_no_child_process_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreign, "each_in_time", None)
    assert processes.marked([], "run-abcdef") == []
