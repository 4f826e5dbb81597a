"""`tflaunch ps` and `tflaunch status`: what hosts tell of runs, from any machine that has their names."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent_over_pipes import Host, interpreters, running, staged, task
from tests.launcher import Launcher, until
from tests.sshd import SshNetwork
from tests.test_detach import detached, end
from tests.test_stop import endless, kill
from tflaunch.console.runs_page import run_lines, status_lines
from tflaunch.console.safe_text import Text
from tflaunch.console.screen import Screen
from tflaunch.console.table import Column, table
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.protocol.wire import Message
from tflaunch.runs.listing import Listing, listing
from tflaunch.runs.record_list import RunInfo
from tflaunch.runs.states import RunState, Share, TaskState, failures_of, pick_run

NOW = 1_800_000_000.0

# ---- what several hosts say, put together


def entry(run: str, host: str, state: str = "alive", **fields: Any) -> dict[str, Any]:
    return {
        **{
            "run": run,
            "host": host,
            "state": state,
            "directory": f"/runs/{run}/{host}",
            "agent": 7,
            "user": "ada",
        },
        **{"started": NOW - 3600, "ended": None, "about": {}, "outcome": {}, "tasks": [], "strays": []},
        **fields,
    }


def worker(index: int, state: str = "running", **fields: Any) -> dict[str, Any]:
    return {"task": f"worker/{index}", "state": state, "attempts": 1, "log": "/log", "log_bytes": 3, **fields}


def reply(
    *entries: dict[str, Any], clock: float = NOW, machine: str = "m", others: tuple[str, ...] = ()
) -> Message:
    told = {"machine": [machine, "boot"], "place": "1:2", "clock": clock, "runs": list(entries)}
    return Message("runs", {**told, "others": list(others)})


def one(found: Listing) -> RunState:
    (run,) = found.runs
    return run


def test_a_run_is_put_together_from_all_its_hosts() -> None:
    about = {"launcher": "ada@laptop", "command": ["tflaunch", "run"], "hosts": ["h1", "h2"], "tasks": {}}
    replies = {
        "h1": reply(entry("run", "h1", tasks=[worker(10), worker(2, gpus=["GPU-1", "GPU-2"])], about=about)),
        "h2": reply(
            entry("run", "h2", tasks=[worker(0, "exited", code=0)]), clock=NOW - 3600, others=("a", "b")
        ),
    }
    run = one(found := listing(replies, {}, NOW))
    assert [each.task for each in run.tasks] == ["worker/0", "worker/2", "worker/10"]
    assert (run.state, run.running, run.gpus, run.launcher) == ("running", 2, 2, "ada@laptop")
    assert run.started == NOW - 3600  # the clock of h2 is an hour slow
    assert (found.others, found.failures) == (2, {})


def test_times_are_of_this_machines_clock() -> None:
    told = worker(0, since=NOW + 7200 - 60, output=NOW + 7200 - 5)
    run = one(
        listing(
            {"h1": reply(entry("run", "h1", started=NOW + 7200 - 90, tasks=[told]), clock=NOW + 7200)},
            {},
            NOW,
        )
    )
    assert (run.started, run.tasks[0].since, run.tasks[0].output) == (NOW - 90, NOW - 60, NOW - 5)


def test_two_that_tell_of_one_directory_count_once() -> None:
    about = {"hosts": ["h1"]}
    replies = {
        "h2": reply(entry("run", "h1", "elsewhere", tasks=[worker(0, "unknown")], about=about)),
        "h1": reply(entry("run", "h1", tasks=[worker(0)], about=about)),
    }
    run = one(listing(replies, {}, NOW))
    assert [(share.host, share.state) for share in run.shares] == [("h1", "alive")]
    assert [each.state for each in run.tasks] == ["running"]


@pytest.mark.parametrize(
    ("shares", "tasks", "state"),
    [
        (["alive"], [worker(0, "staged")], "starting"),
        (["alive", "lost"], [worker(0)], "running"),
        (["strays"], [worker(0)], "running"),
        (["ended", "ended"], [worker(0, "exited", code=0)], "ended"),
        (["ended"], [worker(0, "exited", code=3), worker(1, "exited", code=-1, stopped=True)], "failed"),
        (["ended"], [worker(0, "exited", signal=15, stopped=True)], "stopped"),
        (["lost", "lost"], [worker(0, "lost")], "lost"),
        (["lost", "elsewhere"], [worker(0, "lost")], "unknown"),
    ],
)
def test_the_state_of_a_run(shares: list[str], tasks: list[dict[str, Any]], state: str) -> None:
    entries = [entry("run", f"h{number}", each) for number, each in enumerate(shares)]
    entries[0]["tasks"] = tasks
    assert one(listing({"h": reply(*entries)}, {}, NOW)).state == state


def test_hosts_that_cannot_be_asked_and_hosts_that_nobody_asked() -> None:
    about = {
        "hosts": ["h1", "h2", "h3", "h4"],
        "tasks": {"worker/0": "h1", "worker/1": "h2", "worker/2": "h3"},
    }
    down = {"h2": ConnectError("no route")}
    replies = {"h1": reply(entry("run", "h1", "lost", tasks=[worker(0, "lost")], about=about)), "h4": reply()}
    run = one(listing(replies, down, NOW))
    assert {share.host: share.state for share in run.shares} == {
        **{"h1": "lost", "h2": "unreachable", "h3": "unasked", "h4": "gone"}
    }
    assert {each.task: each.state for each in run.tasks} == {
        **{"worker/0": "lost", "worker/1": "unknown", "worker/2": "unknown"}
    }
    assert run.state == "unknown"


def test_the_last_plan_counts_and_a_host_that_it_has_left_out_does_not() -> None:
    old = {"planned": NOW - 60, "hosts": ["h1", "h2"], "tasks": {"worker/0": "h1", "worker/1": "h2"}}
    new = {"planned": NOW - 5, "hosts": ["h1", "h3"], "tasks": {"worker/0": "h1", "worker/1": "h3"}}
    replies = {
        "h2": reply(
            entry("run", "h2", "ended", tasks=[worker(1, "exited", code=-1, stopped=True)], about=old)
        ),
        "h1": reply(entry("run", "h1", tasks=[worker(0)], about=new)),
        "h3": reply(entry("run", "h3", tasks=[worker(1, attempts=2)], about=new)),
    }
    run = one(listing(replies, {}, NOW))
    assert [(each.task, each.host, each.state, each.attempts) for each in run.tasks] == [
        ("worker/0", "h1", "running", 1),
        ("worker/1", "h3", "running", 2),
    ]
    del replies["h2"]
    assert one(listing(replies, {"h2": ConnectError("no route")}, NOW)).hosts == ("h1", "h3")


def test_what_is_recorded_here_fills_in(tmp_path: Path) -> None:
    infos = [
        RunInfo("run", "ended", tmp_path, NOW - 9, ("tflaunch", "run"), ("h1",), 0),
        RunInfo("away", "running", tmp_path, NOW - 5, ("tflaunch",), ("h1", "h2")),
        RunInfo("over", "ended", tmp_path, NOW - 5, ("tflaunch",), ("h2",), 1),
        RunInfo("here", "orphaned", tmp_path, NOW - 5, ("tflaunch",), ("h1",)),
    ]
    found = listing({"h1": reply(entry("run", "h1", "ended"))}, {"h2": ConnectError("no route")}, NOW, infos)
    assert [(run.run_id, run.state) for run in found.runs] == [("away", "unknown"), ("run", "succeeded")]
    assert found.runs[1].command == ("tflaunch", "run")


def test_only_hosts_that_may_have_a_part_of_the_run_matter() -> None:
    failures = {"h2": ConnectError("no route"), "h9": ConnectError("no route")}
    told = RunState("run", (Share("h1", "alive"), Share("h2", "unreachable")), launcher="ada@laptop")
    assert list(failures_of(told, failures)) == ["h2"]
    unasked = dataclasses.replace(told, shares=(*told.shares, Share("other.name.of.h9", "unasked")))
    unknown = dataclasses.replace(told, launcher="")
    assert list(failures_of(unasked, failures)) == list(failures_of(unknown, failures)) == ["h2", "h9"]


def test_which_run_is_meant() -> None:
    alive = (Share("h1", "alive"),)
    first, second, ended = RunState("run-aa", alive), RunState("run-ab", alive), RunState("old-aa", ())
    assert pick_run("run-ab", (first, second)) == second
    assert pick_run("run-a", (first, ended)) == first
    assert pick_run(None, (first, ended)) == first
    for name, among in (
        (None, (first, second)),
        (None, (ended,)),
        ("run-a", (first, second)),
        ("x", (first,)),
    ):
        with pytest.raises(UsageError):
            pick_run(name, among)


# ---- what people see


def example(count: int = 2) -> RunState:
    tasks = [
        TaskState(
            *("ps/0", "gpu01", "running"),
            pid=4711,
            since=NOW - 7300,
            port=21873,
            log_bytes=120,
            output=NOW - 3000,
        ),
        *(
            TaskState(
                *(f"worker/{number}", f"gpu{number:02}", "running"),
                attempts=2,
                pid=123456 + number,
                since=NOW - 90,
                port=21874,
                gpus=("GPU-a", "GPU-b"),
                gpu_labels=("0", "1"),
                log_bytes=3 << 30,
                output=NOW - 2,
                before=({"attempt": 0, "code": None, "signal": 9, "signal_name": "SIGKILL", "seconds": 5.0},),
            )
            for number in range(1, count)
        ),
        TaskState(
            "worker/99", "gpu02", "exited", code=3, seconds=12.0, ended=NOW - 50, tail="\x1b[31mboom\x07\n"
        ),
        TaskState("worker/98", "gpu03", "unknown"),
        TaskState("worker/97", "gpu02", "exited", code=0, stopped=True, seconds=700.0, ended=NOW - 40),
    ]
    shares = (
        Share("gpu01", "alive", "/var/tmp/tflaunch-1000/trainer-k3f9x2/gpu01", 41),
        Share("gpu02", "strays", "/var/tmp/tflaunch-1000/trainer-k3f9x2/gpu02", 42, ("pid 9 python (S)",)),
        Share("gpu03", "unreachable"),
    )
    command = ("/home/ada/.venv/bin/tflaunch", "run", "hosts.yaml", "trainer.py", "--", "two words")
    return RunState("trainer-k3f9x2", shares, tuple(tasks), "ada", NOW - 7400, None, "ada@laptop", command)


def shown(run: RunState, columns: int | None) -> str:
    screen = Screen()
    screen.columns = columns
    lines = [*run_lines(Listing((run,), 0, {}), screen, NOW), *status_lines(run, "held by it", screen, NOW)]
    return "\n".join(line.plain for line in lines)


def test_what_is_shown_in_a_pipe_is_whole() -> None:
    page = shown(example(), None)
    assert "tflaunch run hosts.yaml trainer.py -- 'two words'" in page
    assert "trainer-k3f9x2  ● running    2/5  gpu[01-03]     2  2h ago" in " ".join(page.split("\n"))
    assert "worker/99 on gpu02 exited with code 3 after 12 s; its last lines:\n  │ boom" in page
    for word in (
        "4711",
        "21873",
        "0,1",
        "3.0 GiB",
        "2s ago",
        "● running",
        "✗ exit code 3",
        "? unknown",
        "· stopped",
    ):
        assert word in page, page
    assert "gpu02: the agent is dead, still alive: pid 9 python (S)" in page
    assert "gpu03  cannot be reached" in page
    assert "worker/1   gpu01        1  ✗ SIGKILL     5s  worker-1.log" in page
    assert page.index("exited with code 3") < page.index("worker/1 ")


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_tables_are_not_wider_than_the_terminal(columns: int) -> None:
    page = shown(example(12), columns)
    rows = [
        line
        for line in page.splitlines()
        if line.startswith(("ps/", "worker/", "task ", "run ", "restarted")) or "12/15" in line
    ]
    assert len(rows) > 14
    assert max(map(len, rows)) <= columns
    for word in ("● running", "✗ exit code 3", "gpu01", "1m"):
        assert word in page


# ---- what a host reads in its own files


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with the oldest Python that can be had."""
    host = Host(tmp_path, interpreters()[0])
    yield host
    host.close()


