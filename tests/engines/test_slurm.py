"""Runs in slots of a real Slurm: what works, what each end of a job says, and that nothing is left."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.engines.nodes import nodes
from tests.engines.trained import Impatient, train, trainer
from tests.support import ROOT
from tests.support import slurm as slurms
from tests.support.launcher import TFLAUNCH, Running
from tests.support.patience import until
from tests.support.slurm import SLURM_S, OnSlurm, SlurmCluster

TRAINER = trainer("SLURM_STEP", "SLURM_NTASKS", "SLURM_PROCID")
EXAMPLES = ROOT / "examples"
TASKS = ("--ps=0", "--workers=3", "--no-flags")

pytestmark = [pytest.mark.own_cluster, pytest.mark.skipif(bool(slurms.missing()), reason=slurms.missing())]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[SlurmCluster]:
    """A Slurm of three nodes with two cards each, one for all tests here; no node has an sshd."""
    with nodes(tmp_path_factory, "slurm", 3, library, slurms.CARDS) as (bed, directory):
        cluster = SlurmCluster(bed, directory)
        yield cluster
        cluster.close()


@pytest.fixture
def user(tmp_path: Path, cluster: SlurmCluster) -> Iterator[OnSlurm]:
    """A user of that Slurm; at the end no job of theirs is left, and nothing on its nodes."""
    user = OnSlurm(tmp_path, cluster.bed)
    user.cluster = cluster
    yield user
    user.close()


class ImpatientOnSlurm(Impatient, OnSlurm):
    """With less patience."""


@pytest.fixture
def impatient(tmp_path: Path, cluster: SlurmCluster) -> Iterator[ImpatientOnSlurm]:
    """A user with less patience."""
    user = ImpatientOnSlurm(tmp_path, cluster.bed)
    user.cluster = cluster
    yield user
    user.close()


def training(user: OnSlurm, *words: str, slots: str = "", seconds: float = 600) -> Running:
    """A run whose tasks train, one in each slot."""
    return train(user, TRAINER, slots or user.slots("3"), TASKS, *words, "--", str(seconds))


def test_a_job_of_its_own(user: OnSlurm, cluster: SlurmCluster) -> None:
    slots = user.slots("3x1", "partition=low", "time=2h", "cpus=2", "options=--comment=vision")
    words = ("--fetch=*.txt", "--json", "--", "0.1")
    done = user.run("run", slots, user.script(TRAINER), *TASKS, *words).ran()
    ends = [event for event in done.events if event["event"] == "exited"]
    assert {each["host"] for each in ends} == {"host1", "host2", "host3"}
    assert {each["code"] for each in ends} == {0}
    assert cluster.jobs() == []
    assert "succeeded" in user.run("ps", "-a").ran().out
    logs = user.run("logs").ran().out
    assert logs.count("[]") == 3  # nothing of the step is left in the tasks' environment
    assert "JobState=COMPLETED" in cluster.do("scontrol", "-o", "show", "job").splitlines()[-1]


def test_no_secret_is_where_others_can_read_it(user: OnSlurm, cluster: SlurmCluster) -> None:
    """Not in what scontrol shows, nor in a command line, an environment, Slurm's spool; one step holds all slots."""
    with training(user) as running:
        [job] = cluster.jobs()
        record = json.loads(user.run("ps", "--json").ran().out)
        assert record
        kept = [
            json.loads(path.read_text())
            for path in user.home.glob(".local/state/tflaunch/slurm/*/slots.json")
        ]
        [token] = [each["secret"]["token"] for each in kept]
        seen = cluster.do("scontrol", "show", "job", "-dd", job) + cluster.do(
            "scontrol", "write", "batch_script", job, "-"
        )
        for host in user.bed.hosts:
            for each in host.processes():
                seen += " ".join(each.words) + json.dumps(dict(each.env))
        spooled = [
            *(cluster.directory / "state").rglob("*"),
            *user.bed.hosts[0].path("/run/slurmd-host1").rglob("*"),
        ]
        assert any(path.name == "slurm_script" for path in spooled)
        seen += "".join(path.read_text(errors="replace") for path in spooled if path.is_file())
        assert token not in seen
        assert "PRIVATE KEY" not in seen
        assert not list(user.home.glob(".local/state/tflaunch/slurm/*/holder.py"))
        with user.start("attach") as viewer:
            viewer.wait_for("attempt 0 of", 3)
            assert cluster.steps() == [f"{job}.0"]
        running.interrupt()
        assert running.end() == 130


