"""Directories on a file server that is away, and names of a service that is: the agent says so, and goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import (
    Channel,
    Host,
    environment,
    failure,
    marked,
    running,
    shell,
    swept,
    task,
)
from tests.support.dead_files import dead_files, missing
from tests.support.hanging_names import hanging_names
from tests.support.patience import until
from tflaunch.agent.host import foreign, processes


@pytest.mark.parametrize("verb", ["start", "visit"])
def test_a_run_directory_that_does_not_answer(tmp_path: Path, dead: Path, verb: str) -> None:
    channel = Channel(verb, "run-abcdef", "host1", dead / "runs", env=environment(tmp_path))
    try:
        assert failure(channel) == (
            "`run_dir` does not answer there: nothing came for 5 s",
            "is its file server up? `df` there hangs, too; or set `run_dir:` in the hostfile to a local disk",
        )
        until(lambda: channel.started_ended, "what was started to end")
    finally:
        channel.close()


def test_a_place_for_the_agents_of_slots_that_does_not_answer(tmp_path: Path, dead: Path) -> None:
    env = environment(tmp_path, TFLAUNCH_SLOT_CODE=str(dead / "kept"))
    channel = Channel("visit", "run-abcdef", "host1", tmp_path / "runs", env=env)
    try:
        assert channel.wait("hello")["pid"]
    finally:
        channel.close()
        channel.wait_end()


@pytest.mark.parametrize("what", ["workdir", "python"])
def test_what_a_task_needs_does_not_answer(host: Host, dead: Path, what: str) -> None:
    host.env["TFLAUNCH_FOREIGN_S"] = "1"
    channel = host.start()
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    one = shell("exit 0", cwd=str(dead)) if what == "workdir" else task(f"{dead}/venv/bin/python")
    channel.send("stage", tasks=[one], code=None, ports=[], gpus=[], door=False, attempt=0)
    reason, hint = failure(channel)
    assert (
        reason == f"{dead if what == 'workdir' else dead / 'venv/bin'} does not answer: nothing came for 1 s"
    )
    assert f"set `{what}:` in the hostfile to another place" in hint
    assert channel.ask("clock", sent=1.0, answer="clock")["sent"] == 1.0
    assert swept(channel)["survivors"] == []
    until(lambda: not marked(host.run), "the run's end")


def test_an_agent_waits_no_longer_than_its_lease_allows(host: Host, dead: Path) -> None:
    channel = host.start()
    channel.send("renew", lease_s=2.0)
    channel.send(
        "stage", tasks=[shell("exit 0", cwd=str(dead))], code=None, ports=[], gpus=[], door=False, attempt=0
    )
    reason, _ = failure(channel)
    assert reason == f"{dead} does not answer: nothing came for 0.5 s"
    assert channel.ask("clock", sent=1.0, answer="clock")["sent"] == 1.0


def test_a_working_directory_that_stops_to_answer_during_the_run(host: Host, tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    place = tmp_path / "work"
    place.mkdir()
    host.env["TFLAUNCH_FOREIGN_S"] = "1"
    channel = host.start()
    running(
        channel,
        shell("touch made; sleep 600", cwd=str(place)),
        shell("sleep 600", "worker/1", cwd=str(place)),
    )
    until((place / "made").exists, "its file")
    assert channel.ask("find", patterns=[["^", True]], roots=[""], answer="found")["files"][0][0] == "made"
    with dead_files(place):
        away = f"{place} does not answer: nothing came for 1 s"
        assert _read(channel) == away
        channel.send("find", patterns=[["^", True]], roots=[""])
        assert failure(channel)[0] == away
        assert channel.ask("clock", sent=1.0, answer="clock")["sent"] == 1.0
        assert swept(channel)["survivors"] == []


@pytest.mark.parametrize("where", ["work", "work/data"])
def test_what_a_program_has_mounted_where_it_works_stops_to_answer(host: Host, where: str) -> None:
    if why := missing():
        pytest.skip(why)
    host.env["TFLAUNCH_FOREIGN_S"] = "1"
    channel = host.start()
    running(channel, shell("mkdir -p data; sleep 600"))
    until((host.directory / "work/data").exists, "its directory")
    assert channel.ask("find", patterns=[["^", True]], roots=[""], answer="found")["there"] == ["data"]
    with dead_files(host.directory / where):
        channel.send("find", patterns=[["^", True]], roots=[""])
        assert failure(channel)[0] == f"{host.directory}/work does not answer: nothing came for 1 s"
        assert channel.ask("clock", sent=1.0, answer="clock")["sent"] == 1.0
        assert swept(channel)["survivors"] == []


def _read(channel: Channel) -> str:
    return str(channel.ask("read", path="made", offset=0, size=9, digest=False, answer="piece")["why"])


def test_a_check_of_disks_that_do_not_answer(host: Host, dead: Path, tmp_path: Path) -> None:
    host.env["TFLAUNCH_FOREIGN_S"] = "1"
    channel = host.start()
    checked = channel.ask("check", directories=[str(dead), str(tmp_path)], answer="checked")
    paths = [each["path"] for each in checked["disks"]]
    assert str(tmp_path) in paths
    assert str(dead) not in paths
    assert swept(channel)["survivors"] == []


def test_what_waits_for_ever_is_left_and_ends_with_its_wait(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    place = tmp_path / "dead"
    place.mkdir()

    def asking() -> list[processes.Process]:
        return [
            each
            for each in processes.every().values()
            if each.name == foreign.ASKS_OTHERS and each.parent == mine
        ]

    mine = os.getpid()
    with dead_files(place):
        with pytest.raises(foreign.Late):
            foreign.in_time(lambda: Path(place / "x").exists(), 0.3)
        (left,) = until(asking, "the process that asks")
        until(lambda: (now := processes.read(left.pid)) is not None and processes.left_behind(now), "state D")
    until(lambda: not asking(), "its end")


def test_a_process_that_keeps_its_reader_waiting_does_not_keep_the_others(
    dead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of it waits for a file server and holds the lock of its memory, whatever its first thread does."""
    contents = processes.contents
    asked = dead.parent / "asked"

    def shut(path: str) -> bytes:
        if path == f"/proc/{first.pid}/environ":
            with asked.open("a") as file:
                file.write("x")
            os.statvfs(dead)
        return contents(path)

    monkeypatch.setattr(processes, "contents", shut)
    monkeypatch.setattr(foreign, "LIMIT_S", 0.5)
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    env = {**os.environ, processes.RUN_MARK: "run-abcdef"}
    with subprocess.Popen(argv, env=env) as first, subprocess.Popen(argv, env=env) as second:
        try:
            until(lambda: processes.environment(second.pid) != [], "its environment")
            for _ in range(2):
                there = [each for pid in (first.pid, second.pid) if (each := processes.read(pid)) is not None]
                assert [each.pid for each in processes.marked(there, "run-abcdef")] == [second.pid]
            assert asked.read_text() == "x"
        finally:
            first.kill()
            second.kill()


NAMES = """\
import os, sys
from tflaunch.agent.host.foreign import user_name
from tflaunch.agent.gpus import lease_files
print(user_name(0), user_name(%d), lease_files.owner(os.stat(sys.argv[1])))
"""


def test_a_name_service_that_does_not_answer(tmp_path: Path) -> None:
    theirs = tmp_path / "lease"
    theirs.touch()
    with hanging_names(tmp_path) as (inside, somebody):
        os.chown(theirs, somebody.uid, -1)
        argv = [*inside, sys.executable, "-c", NAMES % somebody.uid, str(theirs)]
        done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["root", *[str(somebody.uid)] * 2, "(uid", f"{somebody.uid})"]