def told(host: Host, **asked: Any) -> dict[str, dict[str, Any]]:
    visitor = host.open("visit", run="", host="")
    answer = visitor.ask("list", **{"all": True, **asked}, answer="runs")
    return {each["run"]: each for each in answer["runs"]}


def test_a_task_from_its_gate_to_its_end(host: Host) -> None:
    channel = host.start()
    env = {"CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2"}
    sleeper = task("sleep", "600", env=env, port=2222, gpu_labels=["0", "3.1"])
    failing = task("sh", "-c", "echo before; exit 3", id="worker/1")
    staged(channel, sleeper, failing)
    ready = told(host)[host.run]
    assert [each["state"] for each in ready["tasks"]] == ["staged", "staged"]
    begun = time.time()
    channel.send("release")
    channel.wait("exit")
    entry = told(host, tail_bytes=100)[host.run]
    sleeps, failed = entry["tasks"]
    assert entry["state"] == "alive"
    assert entry["directory"] == str(host.directory)
    assert {
        name: sleeps[name] for name in ("state", "port", "gpus", "gpu_labels", "log_bytes", "output")
    } == {
        **{"state": "running", "port": 2222, "gpus": ["GPU-1", "MIG-2"], "gpu_labels": ["0", "3.1"]},
        **{"log_bytes": 0, "output": None},
    }
    assert Path(f"/proc/{sleeps['pid']}/comm").read_text() == "sleep\n"
    assert begun - 60 < sleeps["since"] < time.time() + 1
    assert (failed["state"], failed["code"], failed["stopped"], failed["tail"]) == (
        "exited",
        3,
        False,
        "before\n",
    )
    assert failed["log_bytes"] == len("before\n")
    assert begun - 1 < failed["output"] < time.time() + 1
    channel.send("end", grace_s=1.0)
    channel.wait("swept")
    ended = told(host)[host.run]
    assert (ended["state"], ended["tasks"][0]["state"], ended["tasks"][0]["stopped"]) == (
        "ended",
        "exited",
        True,
    )
    assert host.run not in told(host, all=False)


