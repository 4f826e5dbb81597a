"""Bare servers: `tflaunch up` starts them, any client builds a session on them, `tflaunch stop` ends them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import NO_KERAS
from tests.support.launcher import Launcher, Process
from tests.support.patience import until
from tests.support.sshd import SshNetwork

# A variable of the ps, doubled by the worker; tells the result, and where it was computed.
CLIENT = """
import json, sys
import tensorflow as tf

v1 = tf.compat.v1
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        number = v1.get_variable("number", initializer=float(sys.argv[2]))
    with tf.device("/job:worker/task:0"):
        doubled = number.read_value() * 2.0
    traced, told = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), v1.RunMetadata()
    with v1.Session(sys.argv[1]) as session:
        session.run(number.initializer)
        result = float(session.run(doubled, options=traced, run_metadata=told))
devices = sorted({stats.device.partition("/device")[0] for stats in told.step_stats.dev_stats})
print(json.dumps({"result": result, "devices": devices}))
"""
SERVES_S = 150.0  # for TensorFlow to be imported, on a busy machine
BOTH = ["/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"]


def client(target: str, number: float) -> dict[str, Any]:
    """What a client, in a process of its own, has computed."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, target, str(number)],
        env={**os.environ, **NO_KERAS, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def program(path: Path, line: str) -> Path:
    """A shell script of one line."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def server(launcher: Launcher, run: str, task: str) -> Process:
    """The process of one server."""
    [found] = [each for each in launcher.leftovers(run) if each.env.get("TFLAUNCH_TASK") == task]
    return found


def test_connections_are_lost_clients_come_and_go_and_a_server_that_dies_comes_back(
    network: SshNetwork, launcher: Launcher, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    python = program(
        tmp_path / "python", f'while ! [ -e {go} ]; do sleep 0.05; done; exec {sys.executable} "$@"'
    )
    hosts = launcher.hostfile([network.add().name for _ in range(2)], python=str(python), workdir="/")
    spec = tmp_path / "cluster.json"
    with launcher.start("up", hosts, "--ps=1", "--workers=1", f"--spec={spec}") as up:

        def both_run() -> bool:
            journals = [path.read_text() for path in launcher.hosts.glob("tflaunch-*/*/*/events.jsonl")]
            return len(journals) == 2 and all('"started"' in each for each in journals)

        until(both_run, "both to run")
        for sshd in network.sshds:
            sshd.kill_sessions()
        up.wait_for("is back after", 2)
        go.touch()
        done = up.done(SERVES_S).ran()
    cluster = json.loads(spec.read_text())
    assert {job: len(addresses) for job, addresses in cluster.items()} == {"ps": 1, "worker": 1}
    [ps], [worker] = cluster["ps"], cluster["worker"]
    *targets, flags, printed = done.out.splitlines()
    assert [line.split()[:2] for line in targets] == [
        ["ps/0", f"grpc://{ps}"],
        ["worker/0", f"grpc://{worker}"],
    ]
    assert flags == f"--ps_hosts={ps} --worker_hosts={worker}"
    assert json.loads(printed) == cluster
    assert done.sentences.count("ask for no password") == 1
    [record] = launcher.records()
    run = record.name

    assert client(f"grpc://{worker}", 1.5) == {"result": 3.0, "devices": BOTH}

    server(launcher, run, "ps/0").kill()

    def serves_again() -> bool:
        logs = launcher.hosts.glob(f"tflaunch-*/{run}/*/logs/ps-0.1.log")
        return any(f"serves as ps/0 at grpc://{ps}" in log.read_text() for log in logs)

    until(serves_again, "the server to stand again, at the same address", SERVES_S)
    assert client(f"grpc://{worker}", 4) == {"result": 8.0, "devices": BOTH}

    assert run in launcher.run("ps", "-q").ran().out
    launcher.run("stop", run).ran()
    launcher.wait_until_nothing_is_left()


def test_without_tensorflow_it_names_the_python_and_leaves_nothing(
    launcher: Launcher, tmp_path: Path
) -> None:
    bare = program(tmp_path / "bare-python", f'exec {sys.executable} -S "$@"')
    spec = tmp_path / "cluster.json"
    hosts = launcher.local(2, python=str(bare))
    done = launcher.run("up", hosts, "--ps=1", "--workers=1", f"--spec={spec}").ran(1)
    assert "No module named tensorflow" in done.err
    assert f"{bare} on local" in done.sentences
    assert "has no tensorflow: name another Python by `python:`" in done.sentences
    assert "starts again" not in done.err  # what cannot start is not tried three times
    assert not done.out
    assert not spec.exists()
    launcher.wait_until_nothing_is_left()


def test_servers_that_do_not_listen_in_time_are_ended(launcher: Launcher, tmp_path: Path) -> None:
    mute = program(tmp_path / "mute-python", "exec sleep 1000")
    hosts = launcher.local(1, python=str(mute))
    words = ("--ps=0", "--workers=1", "--startup-timeout=1", "--grace=0", "--json")
    done = launcher.run("up", hosts, *words).ran(124)
    assert "worker/0 has not opened its port" in done.events[-1]["first_failure"]["reason"]
    launcher.wait_until_nothing_is_left()


def test_ctrl_c_while_they_start_leaves_nothing(launcher: Launcher, tmp_path: Path) -> None:
    spec = tmp_path / "cluster.json"
    hosts = launcher.local(2, python=sys.executable)
    with launcher.start("up", hosts, "--ps=1", "--workers=1", f"--spec={spec}") as up:
        up.wait_for("prepared 2 hosts")
        up.interrupt()
        assert up.end() == 130
    assert not spec.exists()
    launcher.wait_until_nothing_is_left()


def test_in_the_foreground_a_job_of_any_name_stays_until_it_is_told_to_end(
    launcher: Launcher, tmp_path: Path
) -> None:
    hosts, spec = launcher.local(2, python=sys.executable), tmp_path / "cluster.json"
    of_job = ("--ps=0", "--workers=0", "--job=data=1", "--job-hosts=data=local2", "--job-env=data=X=1")
    with launcher.start("up", hosts, *of_job, f"--spec={spec}", "--foreground", "--json") as up:
        until(lambda: '"event": "servers"' in up.out, "the server to stand", SERVES_S)
        events = {event["event"]: event for event in map(json.loads, up.out.splitlines())}
        [task], servers = events["plan"]["tasks"], events["servers"]
        assert (task["task"], task["host"], task["env"]["X"]) == ("data/0", "local2", "1")
        assert servers["targets"] == {"data/0": f"grpc://{servers['cluster']['data'][0]}"}
        assert servers["flags"] == [f"--data_hosts={servers['cluster']['data'][0]}"]
        assert json.loads(spec.read_text()) == servers["cluster"]
        up.wait_for("serves as data/0 at grpc://")  # its output is shown
        up.signal(signal.SIGTERM)
        assert up.end() == 143
    launcher.wait_until_nothing_is_left()


@pytest.mark.parametrize("spec", ["nowhere/cluster.json", "."])
def test_a_spec_that_cannot_be_written_is_refused_first(launcher: Launcher, spec: str) -> None:
    done = launcher.run("up", launcher.local(1), f"--spec={spec}", cwd=launcher.directory).ran(2)
    assert "--spec" in done.err
    assert "connected" not in done.err
    assert launcher.records() == []


def test_a_spec_that_cannot_be_written_at_last_leaves_no_server(launcher: Launcher, tmp_path: Path) -> None:
    place = tmp_path / "specs"
    place.mkdir()
    hosts = launcher.local(1, python=sys.executable)
    with launcher.start("up", hosts, "--ps=0", "--workers=1", f"--spec={place / 'a.json'}") as up:
        up.wait_for("prepared 1 host")
        shutil.rmtree(place)
        assert up.end(SERVES_S) == 73
        assert "the servers are stopped" in up.err
    launcher.wait_until_nothing_is_left()


def test_a_dry_run_prints_the_plan(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run("up", launcher.local(2), "--ps=1", "--workers=2", "--dry-run").ran()
    assert "tf_server.py" in done.out
    assert "worker/1" in done.out
    evaluator = launcher.run("up", launcher.local(2), "--job=evaluator=1", "--dry-run").ran(2)
    assert "is not part of the cluster" in evaluator.sentences
    launcher.wait_until_nothing_is_left()
    assert launcher.records() == []
