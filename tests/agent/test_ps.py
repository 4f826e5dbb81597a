"""What a host reads of a run in its own files: the agent as it is shipped, over pipes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Host, interpreters, running, staged, task
from tests.support.patience import until
from tests.support.ps import told


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with the oldest Python that can be had."""
    host = Host(tmp_path, interpreters()[0])
    yield host
    host.close()


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
    comm = Path(f"/proc/{sleeps['pid']}/comm")
    until(lambda: comm.read_text() == "sleep\n", "the program to be running")
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
    host.run_dir.mkdir(exist_ok=True)
    host.parent.mkdir(mode=0o700, exist_ok=True)
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