def test_other_terminals(user: OnSlurm, cluster: SlurmCluster) -> None:
    """Of a detached run: every verb by its record, and from a machine without one, by Slurm."""
    user.run("run", user.slots("3"), user.script(TRAINER), *TASKS, "--detach", "--", "600").ran()
    until(lambda: "3/3" in user.run("ps").ran().out, "the tasks run")
    assert "running" in user.run("status").ran().out
    until(lambda: "attempt 0 of worker/1" in user.run("logs").ran().out, "its lines")
    elsewhere = {"TFLAUNCH_STATE": str(user.directory / "nothing")}
    assert "3/3" in user.run("ps", "--hosts=slurm:", env=elsewhere).ran().out
    with user.start("attach", "--hosts=slurm:", env=elsewhere) as viewer:
        viewer.wait_for("attempt 0 of", 3)
        assert "is stopped" in user.run("stop").ran().sentences
        assert viewer.end() == 143
    cluster.wait_until_free()


def test_roles_are_one_heterogeneous_job(user: OnSlurm, cluster: SlurmCluster) -> None:
    words = ("--ps=1", "--workers=2", "--no-flags")
    slots = user.slots("ps=1x0+worker=2x1", "partition=low")
    with user.start("run", slots, user.script(TRAINER), *words, "--", "600") as running:
        running.wait_for("attempt 0 of", 3)
        facts = cluster.do("scontrol", "-o", "show", "job", cluster.jobs()[0]).splitlines()
        assert [re.search(r"HetJobOffset=(\d)", each)[1] for each in facts] == ["0", "1"]  # type: ignore[index]
        assert ["gpu:1" in each for each in facts] == [False, True]
        assert "ps/0" in user.run("ps", "--json").ran().out
        running.interrupt()
        assert running.end() == 130
    assert cluster.jobs() == []


def test_it_waits_in_slurms_words_and_leaves_nothing_in_the_queue(
    impatient: ImpatientOnSlurm, cluster: SlurmCluster
) -> None:
    user = impatient
    with training(user, slots=user.slots("3", "options=--exclusive", "time=1h")) as first:
        slots = user.slots("2", "time=10m")
        with user.start("run", slots, user.script(TRAINER), "--ps=0", "--workers=2", "--", "1") as other:
            until(lambda: len(cluster.jobs()) == 2, "it is in the queue")
            other.wait_for("PENDING (")
            assert "waiting" in user.run("ps").ran().out
            other.interrupt()
            assert other.end() == 130, other.err
        assert len(cluster.jobs()) == 1
        first.interrupt()
        assert first.end() == 130
    script = user.script(TRAINER)
    done = user.run("run", user.slots("4"), script, "--ps=0", "--", "1").ran(65)
    assert "it wants more nodes than the partition has" in done.sentences
    done = user.run("run", user.slots("1", "partition=nosuch"), script, "--ps=0", "--", "1").ran(2)
    assert "invalid partition" in done.sentences.lower()
    done = user.run("run", user.slots("1", "options=--array=1-3"), script, "--ps=0", "--", "1").ran(2)
    assert "is for tflaunch to say" in done.sentences
    done = user.run("run", "slurm:", script, "--ps=0", "--", "1").ran(2)
    assert "this is no job" in done.sentences
    wrong = user.run("run", "slurm:1,python=/no/python", script, "--ps=0", "--", "1").ran(69)
    assert "/no/python" in wrong.sentences


def take_back(cluster: SlurmCluster, how: str) -> None:
    """Have Slurm end the job."""
    if how == "scancel":
        cluster.do("scancel", *cluster.jobs())
    elif how == "preemption":
        cluster.do("sbatch", "--partition=high", "-N3", "--exclusive", "--output=/dev/null", "--wrap=sleep 2")


ENDS = {
    "scancel": ("was cancelled (scancel)", "partition=low"),
    "time limit": ("TIMEOUT", "time=1m,notice=5s"),
    "preemption": ("was preempted by another job", "partition=low"),
}


