"""Runs in pods of a real Kubernetes: what works, what each end of a pod says, and that nothing is left."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import bed as beds
from tests.support import kubernetes
from tests.support.bed import Bed
from tests.support.kubernetes import IMAGE, KUBERNETES_S, KubernetesCluster, OnKubernetes
from tests.support.launcher import Running
from tests.support.patience import until

TRAINER = """
    import os, signal, sys, time
    def save(*_):
        print("saved by", os.environ["TFLAUNCH_TASK"], flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    open("made.txt", "w").write("by " + os.environ["TFLAUNCH_TASK"])
    print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "of", os.environ["TFLAUNCH_TASK"], flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        time.sleep(0.05)
    print("ends", flush=True)
"""
TASKS = ("--ps=0", "--workers=2", "--no-flags")

pytestmark = pytest.mark.skipif(bool(kubernetes.missing()), reason=kubernetes.missing())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A Kubernetes of two nodes, one for all tests here."""
    if reason := beds.missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("k8s")
    bed = Bed(directory / "bed")
    bed.up(3, share=[str(directory)])
    cluster = KubernetesCluster(bed, directory / "cluster")
    yield cluster
    cluster.close()
    bed.close()


@pytest.fixture
def user(tmp_path: Path, cluster: KubernetesCluster) -> Iterator[OnKubernetes]:
    """A user of a namespace there; at the end nothing of theirs is left in it, nor on a node."""
    user = OnKubernetes(tmp_path, cluster.bed)
    user.space = cluster.space()
    yield user
    user.close()
    user.space.close()


def training(user: OnKubernetes, *words: str, slots: str = "", seconds: float = 600) -> Running:
    """A run whose two tasks train."""
    slots = slots or user.slots("2")
    running = user.start("run", slots, user.script(TRAINER), *TASKS, *words, "--", str(seconds))
    running.wait_for("attempt 0 of", 2)
    return running


def test_a_run_in_slots_of_kubernetes(user: OnKubernetes) -> None:
    words = ("--ps=0", "--workers=3", "--no-flags", "--fetch=*.txt", "--", "0.1")
    done = user.run("run", user.slots("3"), user.script(TRAINER), *words).ran()
    assert done.out.count("ends") == 3
    assert "nothing is left running" in done.sentences
    assert user.space.names("pods,jobs,secrets,configmaps") == []
    assert "succeeded" in user.run("ps", "-a").ran().out
    assert "ends" in user.run("logs").ran().out


def test_other_terminals(user: OnKubernetes) -> None:
    with training(user) as running:
        assert "2/2" in user.run("ps").ran().out
        assert "running" in user.run("status").ran().out
        assert "attempt 0 of worker/1" in user.run("logs", running.run_id, "worker/1").ran().out
        with user.start("attach") as viewer:
            viewer.wait_for("attempt 0 of", 2)
            assert "is stopped" in user.run("stop").ran().sentences
            assert viewer.end() == 143
        assert running.end() == 143, running.err
    assert "stopped" in user.run("ps", "-a").ran().out
    user.space.wait_until_free()


def take_back(user: OnKubernetes, how: str) -> None:
    """Have the cluster end the first pod."""
    pod = user.space.pods()[0]["metadata"]["name"]
    if how == "delete":
        user.space.do("delete", "pod", pod, "--wait=false")
    elif how == "job":
        user.space.do("delete", "jobs", "--all", "--wait=false")
    elif how == "evict":
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{user.space.name}/pods/{pod}/eviction"
        user.space.do("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    elif how == "suspend":
        user.space.do(
            "patch", *user.space.do("get", "jobs", "-o", "name").split(), "-p", '{"spec":{"suspend":true}}'
        )


ENDS = {
    "delete": "the pod was deleted",
    "job": "the Job was deleted",
    "evict": "the pod was evicted",
    "suspend": "the Job was suspended",
}


@pytest.mark.parametrize("how", ENDS)
def test_slots_that_are_taken_back(user: OnKubernetes, how: str) -> None:
    with training(user) as running:
        take_back(user, how)
        done = running.done(KUBERNETES_S).ran(75)
    assert ENDS[how] in done.sentences
    assert done.out.count("saved by") == 2
    user.space.wait_until_free()
