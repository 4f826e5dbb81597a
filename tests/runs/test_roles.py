"""Chiefs, evaluators and jobs of a user's own, as real processes: who they are told to be, how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import NO_KERAS
from tests.support.launcher import TELL, Launcher, Process, told
from tests.support.sshd import SshNetwork
from tflaunch.protocol.errors import EXIT_USAGE

QUICK = ("--grace=2", "--ps-grace=0")


# Each task ends with the code that it finds in $OUT/<its name>, once it is there; `fail` ends the first attempt alone.
OBEY = """
    import os, pathlib, sys, time
    task, out = os.environ["TFLAUNCH_TASK"].replace("/", "-"), pathlib.Path(os.environ["OUT"])
    print("attempt", os.environ["TFLAUNCH_ATTEMPT"], flush=True)
    while True:
        if (out / task).exists():
            said = (out / task).read_text()
            if said != "fail" or os.environ["TFLAUNCH_ATTEMPT"] == "0":
                sys.exit(3 if said == "fail" else int(said))
        time.sleep(0.02)
"""


def let(out: Path, task: str, code: int | str = 0) -> None:
    """Have a task end with that code."""
    (out / f"{task}.new").write_text(str(code))
    (out / f"{task}.new").rename(out / task)


def ends(report: dict[str, Any]) -> dict[str, int | None]:
    """The exit code of each task; None for one that was stopped."""
    return {exit["task"]: None if exit["stopped"] else exit["code"] for exit in report["exits"]}


def test_all_roles_over_ssh(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    hosts = [network.add().name for _ in range(3)]
    words = (
        "--ps=1",
        "--workers=1",
        "--chief",
        "--evaluator=2",
        "--job=data=2",
        f"--job-hosts=data={hosts[2]}",
    )
    script = launcher.script(TELL.replace('"ps"', '("ps", "data")'))
    run = launcher.run(
        "run", launcher.hostfile(hosts), script, *words, "--job-env=data=X=data", f"--env=OUT={out}", *QUICK
    ).ran()
    assert "2 data on" in run.sentences
    assert "2 evaluators on" in run.sentences
    tasks = told(out)
    assert sorted(tasks) == ["chief/0", "data/0", "data/1", "evaluator/0", "evaluator/1", "ps/0", "worker/0"]
    assert tasks["data/0"].host == tasks["data/1"].host == hosts[2]
    for name, task in tasks.items():
        config = json.loads(task.env["TF_CONFIG"])
        assert {job: len(addresses) for job, addresses in config["cluster"].items()} == {
            "chief": 1,
            "data": 2,
            "ps": 1,
            "worker": 1,
        }
        assert f"{config['task']['type']}/{config['task']['index']}" == name
        assert f"--data_hosts={','.join(config['cluster']['data'])}".encode() in task.argv
        assert (task.env.get("X") == "data") == name.startswith("data")
    run_id = run.err.partition("run ")[2].split()[0]
    shown = json.loads(launcher.run("status", run_id, "--json").ran().out)
    ports = {task["task"]: task["port"] for task in shown["tasks"]}
    assert {name for name, port in ports.items() if port is None} == {"evaluator/0", "evaluator/1"}
    launcher.wait_until_nothing_is_left()


def test_the_evaluator_has_time_for_the_last_checkpoint(launcher: Launcher, out: Path) -> None:
    words = ("--ps=1", "--workers=1", "--evaluator", "--job=data=1", f"--env=OUT={out}", "--json", *QUICK)
    with launcher.start("run", launcher.local(), launcher.script(OBEY), *words) as running:
        running.wait_for("attempt 0", 4)
        let(out, "worker-0")
        running.wait_for("evaluator/0 60 s (--job-grace evaluator=TIME)")
        let(out, "evaluator-0", 0)
        done = running.done().ran()
    assert ends(done.events[-1]) == {"ps/0": None, "data/0": None, "worker/0": 0, "evaluator/0": 0}


def test_an_evaluator_that_fails_starts_again_alone(launcher: Launcher, out: Path) -> None:
    words = ("--ps=0", "--workers=2", "--evaluator", f"--env=OUT={out}", "--json", *QUICK)
    let(out, "evaluator-0", "fail")
    with launcher.start("run", launcher.local(), launcher.script(OBEY), *words, "--restarts=1") as running:
        running.wait_for("attempt 1")
        for task in ("worker-0", "worker-1", "evaluator-0"):
            let(out, task)
        done = running.done().ran()
    attempts = {exit["task"]: exit["attempt"] for exit in done.events[-1]["exits"]}
    assert attempts == {"worker/0": 0, "worker/1": 0, "evaluator/0": 1}


def test_neither_a_sidecar_that_fails_nor_the_host_of_an_evaluator_ends_the_run(
    launcher: Launcher, out: Path
) -> None:
    sidecar = ("--job=board=1", "--job-end=board=sidecar")
    beside = ("--worker-hosts=local1", "--evaluator", "--job-hosts=evaluator=local2")
    fetch = ("--fetch=*.out", f"--fetch-to={out}/here")
    words = ("--ps=0", "--workers=1", *sidecar, *beside, *fetch, f"--env=OUT={out}", *QUICK)
    let(out, "board-0", 4)
    with launcher.start("run", launcher.local(2), launcher.script(OBEY), *words) as running:
        running.wait_for("exited with code 4; the run goes on without it")
        running.wait_for("evaluator/0 │ attempt 0")
        Process(launcher.agents("local2")["agent"], (), {}).kill()
        running.wait_for("the run goes on without local2 and evaluator/0")
        let(out, "worker-0")
        done = running.done().ran(74)  # all is well, but for what the evaluator may have left there
    assert "what is on local2 is not fetched" in done.sentences
    assert "board/0 exited with code 4" in done.sentences.rpartition("goes on without it")[2]  # in the report
    assert "succeeded" in done.err


def test_a_detached_run_keeps_to_the_roles(network: SshNetwork, launcher: Launcher, out: Path) -> None:
    host = network.add().name
    words = (
        "--ps=1",
        "--workers=1",
        "--evaluator",
        "--job=data=1",
        "--job-end=data=sidecar",
        f"--env=OUT={out}",
    )
    trainer = launcher.script(OBEY)
    begun = launcher.run("run", "-d", launcher.hostfile([host]), trainer, *words, *QUICK).ran()
    run_id = re.search(r"(\S+) goes on by itself: 4 tasks", begun.err)
    assert run_id, begun.err
    let(out, "data-0", 5)
    with launcher.start("attach", run_id[1], "--json") as attached:
        attached.wait_for("the run goes on without it")
        let(out, "worker-0")
        attached.wait_for("evaluator/0 60 s")
        let(out, "evaluator-0")
        done = attached.done().ran()
    assert ends(done.events[-1]) == {"ps/0": None, "data/0": 5, "worker/0": 0, "evaluator/0": 0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--job chief=2", "--job chief=2: a cluster has one chief"),
        ("--restarts 1 --restart data=task", "a job is ps, worker, chief"),
        ("--flag data_hosts=feeders", "--flag data_hosts=feeders: not NAME=OTHER"),
    ],
)
def test_command_lines_that_cannot_be(launcher: Launcher, words: str, message: str) -> None:
    done = launcher.run("run", launcher.local(), launcher.script("pass"), *words.split()).ran(EXIT_USAGE)
    assert message in done.sentences


def test_tensorflow_reads_who_each_task_is(launcher: Launcher, tmp_path: Path) -> None:
    words = ("--ps=1", "--workers=2", "--chief", "--evaluator", "--job=data=1", "--dry-run", "--json")
    plan = launcher.run("run", launcher.local(), launcher.script("pass"), *words).ran().events[-1]
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({task["task"]: task["env"]["TF_CONFIG"] for task in plan["tasks"]}))
    program = """
import json, os, sys
import tensorflow as tf
told = {}
for name, config in json.load(open(sys.argv[1])).items():
    os.environ["TF_CONFIG"] = config
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    spec = resolver.cluster_spec().as_dict()
    told[name] = [resolver.task_type, resolver.task_id, spec]
print(json.dumps(told))
"""
    env = {**os.environ, **NO_KERAS, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    read = subprocess.run(
        [sys.executable, "-c", program, asked], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(read.stdout)
    assert found.keys() == {"chief/0", "data/0", "evaluator/0", "ps/0", "worker/0", "worker/1"}
    for name, (job, index, spec) in found.items():
        assert f"{job}/{index}" == name
        assert spec == plan["cluster"]
        assert "evaluator" not in spec
