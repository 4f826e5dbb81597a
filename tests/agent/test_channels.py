"""Logs, connections that come and go, and visits: the agent as it is shipped, over pipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import (
    ESCAPE,
    Channel,
    Host,
    descriptors,
    failure,
    gone,
    marked,
    running,
    shell,
    staged,
    swept,
    task,
)
from tests.support.patience import until
from tflaunch.agent.host import processes
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.protocol import wire

WINDOW = 256 * 1024


# ---- logs


def test_never_more_than_the_window_is_under_way_and_requests_are_heard(host: Host) -> None:
    channel = host.start()
    size = 2_000_000
    running(channel, shell(f"head -c {size} /dev/zero | tr '\\0' x; sleep 600"), window=WINDOW)
    log = host.directory / "logs" / "worker-0.log"
    until(lambda: log.stat().st_size == size, "the task to write without being read")
    while len(channel.log.get("worker/0", b"")) < WINDOW:
        channel.wait("log")
    assert len(channel.log["worker/0"]) == WINDOW
    # Nobody pays for more: no log byte comes, but what is asked is answered.
    assert channel.ask("probe", lease=False, ports=None, count=1, answer="facts")
    channel.send("stop", tasks=["worker/0"], grace_s=5.0)
    exited = channel.wait("exit")
    assert (exited["signal"], exited["stopped"]) == (signal.SIGTERM, True)
    assert exited.body == b"x" * 65536
    assert swept(channel)["logs"] == {"worker/0": [0, size]}
    assert len(channel.log["worker/0"]) == WINDOW


def test_a_flood_arrives_complete_and_in_order(host: Host) -> None:
    channel = host.start()
    lines = 200_000  # of 100 bytes, from each of two
    script = f"i = 0\nwhile i < {lines}:\n    print(f'{{i:099d}}')\n    i += 1"
    tasks = [task(sys.executable, "-c", script, id=f"worker/{index}") for index in range(2)]
    running(channel, *tasks, window=1 << 20)
    expected = b"".join(b"%099d\n" % number for number in range(lines))
    ended = 0
    while sum(map(len, channel.log.values())) < 2 * len(expected):
        said = channel.wait("log", "exit")
        if said.type == "log":
            channel.send("credit", bytes=len(said.body))
        else:
            ended += 1
    assert channel.log["worker/0"] == channel.log["worker/1"] == expected
    channel.gather("exit", 2 - ended)
    assert swept(channel)["logs"] == {each["id"]: [0, len(expected)] for each in tasks}


def test_a_log_is_followed_from_any_offset(host: Host) -> None:
    channel = host.start()
    staged(channel, shell("printf 0123456789; exit 0"))
    channel.send("release")
    channel.wait("exit")
    channel.send("watch", after=2, logs={"worker/0": [0, 6]}, window=3, client="test")
    for offset, body in ((6, b"678"), (9, b"9")):
        message = channel.next_raw()
        while (message and message.type == "through") or message["offset"] == 0:  # of the first time
            message = channel.next_raw()
        assert message
        assert (message["offset"], message.body) == (offset, body)
        channel.send("credit", bytes=1)


def test_what_comes_right_behind_an_attach_is_heard_by_the_agent(host: Host) -> None:
    channel = host.start()
    running(channel, shell("sleep 600"))
    second = host.open("visit", run="", host="")
    watch = wire.encode("watch", after=0, logs={}, window=1, client="", tasks=["worker/0"] * 10_000)
    # The visit reads it in one piece with the attach, and not the whole of it.
    second.write(wire.encode("attach", run=host.run, host="h1") + watch)
    assert second.wait("started")["task"] == "worker/0"
    swept(channel)


def test_a_channel_that_is_none_ends_nothing_but_itself(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())["pid"]
    before = descriptors(agent)
    with Path(os.devnull).open("rb+") as null:  # it cannot be waited for
        for passed in ([], [null.fileno()], [null.fileno()] * 2):
            connection = RunDirectory(str(host.parent), host.run, "h1").connect()
            assert connection is not None
            with socket.socket(fileno=connection.detach()) as caller:
                socket.send_fds(caller, [wire.encode("channel")], passed)
                while caller.recv(4096):
                    pass
    until(lambda: descriptors(agent) == before, "the agent to let go of what has come")
    assert channel.ask("clock", sent=0, answer="clock")
    swept(channel)


# ---- connections that come and go


def test_tasks_outlive_the_channel_and_another_goes_on_with_the_log(host: Host) -> None:
    first = host.start()
    more = host.work_dir / "more"
    running(first, shell(f"echo one; while ! test -e {more}; do sleep 0.02; done; echo two; sleep 600"))
    assert first.read_log("worker/0", lambda log: b"one" in log) == b"one\n"
    first.kill()
    second = host.attach(logs={"worker/0": [0, 4]}, window=100)
    second.log["worker/0"] = b"one\n"
    more.touch()
    assert second.read_log("worker/0", lambda log: b"two" in log) == b"one\ntwo\n"
    assert swept(second)["survivors"] == []


def test_a_channel_that_ends_before_the_release_ends_the_run(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    staged(channel, shell("sleep 600"))
    channel.kill()
    gone(agent["pid"], agent["guard"])
    assert marked(host.run) == []


def test_an_abandoned_run_ends_with_its_lease(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, shell("sleep 600"))
    channel.send("renew", lease_s=1.0)
    channel.ask("probe", lease=False, ports=None, count=1, answer="facts")  # so the lease has been heard
    channel.kill()
    assert processes.alive(agent["pid"], agent["start"]), "not before"
    gone(agent["pid"], agent["guard"])
    assert marked(host.run) == []


def test_a_launcher_that_reads_nothing_holds_up_no_task_and_no_lease(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    size = 30_000_000
    running(channel, shell(f"head -c {size} /dev/zero; sleep 600"), window=1 << 30)
    log = host.directory / "logs" / "worker-0.log"
    until(lambda: log.stat().st_size == size, "the task to write all of it though nobody reads")
    channel.send("renew", lease_s=0.2)  # heard although the other way is full
    gone(agent["pid"], agent["guard"])
    assert marked(host.run) == []
    # What sshd has started is the last process of it on the host: it must not wait for ever either.
    until(lambda: channel.started_ended, "it to give up")


def test_a_run_of_another_version_is_not_attached_to_but_ended(host: Host) -> None:
    first = host.start()
    running(first, shell("sleep 600"))
    path = host.directory / "agent.json"
    agent = json.loads(path.read_text())
    path.write_text(json.dumps({**agent, "wire": wire.PROTOCOL + 1}))
    visit = host.open("visit", run="", host="")
    said = visit.ask("attach", run=host.run, host="h1", answer="failed")
    assert f"whose agents speak protocol {wire.PROTOCOL + 1}" in said["reason"]
    assert "`tflaunch stop`" in said["hint"]
    assert visit.ask("finish", run=host.run, grace_s=5.0, answer="finished")["survivors"] == []
    gone(agent["pid"], agent["guard"])


def test_others_are_told_who_ended_the_run(host: Host) -> None:
    first = host.start()
    running(first, shell("sleep 600"))
    second = host.attach()
    assert second.ask("end", grace_s=5.0, answer="swept")["survivors"] == []
    expired = first.wait("expired")
    assert (expired["asked"], expired["reason"]) == (True, "tflaunch stop ends the run")
    assert first.wait("exit")["stopped"] is True
    assert first.wait("swept")["survivors"] == []
    first.send("bye")
    assert first.next() is None


def test_a_second_agent_of_the_same_run_is_refused(host: Host) -> None:
    host.start()
    reason, hint = failure(host.open("start"))
    assert reason == f"an agent of run {host.run} lives on this host already"
    assert hint == f"tflaunch stop {host.run}"


def test_an_agent_that_leaves_late_takes_nothing_from_the_next_one(host: Host) -> None:
    first = host.start()
    staged(first, shell("sleep 600"))
    record = json.loads((host.directory / "agent.json").read_text())
    first.ask("end", grace_s=0.0, answer="swept")
    host.start()  # nothing was started, so nothing is there of the first one, which has still to hear `bye`
    first.send("bye")
    gone(record["pid"], record["guard"])
    assert (host.directory / "agent.sock").exists()
    assert json.loads((host.directory / "guard.json").read_text()) == {}


def test_there_is_nothing_to_attach_to(host: Host) -> None:
    channel = host.open("visit", run="", host="")
    channel.send("attach", run=host.run, host="h1")
    assert failure(channel)[0] == f"this host knows no run {host.run}"


def test_a_request_that_is_nonsense_does_not_end_the_tasks(host: Host) -> None:
    channel = host.start()
    agent = json.loads((host.directory / "agent.json").read_text())
    running(channel, shell("touch here; exec sleep 600"))
    until((host.directory / "work/here").exists, "a file that may be looked for")
    channel.send("watch", after=0, logs=["no", "mapping"], window=1, client="test")
    assert "logs is not an object: a list of 2" in failure(channel)[0]
    channel.send("find", patterns=[["(", True]], roots=[""])
    assert "the process that looked for outputs was ended" in failure(channel)[0]
    for nonsense in (b"\xff" * 8, b""):
        other = host.attach()
        if nonsense:
            other.write(nonsense)
        else:
            other.send("no-such-request")
        assert other.next() is None
        assert processes.alive(agent["pid"], agent["start"])
    log = (host.directory / "agent.log").read_text()
    assert "logs is not an object" in log
    assert "Traceback" in log and "missing )" in log, "of the process that looked for outputs"
    assert len(marked(host.run)) == 1
    assert swept(channel)["survivors"] == []


# ---- visits


def test_a_channel_that_an_agent_leaves_untaken_shows_what_the_agent_has_left(host: Host) -> None:
    launcher = host.start()
    running(launcher, shell("echo up; exec sleep 600"))
    launcher.read_log("worker/0", lambda log: b"up" in log)
    agent = json.loads((host.directory / "agent.json").read_text())
    os.kill(agent["guard"], signal.SIGSTOP)  # it would write that it has ended the tasks
    os.kill(agent["pid"], signal.SIGSTOP)
    visitor = visit(host)
    visitor.send("attach", run=host.run, host="h1")
    until(lambda: visitor.ignores(signal.SIGTERM), "the visit to have passed its channel, and to wait")
    os.kill(agent["pid"], signal.SIGKILL)
    assert visitor.wait("hello")["alive"] is False
    assert not visitor.ignores(signal.SIGTERM), "it has nothing of an agent's to pass on any more"
    visitor.send("watch", after=0, logs={}, window=1 << 20, client="")
    assert "its agent is gone" in visitor.wait("gone")["reason"]
    assert visitor.read_log("worker/0", lambda log: b"up" in log) == b"up\n"
    os.kill(agent["guard"], signal.SIGCONT)
    gone(agent["pid"], agent["guard"])


def visit(host: Host) -> Channel:
    channel = host.open("visit", run="", host="")
    channel.wait("hello")
    return channel


def test_a_visitor_sees_and_ends_a_living_run(host: Host) -> None:
    launcher = host.start()
    running(launcher, shell("trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    launcher.read_log("worker/0", lambda log: b"up" in log)
    agent = json.loads((host.directory / "agent.json").read_text())
    (host.parent / ".nfs0001").touch()
    (host.directory.parent / ".nfs0002").touch()
    visitor = visit(host)
    (run,) = [run for run in visitor.ask("list", answer="runs")["runs"] if run["run"] == host.run]
    assert [(task["task"], task["state"]) for task in run["tasks"]] == [("worker/0", "running")]
    visitor.send("finish", run=host.run, grace_s=10.0)
    finished = visitor.wait("finished")
    assert (finished["found"], finished["survivors"]) == (True, [])
    assert not processes.alive(agent["pid"], agent["start"])
    assert not processes.read(agent["guard"])
    assert b"asked" in (host.directory / "logs" / "worker-0.log").read_bytes()
    assert launcher.wait("expired")["asked"] is True
    again = visitor.ask("finish", run=host.run, grace_s=1.0, answer="finished")
    assert again.fields == {
        "known": True,
        "found": False,
        "killed": [],
        "survivors": [],
        "unsure": False,
        "unsure_why": "",
        "gpus": [],
        "restarted": 0.0,
    }
    assert host.run not in [run["run"] for run in visitor.ask("list", answer="runs")["runs"]]
    visitor.send("bye")
    assert visitor.next() is None


def test_a_visitor_ends_what_nobody_answers_for(host: Host) -> None:
    launcher = host.start()
    running(launcher, task("/bin/sh", "-c", '"$@"; sleep 600', "sh", sys.executable, "-c", ESCAPE))
    launcher.read_log("worker/0", lambda log: log.endswith(b"\n"))
    before = until(lambda: len(found := marked(host.run)) == 3 and found, "sh, what escaped, sleep")
    agent = json.loads((host.directory / "agent.json").read_text())
    os.kill(agent["guard"], signal.SIGKILL)
    os.kill(agent["pid"], signal.SIGKILL)
    gone(agent["pid"], agent["guard"])
    assert marked(host.run), "orphans of a run whose agent and guard are gone"
    visitor = visit(host)
    assert host.run in [run["run"] for run in visitor.ask("list", answer="runs")["runs"]]
    finished = visitor.ask("finish", run=host.run, grace_s=1.0, answer="finished")
    assert finished["found"] is True
    assert finished["survivors"] == []
    assert len(finished["killed"]) == len(before)
    assert not [process for process in before if processes.alive(process.pid, process.start)]


def test_a_visitor_ends_a_run_whose_agent_is_frozen(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from tflaunch.sessions import payload

    launcher = host.start()
    running(launcher, task("env", "-i", "/bin/sleep", "600"))  # no mark: only the guard knows of it
    sleeper = until(
        lambda: [p for p in processes.descendants(agent_pid(host), processes.every()) if p.name == "sleep"],
        "it",
    )
    os.kill(agent_pid(host), signal.SIGSTOP)
    contents = dict(payload._contents())
    begins = b"    try:\n        main("
    impatient = b"    import tflaunch.agent.visit as v; v.MARGIN_S = v.AGENT_S = v.BEAT_S = 0.2\n"
    assert contents["tflaunch.agent.loader"].count(begins) == 1
    contents["tflaunch.agent.loader"] = contents["tflaunch.agent.loader"].replace(begins, impatient + begins)
    monkeypatch.setattr(payload, "_contents", lambda: contents)
    payload.loader.cache_clear()
    visitor = visit(host)
    finished = visitor.ask("finish", run=host.run, grace_s=0.1, answer="finished")
    payload.loader.cache_clear()
    assert (finished["found"], finished["survivors"]) == (True, [])
    gone(sleeper[0].pid)


def agent_pid(host: Host) -> int:
    return int(json.loads((host.directory / "agent.json").read_text())["pid"])


@pytest.mark.parametrize("run", ["no-such-run", "../../etc", "code", ".."])
def test_a_run_that_is_not_there_is_not_found(host: Host, run: str) -> None:
    visitor = visit(host)
    finished = visitor.ask("finish", run=run, grace_s=0.0, answer="finished")
    assert finished.fields == {
        "known": False,
        "found": False,
        "killed": [],
        "survivors": [],
        "unsure": False,
        "unsure_why": "",
        "gpus": [],
        "restarted": 0.0,
    }
    assert not host.run_dir.exists()


def test_a_visitor_ends_a_run_whose_directory_is_gone(host: Host) -> None:
    running(host.start(), task("env", "-i", "/bin/sleep", "600"))
    agent = agent_pid(host)
    sleeper = [each for each in processes.descendants(agent, processes.every()) if each.parent == agent]
    shutil.rmtree(host.directory.parent)
    finished = visit(host).ask("finish", run=host.run, grace_s=0.0, answer="finished")
    assert (finished["found"], finished["survivors"]) == (True, [])
    gone(agent, *(each.pid for each in sleeper))


@pytest.mark.parametrize("run", ["", "h1", "start", "tflaunch-agent"])
def test_a_word_that_is_no_run_ends_none(host: Host, run: str) -> None:
    channel = host.start()
    running(channel, task("sleep", "600"))
    visitor = visit(host)
    finished = visitor.ask("finish", run=run, grace_s=0.0, answer="finished")
    assert finished.fields == {
        "known": False,
        "found": False,
        "killed": [],
        "survivors": [],
        "unsure": False,
        "unsure_why": "",
        "gpus": [],
        "restarted": 0.0,
    }
    assert len(marked(host.run)) == 1
    assert swept(channel)["survivors"] == []
