"""Runs in slots of a real YARN: what works, what each end says, and that nothing is left."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import bed as beds
from tests.support import yarn as yarns
from tests.support.bed import Bed
from tests.support.launcher import Running
from tests.support.patience import until
from tests.support.yarn import YARN_S, OnYarn, YarnCluster

TRAINER = """
    import os, signal, sys, time
    def save(*_):
        print("saved by", os.environ["TFLAUNCH_TASK"], flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    open("made.txt", "w").write("by " + os.environ["TFLAUNCH_TASK"])
    misleading = [name for name in os.environ if name.startswith(("MALLOC_ARENA", "JVM_PID", "YARN_SHELL"))]
    print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "of", os.environ["TFLAUNCH_TASK"], misleading, flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        time.sleep(0.05)
    print("ends", flush=True)
"""
TASKS = ("--ps=0", "--workers=2", "--no-flags")

pytestmark = pytest.mark.skipif(bool(yarns.missing()), reason=yarns.missing())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[YarnCluster]:
    """A YARN of two nodes with two cards each, one for all tests here; no node has an sshd."""
    if reason := beds.missing():
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()  # the home directories, which the nodes see
    directory = tmp_path_factory.mktemp("yarn")
    bed = Bed(directory / "bed")
    for host in bed.up(2, share=[str(base), str(yarns.home())]):
        host.give_gpus(library, *(f"gpu uuid=GPU-{host.name}-{index}" for index in range(yarns.CARDS)))
        host.kill_sshd(sessions=True)
    cluster = YarnCluster(bed, directory / "cluster")
    yield cluster
    cluster.close()
    bed.close()


@pytest.fixture
def user(tmp_path: Path, cluster: YarnCluster) -> Iterator[OnYarn]:
    """A user of that YARN; at the end no application of theirs is left, and nothing on its nodes."""
    user = OnYarn(tmp_path, cluster.bed)
    user.cluster = cluster
    yield user
    user.close()


def training(user: OnYarn, *words: str, slots: str = "", seconds: float = 600) -> Running:
    """A run whose two tasks train."""
    running = user.start(
        "run", slots or user.slots("2"), user.script(TRAINER), *TASKS, *words, "--", str(seconds)
    )
    running.wait_for("attempt 0 of", 2)
    return running


def test_roles_in_slots_of_yarn(user: OnYarn, cluster: YarnCluster) -> None:
    """Of one size: one application, of which YARN's log has the tasks' lines, and nothing is left in the home."""
    words = ("--ps=1", "--workers=2", "--no-flags", "--fetch=*.txt", "--json", "--", "0.1")
    done = user.run("run", user.slots("ps=1x0+worker=2x0"), user.script(TRAINER), *words).ran()
    ends = [event for event in done.events if event["event"] == "exited"]
    assert {each["host"].partition("-")[0] for each in ends} == {"host1", "host2"}
    assert {each["code"] for each in ends if each["task"] != "ps/0"} == {0}
    [app] = cluster.applications("FINISHED", "FAILED", "KILLED")
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    log = cluster.do("logs", "-applicationId", app["id"], "-log_files", "stdout")
    assert re.search(r"(?m)^worker/1: attempt 0 of worker/1 \[\]$", log)
    assert re.search(r"(?m)^worker/0: ends$", log)
    assert re.search(r"(?m)^ps/0: attempt 0 of ps/0 \[\]$", log)
    assert [*user.home.glob("tflaunch-*")] == []
