"""Runs whose tasks are bound to cores, on hosts with simulated NUMA nodes; the affinity of the tasks is real."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bed import Bed, FarLauncher
from tests.support.bed.machines import NODES, PCI, BedHost
from tests.support.launcher import Done
from tests.support.numa import why_no_policies

pytestmark = pytest.mark.skipif(
    os.sched_getaffinity(0) < {0, 1} or not (NODES.is_dir() and PCI.is_dir()),
    reason="CPUs 0 and 1 are not there, or the kernel shows no NUMA nodes and no PCI",
)
BUSES = ("0000:10:00.0", "0000:20:00.0")
SHOWS = """\
import json, os, time
pools = {name: value for name, value in os.environ.items() if name.endswith("_THREADS")}
print(json.dumps([sorted(os.sched_getaffinity(0)), pools]), flush=True)
time.sleep(float(os.environ.get("STAYS", "0")))
"""
POOLS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


@pytest.fixture
def host(bed: Bed, library: Path) -> Iterator[BedHost]:
    """Two nodes of one CPU, with a GPU each."""
    [made] = bed.up(1, nodes=("0", "1"))
    for node, bus in enumerate(BUSES):
        made.plug_gpu(bus, node)
    made.give_gpus(library, *(f"gpu uuid=GPU-{node} bus={bus}" for node, bus in enumerate(BUSES)))
    yield made


def said(done: Done) -> dict[str, Any]:
    """What each task has printed."""
    return {event["task"]: json.loads(event["line"]) for event in done.events if event["event"] == "log"}


def test_each_worker_runs_beside_its_gpu(far: FarLauncher, host: BedHost) -> None:
    words = (far.hostfile([host], gpus="auto"), far.script(SHOWS), "--ps=0", "--json")
    done = far.run("run", *words).ran()
    assert said(done) == {"worker/0": [[0], POOLS], "worker/1": [[1], POOLS]}
    [plan] = [event for event in done.events if event["event"] == "plan"]
    assert [task["cpus"] for task in plan["tasks"]] == ["0", "1"]

    done = far.run("run", *words, "--include=host1:1", "--env=OMP_NUM_THREADS=7").ran()
    assert said(done) == {"worker/0": [[1], {**POOLS, "OMP_NUM_THREADS": "7"}]}
    done = far.run("run", *words, "--bind=none").ran()
    assert said(done) == {"worker/0": [[0, 1], {}], "worker/1": [[0, 1], {}]}
    done = far.run("run", *words, "--gpus-per-worker=0", "--workers=2", "--bind=cores").ran()
    assert said(done) == {"worker/0": [[0], POOLS], "worker/1": [[1], POOLS]}


def test_plan_status_and_gpus_show_the_cores(far: FarLauncher, host: BedHost) -> None:
    hosts = far.hostfile([host], gpus="auto")
    words = (hosts, far.script(SHOWS), "--ps=0")
    shown = far.run("run", *words, "--dry-run").ran().out
    rows = [line.split() for line in shown.splitlines()[:3]]
    assert [row[-1] for row in rows] == ["CPUs", "0", "1"]
    with far.start("run", *words, "--env=STAYS=600", "--grace=1") as running:
        running.wait_for("OMP_NUM_THREADS", 2)
        document = json.loads(far.run("status", "--json", "-H", hosts).ran().out)
        assert {task["task"]: task["cpus"] for task in document["tasks"]} == {
            "worker/0": "0",
            "worker/1": "1",
        }
        page = far.run("status", "-H", hosts, env={"COLUMNS": "160"}).ran().out
        assert "CPUs" in page
        running.interrupt()
        running.end()
    [facts] = json.loads(far.run("gpus", hosts, "--json").ran().out)["hosts"]
    assert [(node["cores"], node["gpus"]) for node in facts["nodes"]] == [([[0]], [0]), ([[1]], [1])]


def test_trials_of_a_sweep_are_bound_to_their_seats(far: FarLauncher, host: BedHost) -> None:
    words = (far.hostfile([host], gpus="auto"), far.script(SHOWS), "--grid=lr=1,2,3,4", "--env=STAYS=1")
    far.run("sweep", *words).ran()
    [record] = far.records()
    trials = [json.loads(log.read_text()) for log in sorted(record.glob("logs/trial-*.log"))]
    assert [pools for _, pools in trials] == [POOLS] * 4
    assert {tuple(cpus) for cpus, _ in trials} == {(0,), (1,)}


def test_a_host_that_allows_some_cpus_only(far: FarLauncher, bed: Bed, host: BedHost) -> None:
    """A cpuset of Slurm's or of the kubelet's static policy: what limits the agent limits where tasks can be bound."""
    words = (far.hostfile([host], gpus="auto"), far.script(SHOWS), "--ps=0", "--json")
    with host.cpuset("1"):
        done = far.run("run", *words).ran()
    assert said(done) == {"worker/0": [[1], {}], "worker/1": [[1], {}]}
    [plan] = [event for event in done.events if event["event"] == "plan"]
    assert [task["cpus"] for task in plan["tasks"]] == ["", ""]


def test_numactl_says_where_memory_comes_from(far: FarLauncher, bed: Bed) -> None:
    """The real one; this machine may have but one node."""
    if why := why_no_policies():
        pytest.skip(why)
    [made] = bed.up(1)
    show = "import subprocess; print(subprocess.check_output(['numactl', '--show'], text=True))"
    words = (far.hostfile([made]), far.script(show), "--ps=0", "--workers=1")
    out = far.run("run", *words, "--bind=cores", "--memory-policy=membind").ran().out
    assert "policy: bind" in out
    assert "policy: interleave" in far.run("run", *words, "--memory-policy=interleave").ran().out


def test_a_host_whose_containers_have_a_quota(far: FarLauncher, bed: Bed) -> None:
    """Two cores, and the time of one: no thread pool has two threads, though nothing is bound."""
    [made] = bed.up(1)
    words = (far.hostfile([made]), far.script(SHOWS), "--ps=0", "--json")
    with made.quota(1.0):
        assert said(far.run("run", *words).ran()) == {"worker/0": [[0, 1], POOLS]}
