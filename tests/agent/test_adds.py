"""The agent takes more tasks while a run goes on: over pipes, with real processes, under every Python."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Host, marked, shell, staged
from tflaunch.agent.host.journal import Journal
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.tasks.team import Team
from tflaunch.protocol.selector import Selector

# Leaves a process behind that no group or parent leads to; says where it is, and whether it has been there before.
LEAVES = "pwd; ls; touch mine; setsid sh -c \"trap '' TERM HUP INT; sleep 600\" & sleep 0.2; exit $CODE"


def trial(number: int, code: int) -> dict[str, object]:
    return shell(LEAVES, id=f"trial/{number}", env={"CODE": str(code)}, port=None)


def test_tasks_that_are_added_start_at_once_and_nothing_of_them_is_left_at_their_end(any_host: Host) -> None:
    channel = any_host.start()
    staged(channel)
    (any_host.directory / "work" / "data.txt").touch()
    for _ in range(2):  # repeated after a reconnect: nothing
        channel.send("add", tasks=[trial(0, 3)], attempt=0)
    assert channel.wait("started")["attempt"] == 0
    ended = channel.wait("exit")
    assert (ended["task"], ended["code"], ended["stopped"]) == ("trial/0", 3, False)
    assert marked(channel.run) == []
    own = any_host.directory / "own" / "trial-0"
    log = (any_host.directory / "logs" / "trial-0.log").read_bytes()
    assert log.decode().split() == [str(own), "data.txt"]
    assert ended["log_bytes"] == len(log)

    channel.send("add", tasks=[trial(1, 0)], attempt=2)  # that has been elsewhere before
    assert [channel.wait("started")["attempt"], channel.wait("exit")["code"]] == [2, 0]
    channel.send("add", tasks=[trial(0, 0)], attempt=1)
    assert [channel.wait("started")["attempt"], channel.wait("exit")["code"]] == [1, 0]
    assert (any_host.directory / "logs" / "trial-0.1.log").read_text().split() == [
        str(own),
        "data.txt",
        "mine",
    ]
    assert marked(channel.run) == []
    plan = json.loads((any_host.directory / "plan.json").read_text())
    assert [each["id"] for each in plan["tasks"]] == ["trial/0", "trial/1"]

    nowhere = {**trial(2, 0), "cwd": "/nowhere"}
    channel.send("add", tasks=[nowhere], attempt=0)
    assert channel.wait("started", "exit")["code"] == 70  # it never started
    assert channel.ask("end", grace_s=0.0, answer="swept")["logs"].keys() == {"trial/0", "trial/1", "trial/2"}


def test_the_log_of_what_could_not_start_comes_to_its_end(host: Host) -> None:
    channel = host.start()
    channel.ask("stage", tasks=[], code=None, ports=[], gpus=[], door=False, attempt=0, answer="staged")
    channel.send("watch", after=0, logs={}, window=50, client="test")
    go = host.work_dir / "go"
    wait = f"until test -e {go}; do sleep 0.05; done"
    channel.send("add", tasks=[shell("true", setup=["printf %1000s", wait, "exit 3"])], attempt=0)
    channel.read_log("worker/0", lambda log: len(log) == 100)
    go.touch()
    size = channel.wait("exit")["log_bytes"]
    assert size > 1000
    assert channel.ask("end", grace_s=0.0, answer="swept")["logs"] == {"worker/0": [0, size]}
    assert not host.directory.exists()
    channel.send("credit", bytes=size)  # only now
    assert channel.read_log("worker/0", lambda log: len(log) == size)


def test_the_agent_looks_up_between_tasks_that_take_long_to_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a working directory with as many links as the code has files: the lease may run out meanwhile."""
    directory = RunDirectory(str(tmp_path / "runs"), "run-a", "h1")
    directory.create()
    team = Team(directory, Journal(directory), Selector(), lambda *_, **__: None)
    begun: list[str] = []
    monkeypatch.setattr(team, "_stage_later", lambda task: begun.append(task.id))
    monkeypatch.setattr("tflaunch.agent.tasks.team.TURN_S", 0.0)
    team.add([trial(number, 0) for number in range(3)], 0)
    for count in range(3):
        assert (len(begun), team.restless) == (count, True)
        team.tick(time.monotonic())
    assert (begun, team.restless) == (["trial/0", "trial/1", "trial/2"], False)
    team.add([trial(3, 0)], 0)
    team.end(0.0, with_stacks=False)
    team.tick(time.monotonic())
    assert len(begun) == 3