def test_a_task_that_was_restarted(host: Host) -> None:
    channel = host.start()
    running(
        channel, task("sh", "-c", "test $TFLAUNCH_ATTEMPT = 1 && exec sleep 600; setsid sleep 600 & exit 9")
    )
    channel.wait("exit")
    channel.send("restart", tasks={"worker/0": 1})
    channel.wait("started")
    (again,) = told(host)[host.run]["tasks"]
    assert (again["state"], again["attempts"], again["log"]) == (
        *("running", 2),
        f"{host.directory}/logs/worker-0.1.log",
    )
    # Not what the first attempt left behind, though that carries the same mark.
    environ = Path(f"/proc/{again['pid']}/environ").read_bytes().split(b"\0")
    assert b"TFLAUNCH_ATTEMPT=1" in environ
    assert [(end["attempt"], end["code"]) for end in again["before"]] == [(0, 9)]


def test_an_agent_that_was_killed(host: Host) -> None:
    running(host.start(), task("sleep", "600"))
    agent = json.loads((host.directory / "agent.json").read_text())
    os.kill(agent["guard"], signal.SIGKILL)
    os.kill(agent["pid"], signal.SIGKILL)
    entry = until(
        lambda: next((each for each in [told(host)[host.run]] if each["state"] == "strays"), None),
        "its strays",
    )
    assert entry["tasks"][0]["state"] == "running"
    assert "sleep" in entry["strays"][0]
    os.kill(entry["tasks"][0]["pid"], signal.SIGKILL)
    entry = until(
        lambda: next((each for each in [told(host)[host.run]] if each["state"] == "lost"), None), "its loss"
    )
    assert entry["tasks"][0]["state"] == "lost"