@pytest.mark.parametrize("how", ENDS)
def test_slots_that_are_taken_back(user: OnSlurm, cluster: SlurmCluster, how: str) -> None:
    said, setting = ENDS[how]
    with training(user, slots=user.slots("3", setting)) as running:
        take_back(cluster, how)
        done = running.done(SLURM_S).ran(75)
    assert said in done.sentences
    assert len(set(re.findall(r"saved by worker/\d", user.run("logs").ran().out))) == 3
    cluster.wait_until_free()


@pytest.mark.parametrize("how", ["scancel", "preemption"])
def test_restarts_take_slots_again(user: OnSlurm, cluster: SlurmCluster, how: str) -> None:
    with training(user, "--restarts=1") as running:
        take_back(cluster, how)
        running.wait_for("attempt 1 of", 3)
        running.interrupt()
        assert running.end() == 130, running.err
    assert cluster.jobs() == []


def test_nobody_is_needed_to_free_the_slots(user: OnSlurm, cluster: SlurmCluster) -> None:
    with training(user, "--lease=5s", slots=user.slots("3", "idle=1s")) as running:
        running.process.kill()
        running.process.wait()
        cluster.wait_until_free()
    user.wait_until_nothing_is_left()


@pytest.mark.parametrize("by", ["salloc", "sbatch"])
def test_inside_a_job(user: OnSlurm, cluster: SlurmCluster, by: str) -> None:
    """Without SSH: no node has an sshd.  Each node takes as many workers as the job has tasks there."""
    words = (
        "run",
        f"slurm:python={sys.executable}",
        user.script(TRAINER),
        "--ps=0",
        "--no-flags",
        "--",
        "0.1",
    )
    size = ("-N3", "--ntasks-per-node=1")
    if by == "salloc":
        done = user.inside_job(["salloc", *size, *TFLAUNCH, *map(str, words)])
        out, said, code = done.stdout, done.stderr, done.returncode
    else:
        told = cluster.directory / "batch.out"
        script = f"#!/bin/sh\nexec {shlex.join([*TFLAUNCH, *map(str, words)])}\n"
        job = user.inside_job(["sbatch", "--parsable", *size, f"--output={told}"], text=script).stdout.strip()
        cluster.wait_until_free()
        out = said = told.read_text()
        code = 0 if "ExitCode=0:0" in cluster.do("scontrol", "-o", "show", "job", job) else 1
    assert code == 0, said
    assert out.count("ends") == 3, said
    assert all(host.name in said for host in user.bed.hosts), said


def batch(user: OnSlurm, told: Path, *words: str, then: str = "true") -> str:
    """The number of a job on three nodes in whose script tflaunch runs TRAINER, and `then` a command."""
    argv = [
        "run",
        user.slots("").replace(":,", f":dir={user.home}/slots,"),
        user.script(TRAINER),
        "--ps=0",
        "--no-flags",
    ]
    script = f"#!/bin/sh\n{shlex.join([*TFLAUNCH, *map(str, argv), *words])}\n{then}\n"
    made = user.inside_job(["sbatch", "--parsable", "-N3", f"--output={told}"], text=script)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_a_detached_run_inside_a_job(user: OnSlurm, cluster: SlurmCluster) -> None:
    """Its step is all that it has, and ends with it; the job goes on."""
    told = cluster.directory / "detached.out"
    job = batch(user, told, "--detach", "--", "600", then="sleep 600")
    there = f"--hosts=slurm:dir={user.home}/slots"
    elsewhere = {"TFLAUNCH_STATE": str(user.directory / "nothing")}
    until(lambda: "3/3" in user.run("ps", there, env=elsewhere).out, "the tasks run", SLURM_S)
    with user.start("attach", there, env=elsewhere) as viewer:
        viewer.wait_for("attempt 0 of", 3)
        assert cluster.steps() == [f"{job}.0"]
        assert "is stopped" in user.run("stop", there, env=elsewhere).ran().sentences
        assert viewer.end() == 143
    until(lambda: not cluster.steps(), "the end of the step", SLURM_S)
    assert "stopped" in user.run("ps", "-a").ran().out
    assert cluster.jobs() == [job]
    cluster.do("scancel", job)


