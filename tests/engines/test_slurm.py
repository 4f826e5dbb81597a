"""Runs in slots of a real Slurm: what works, what each end of a job says, and that nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import bed as beds
from tests.support import slurm as slurms
from tests.support.bed import Bed
from tests.support.launcher import Running
from tests.support.slurm import OnSlurm, SlurmCluster

TRAINER = """
    import os, signal, sys, time
    def save(*_):
        print("saved by", os.environ["TFLAUNCH_TASK"], flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    open("made.txt", "w").write("by " + os.environ["TFLAUNCH_TASK"])
    misleading = [name for name in os.environ if name.startswith(("SLURM_STEP", "SLURM_NTASKS", "SLURM_PROCID"))]
    print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "of", os.environ["TFLAUNCH_TASK"], misleading, flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        time.sleep(0.05)
    print("ends", flush=True)
"""
TASKS = ("--ps=0", "--workers=3", "--no-flags")

pytestmark = pytest.mark.skipif(bool(slurms.missing()), reason=slurms.missing())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[SlurmCluster]:
    """A Slurm of three nodes with two cards each, one for all tests here; no node has an sshd."""
    if reason := beds.missing():
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()  # the home directories, which the nodes see
    directory = tmp_path_factory.mktemp("slurm")
    bed = Bed(directory / "bed")
    for host in bed.up(3, share=[str(base)]):
        host.give_gpus(library, *(f"gpu uuid=GPU-{host.name}-{index}" for index in range(slurms.CARDS)))
        host.kill_sshd(sessions=True)
    cluster = SlurmCluster(bed, directory / "cluster")
    yield cluster
    cluster.close()
    bed.close()


@pytest.fixture
def user(tmp_path: Path, cluster: SlurmCluster) -> Iterator[OnSlurm]:
    """A user of that Slurm; at the end no job of theirs is left, and nothing on its nodes."""
    user = OnSlurm(tmp_path, cluster.bed)
    user.cluster = cluster
    yield user
    user.close()


def training(user: OnSlurm, *words: str, slots: str = "", seconds: float = 600) -> Running:
    """A run whose three tasks train."""
    slots = slots or user.slots("3")
    running = user.start("run", slots, user.script(TRAINER), *TASKS, *words, "--", str(seconds))
    running.wait_for("attempt 0 of", 3)
    return running


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