def test_files_are_believed_as_far_as_they_go(host: Host) -> None:
    directory = host.parent / "odd-aaaaaa" / "h1"
    (directory / "logs").mkdir(parents=True)
    assert told(host)["odd-aaaaaa"]["state"] == "lost"
    (directory / "agent.json").write_text('{"over": true, "tasks": ["worker/0"]')
    (directory / "plan.json").write_text("[]")
    (directory / "events.jsonl").write_bytes(
        b'{"type": "exit", "task": "worker/0", "code": 1}\nnot json\n[]\n{"type": "exit", "task": "work'
    )
    assert told(host)["odd-aaaaaa"]["tasks"] == []
    plan = {"tasks": [{"id": "worker/0"}, {"id": "worker/1"}, 7], "ports": [5000, 5001], "about": "nobody"}
    (directory / "plan.json").write_text(json.dumps(plan))
    (directory / "logs" / "worker-1.log").write_text("first")
    (directory / "logs" / "worker-1.1.log").write_text("second")
    (directory / "logs" / "worker-1.log.bak").write_text("not one")
    (directory / "logs" / "worker-0.log").symlink_to("/etc/passwd")
    one, two = told(host, tail_bytes=100)["odd-aaaaaa"]["tasks"]
    assert (one["state"], one["code"], one["port"], one["log_bytes"]) == ("exited", 1, 5000, 0)
    assert (two["state"], two["attempts"], two["log_bytes"]) == ("lost", 2, len("firstsecond"))
    assert two["log"] == f"{directory}/logs/worker-1.1.log"
    assert two["before"] == []
    with (directory / "events.jsonl").open("w") as events:
        for attempt, code in ((0, 1), (1, 137)):
            event = {"type": "exit", "task": "worker/1", "attempt": attempt, "code": code, "seconds": 2.5}
            events.write(json.dumps(event) + "\n")
        events.write(
            json.dumps({"type": "outcome", "outcome": {"status": "failed", "exit_code": 137}}) + "\n"
        )
    entry = told(host, tail_bytes=100)["odd-aaaaaa"]
    two = entry["tasks"][1]
    assert (two["state"], two["code"], two["attempts"], two["tail"]) == ("exited", 137, 2, "second")
    assert [(end["attempt"], end["code"], end["seconds"]) for end in two["before"]] == [(0, 1, 2.5)]
    assert entry["outcome"]["status"] == "failed"
    planted = host.parent / "link-aaaaaa"
    planted.symlink_to(directory.parent)
    assert set(told(host)) == {"odd-aaaaaa"}