def test_a_killed_launcher_inside_a_job(user: OnSlurm, cluster: SlurmCluster) -> None:
    """The step ends when the lease is over, and tells how; the job is the user's to end."""
    told = cluster.directory / "killed.out"
    job = batch(user, told, "--lease=5s", "--", "600", then="sleep 600")
    until(lambda: told.exists() and told.read_text().count("attempt 0 of") == 3, "its tasks train", SLURM_S)
    for host in user.bed.hosts:
        for each in host.processes():
            if each.words[1:3] == TFLAUNCH[1:]:
                each.kill()
    until(lambda: not cluster.steps(), "the end of the step", SLURM_S)
    [kept] = (user.home / "slots").iterdir()
    until((kept / "code").exists, "what srun has ended with")
    assert (kept / "code").read_text() == "76\n"
    assert "not known" in user.run("status").out
    assert cluster.jobs() == [job]
    cluster.do("scancel", job)


def test_a_job_around_the_launcher_is_cancelled(user: OnSlurm, cluster: SlurmCluster) -> None:
    told = cluster.directory / "cancelled.out"
    job = batch(user, told, "--", "600")
    until(lambda: told.exists() and told.read_text().count("attempt 0 of") == 3, "its tasks train")
    cluster.do("scancel", job)
    cluster.wait_until_free()
    said = told.read_text()
    # Slurm and the launcher may each have sent a SIGTERM.
    assert len(set(re.findall(r"saved by worker/\d", said))) == 3, said
    # Slurm tells the launcher, which is the batch script, at the same time; what it hears first is what it says.
    if "stopped by SIGTERM" not in said:
        assert "exit code 75" in said
        assert "was cancelled (scancel)" in " ".join(said.split())


def test_gpus_are_those_of_the_job(user: OnSlurm, cluster: SlurmCluster) -> None:
    """Two jobs on one node, with a card each: neither sees the other's."""
    seen = []
    size = ["--gres=gpu:1", "--nodelist=host1", "-N1"]
    gpus = [*TFLAUNCH, "gpus", f"slurm:python={sys.executable}", "--json"]
    other = cluster.do("sbatch", "--parsable", *size, "--output=/dev/null", "--wrap=sleep 600").strip()
    until(lambda: "RUNNING" in cluster.do("squeue", "-h", "-o", "%T"), "the other job runs")
    seen.append(json.loads(user.inside_job(["salloc", *size, *gpus]).stdout))
    cluster.do("scancel", other)
    cluster.wait_until_free()
    seen.append(json.loads(user.inside_job(["salloc", *size, *gpus]).stdout))
    cards = [[gpu["uuid"] for gpu in each["hosts"][0]["gpus"]] for each in seen]
    assert cards == [["GPU-host1-1"], ["GPU-host1-0"]]
    none = json.loads(user.inside_job(["salloc", "-N1", *gpus]).stdout)
    assert none["hosts"][0]["gpus"] == []
    asked = json.loads(user.run("gpus", user.slots("1x1"), "--json").ran().out)
    assert len(asked["hosts"][0]["gpus"]) == 1


def test_cores_are_those_of_the_job(user: OnSlurm) -> None:
    """Slurm has bound the slot to a core (task/affinity); the task has that, and a thread pool of its size."""
    script = user.script(
        "import os; print('cores', sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], flush=True)"
    )
    slots = user.slots("1x0", "cpus=1", "options=--nodelist=host1")
    done = user.run("run", slots, script, "--ps=0", "--no-flags", "--bind=cores").ran()
    assert re.search(r"cores \[\d\] 1$", done.out, re.MULTILINE)


def test_tasks_of_two_jobs_on_one_node_have_different_cards(user: OnSlurm) -> None:
    script = user.script(
        "import os, time; print('mask', os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
    )
    slots = user.slots("1x1", "options=--nodelist=host1")
    words = ("--ps=0", "--workers=1", "--no-flags")
    with user.start("run", slots, script, *words) as one, user.start("run", slots, script, *words) as other:
        masks = set()
        for running in (one, other):
            running.wait_for("mask ")
            masks.add(re.findall(r"mask (\S+)", running.out)[0])
            running.interrupt()
            assert running.end() == 130
    assert masks == {"GPU-host1-0", "GPU-host1-1"}