# ---- the verbs


@pytest.fixture
def hostfile(network: SshNetwork, launcher: Launcher) -> Path:
    """Two hosts, each with a disk of its own."""
    names = [network.add().name for _ in range(2)]
    return launcher.hostfile([{"name": name, "run_dir": str(launcher.hosts / name)} for name in names])


@pytest.fixture
def elsewhere(tmp_path: Path, network: SshNetwork) -> Iterator[Launcher]:
    """Another machine of the same user: it has no record of any run."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    other = Launcher(directory, network)
    yield other
    other.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_live_run_is_seen_from_any_machine(launcher: Launcher, elsewhere: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as running:
        run = running.run_id
        for user, words in ((launcher, ()), (elsewhere, ("--hosts", hostfile))):
            table = user.run("ps", *words).ran().out.splitlines()
            assert len(table) == 2
            assert table[1].split()[:5] == [run, "●", "running", "2/2", "host[1-2]"]
            assert "--ps=1 --workers=1" in table[1]
            assert user.run("ps", "-q", *words).ran().out == f"{run}\n"
            document = json.loads(user.run("status", "--json", run[:-1], *words).ran().out)
            tasks = {each["task"]: each for each in document["tasks"]}
            assert (document["run_id"], document["state"], document["running"]) == (run, "running", 2)
            assert document["command"][:2] == [
                "tflaunch",
                "run",
            ]  # and not the file that Python was told to run
            assert document["command"][-2:] == ["--workers=1", "--grace=2"]
            assert sorted(tasks) == ["ps/0", "worker/0"]
            for each in tasks.values():
                assert Path(each["log"]).read_text() == "here I am\n"
                assert Path(f"/proc/{each['pid']}/environ").read_bytes().count(run.encode())
                assert each["attempts"] == 1
                assert each["port"]
            assert {each["host"]: each["state"] for each in document["hosts"]} == {
                "host1": "alive",
                "host2": "alive",
            }
            page = user.run("status", *words).ran().out
            assert "worker/0" in page
        here = launcher.run("status").ran().out
        assert f"its launcher is pid {running.process.pid} on this machine" in here
        there = elsewhere.run("status", "-H", hostfile).ran().out
        assert f"held by its launcher, {getpass.getuser()}@{socket.gethostname()}" in there
        running.signal(signal.SIGKILL)
        running.end()
        orphan = json.loads(elsewhere.run("status", "-H", hostfile, "--json").ran().out)
        assert (orphan["run_id"], orphan["state"]) == (run, "running")
        launcher.run("stop", run).ran()
    nothing = elsewhere.run("ps", "-H", hostfile).ran()
    assert nothing.out == ""
    assert "no run is alive on these hosts" in nothing.sentences
    assert "1 more that have ended: tflaunch ps -a" in nothing.sentences
    assert "stopped" in elsewhere.run("ps", "-a", "-H", hostfile).ran().out
    elsewhere.run("status", "-H", hostfile).ran(2)


def test_the_first_failure_is_told_first(launcher: Launcher, elsewhere: Launcher, hostfile: Path) -> None:
    script = launcher.script("""
        import os, sys, time
        if os.environ["TFLAUNCH_TASK"] == "worker/1":
            print("the reason")
            sys.exit(7)
        time.sleep(600)
    """)
    launcher.run("run", hostfile, script, "--ps=1", "--workers=2", "--grace=1").ran(7)
    (record,) = launcher.records()
    page = elsewhere.run("status", record.name, "-H", hostfile).ran().out
    lines = page.splitlines()
    assert "✗ failed" in lines[0]
    assert "worker/1 on host" in page
    assert "exited with code 7" in page
    assert page.index("│ the reason") < page.index("worker/0")
    table = elsewhere.run("ps", "-a", "--hosts", hostfile).ran().out
    assert f"{record.name}  ✗ failed" in table
    document = json.loads(elsewhere.run("ps", "-a", "--json", "--hosts", hostfile).ran().out)
    (run,) = document["runs"]
    assert (run["state"], run["first_failure"], run["alive"]) == ("failed", "worker/1", False)
    assert launcher.run("ps", "-a").ran().out.splitlines()[1].split()[:3] == [record.name, "✗", "failed"]
    launcher.run("ps").ran(2)  # no hostfile, and no run on record that may be alive


def test_a_host_that_is_down_is_said(
    network: SshNetwork, launcher: Launcher, elsewhere: Launcher, hostfile: Path
) -> None:
    with endless(launcher, hostfile) as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        network.sshds[1].kill()
        down = elsewhere.run("ps", "--hosts", hostfile).ran(69)
        assert run in down.out
        assert "refuses the connection" in down.sentences
        document = json.loads(elsewhere.run("status", run, "--hosts", hostfile, "--json").ran(69).out)
        assert {each["host"]: each["state"] for each in document["hosts"]} == {
            **{"host1": "alive", "host2": "unreachable"}
        }
        assert sorted(each["state"] for each in document["tasks"]) == ["running", "unknown"]
        assert "refuses the connection" in document["unreachable"]["host2"]["message"]
        network.sshds[0].kill()
        # Only this machine's record knows now that there is, or was, such a run.
        blind = launcher.run("ps").ran(69)
        assert blind.out.splitlines()[1].split()[:3] == [run, "?", "unknown"]
        elsewhere.run("status", run, "--hosts", hostfile).ran(69)
        for sshd in network.sshds:
            sshd.start()
        kill(launcher, run, agents=True)
        until(lambda: not any(each.is_agent for each in launcher.leftovers(run)), "the end of all agents")
        strays = elsewhere.run("status", run, "--hosts", hostfile).ran().out
        assert "the agent is dead, still alive: pid" in strays
        launcher.run("stop", run, "--grace=0").ran()


def test_a_run_without_launcher(launcher: Launcher, elsewhere: Launcher, hostfile: Path, out: Path) -> None:
    run = detached(launcher, hostfile, out, "--restarts=2")
    end(out, "worker-1", 3)

    def again() -> dict[str, Any] | None:
        document = json.loads(elsewhere.run("status", run, "-H", hostfile, "--json").ran().out)
        tasks = {each["task"]: each for each in document["tasks"]}
        restarted = tasks["worker/1"]["attempts"] == 2 and tasks["worker/1"]["state"] == "running"
        return document if restarted else None

    document = until(again, "the second attempt")
    assert (document["state"], document["detached"], document["first_failure"]) == ("running", True, None)
    assert [task["before"] for task in document["tasks"] if task["task"] != "worker/1"] == [[], []]
    page = elsewhere.run("status", "-H", hostfile).ran().out
    assert "detached: it needs no launcher" in page
    assert re.search(r"worker/1 +host[12] +1 +✗ exit code 3 +\S+ +worker-1.log", page)
    stays = json.loads(elsewhere.run("clean", "-H", hostfile, "--older=0s", "--json").ran().out)["stays"]
    assert "it is alive on host" in stays[run]
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    launcher.wait_until_nothing_is_left()
    for user in (launcher, elsewhere):
        assert user.run("ps", "-a", hostfile).ran().out.splitlines()[1].split()[:3] == [
            run,
            "✓",
            "succeeded",
        ]
    assert launcher.run("ps").ran().out == ""
    launcher.run("clean", "-H", hostfile, "--older=0s").ran()
    assert [*launcher.hosts.glob("*/tflaunch-*/*"), *launcher.records()] == [
        *launcher.hosts.glob("*/tflaunch-*/code")
    ]


def test_on_a_terminal_it_has_colours_and_in_a_pipe_none(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as running:
        assert "\x1b" not in launcher.run("status").ran().out
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
        env = launcher.env(TERM="xterm-256color")
        del env["COLUMNS"]
        argv = launcher.argv("status")
        process = subprocess.Popen(argv, stdin=other, stdout=other, stderr=other, env=env, cwd=launcher.code)
        os.close(other)
        screen = b""
        with contextlib.suppress(OSError):  # a terminal ends like that
            while more := os.read(main, 4096):
                screen += more
        os.close(main)
        assert process.wait(60) == 0
        assert b"\x1b[" in screen
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode()).splitlines()
        tasks = [line for line in lines if line.startswith(("worker/0", "ps/0", "task"))]
        assert len(tasks) == 3
        assert max(map(len, tasks)) <= 72
        running.interrupt()
        running.end()


def test_what_makes_no_sense_is_refused(launcher: Launcher, hostfile: Path) -> None:
    launcher.run("ps", "-q", "--json", "--hosts", hostfile).ran(2)
    unknown = launcher.run("status", "nobody-aaaaaa", "--hosts", hostfile).ran(2)
    assert "know no run nobody-aaaaaa" in unknown.sentences
    launcher.run("status", "../x", "--hosts", hostfile).ran(2)
    assert "tflaunch ps --hosts" in launcher.run("ps").ran(2).sentences


@pytest.mark.parametrize("words", [("ps", "-a"), ("clean", "-n"), ("schema",)], ids=" ".join)
def test_a_full_disk_behind_stdout_is_a_sentence(
    launcher: Launcher, words: tuple[str, ...], hostfile: Path
) -> None:
    hosts = () if words == ("schema",) else (f"--hosts={hostfile}",)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            launcher.argv(*words, *hosts),
            env=launcher.env(),
            cwd=launcher.code,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot write to stdout: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_thousands_of_runs_that_a_host_tells_of_are_shown_at_once() -> None:
    class Counted(list[Text]):
        looks = 0

        def __iter__(self) -> Iterator[Text]:
            Counted.looks += 1
            return super().__iter__()

    lines = table(
        [Column("run", Counted(map(Text, map(str, range(100))))), Column("b", [Text("x")] * 100)], 80, "~"
    )
    assert len(lines) == 101
    assert Counted.looks < 5  # not one for each row