def test_where_ports_are_closed_srun_leads_in(user: OnSlurm, cluster: SlurmCluster) -> None:
    """Then scancel cuts the wires: the words and the exit code are the same."""
    nft = partial(user.bed.launcher.do, "nft")
    nft("add table inet closed")
    nft("add chain inet closed out { type filter hook output priority 0; }")
    for host in user.bed.hosts:
        ports = f"ip daddr {host.address} tcp dport 30000-65535"
        nft(f"add rule inet closed out {ports} tcp flags & (syn | ack) == syn reject")
    try:
        with training(user) as running:
            assert len(cluster.steps()) > 1
            take_back(cluster, "scancel")
            done = running.done(SLURM_S).ran(75)
        assert "was cancelled (scancel)" in done.sentences
    finally:
        nft("delete table inet closed")


def test_a_node_that_fails(user: OnSlurm, cluster: SlurmCluster) -> None:
    with training(user) as running:
        host = user.bed.hosts[2]
        user.bed.power_off(host)
        done = running.done(SLURM_S)
        assert "NODE_FAIL" in done.sentences, done.err
    user.bed.boot(host)
    host.kill_sshd(sessions=True)
    cluster.start_node(host)
    cluster.wait_for_nodes()


def with_tensorflow(user: OnSlurm) -> Path:
    """A hostfile of two slots whose tasks run with the Python of the tests."""
    path = user.directory / "slots.yaml"
    said = {
        "engine": "slurm",
        "slots": [{"count": 2}],
        "settings": {"python": sys.executable},
        "defaults": {"python": sys.executable},
    }
    path.write_text(yaml.safe_dump(said))
    return path


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
def test_servers_and_a_check(user: OnSlurm, cluster: SlurmCluster) -> None:
    slots = with_tensorflow(user)
    checked = user.run("check", slots, "--json").ran()
    [row] = [each for each in json.loads(checked.out)["matrix"] if each["name"] == "TensorFlow"]
    assert set(row["values"].values()) == {importlib.metadata.version("tensorflow")}
    served = user.run("up", slots, "--ps=1", "--workers=1").ran()
    assert served.out.count("grpc://") == 2
    assert "2/2" in user.run("ps").ran().out
    assert "ps/0" in user.run("stacks").ran().out
    assert "is stopped" in user.run("stop").ran().sentences
    cluster.wait_until_free()


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
def test_parameter_servers_go_on_from_a_checkpoint_in_another_job(
    user: OnSlurm, cluster: SlurmCluster
) -> None:
    kept = user.directory / "kept"
    of_it = ("--steps=1500", "--checkpoint_steps=100", f"--train_dir={kept}")
    words = ("--ps=1", "--workers=1", "--restarts=1", "--grace=2", "--", *of_it)
    with user.start("run", with_tensorflow(user), EXAMPLES / "async_ps.py", *words) as running:
        until(lambda: list(kept.glob("model.ckpt-?*00.index")), "a checkpoint", 2 * SLURM_S)
        take_back(cluster, "scancel")
        running.wait_for("resumes from")
        done = running.done(4 * SLURM_S).ran()
    steps = [int(step) for step in re.findall(r"worker/0 step +(\d+)", done.out.partition("resumes from")[2])]
    assert steps[0] >= 100
    assert steps[-1] >= 1500


@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="no TensorFlow here")
def test_workers_train_together(user: OnSlurm) -> None:
    words = ("--ps=0", "--workers=2", "--no-flags", "--grace=2", "--", "--steps=60", "--checkpoint_steps=30")
    with user.start("run", with_tensorflow(user), EXAMPLES / "multi_worker_mirrored.py", *words) as running:
        done = running.done(4 * SLURM_S).ran()
    assert done.out.count("final loss") == 2
    assert len(set(re.findall(r"final loss (\S+)", done.out))) == 1  # every step saw the gradients of both


def test_a_sweep(user: OnSlurm, cluster: SlurmCluster) -> None:
    script = user.script("import sys; print('loss', float(sys.argv[1].partition('=')[2]) / 2)")
    words = ("--metric", "loss", "--grid", "lr=0.1,0.2,0.3")
    done = user.run("sweep", user.slots("3"), script, *words).ran()
    assert "3 trials" in done.sentences or "3 of 3" in done.sentences
    assert cluster.jobs() == []
