"""What `slurm:` by SSH and `pbs:` take is what the job has: tasks, CPUs and GPUs, from the environment alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.planned import asked, facts, plan, refused, some_gpus, taken
from tflaunch.hosts import load
from tflaunch.protocol.errors import HostfileError

NODES = {"SLURM_JOB_NODELIST": "n[1-4]", "SLURMD_NODENAME": "n1"}


def given(source: str = "slurm:", **environ: str) -> list[tuple[int | None, Any]]:
    """(slots, gpus) of each host."""
    return [(host.slots, host.gpus) for host in load(source, environ=environ, connection="ssh").hosts]


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({}, [None] * 4),
        ({"SLURM_TASKS_PER_NODE": "2(x3),1"}, [2, 2, 2, 1]),
        ({"SLURM_TASKS_PER_NODE": "1(x4)"}, [1] * 4),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x2),8(x2)"}, [16, 16, 8, 8]),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x4)", "SLURM_CPUS_PER_TASK": "4"}, [4] * 4),
        ({"SLURM_TASKS_PER_NODE": "8(x4)", "SLURM_JOB_CPUS_PER_NODE": "4(x3),16"}, [4, 4, 4, 8]),
        (
            {
                "SLURM_TASKS_PER_NODE": "2(x4)",
                "SLURM_JOB_CPUS_PER_NODE": "8(x4)",
                "SLURM_CPUS_PER_TASK": "16",
            },
            [1] * 4,
        ),
    ],
)
def test_tasks_per_node_and_cpus(environ: dict[str, str], slots: list[int | None]) -> None:
    assert given(**NODES, **environ) == [(count, "auto") for count in slots]


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({"SLURM_JOB_GPUS": "0,1"}, [(0, 1), 2, 2, 2]),  # --gres is for each node
        ({"SLURM_JOB_GPUS": "0,2-3", "SLURM_GPUS_PER_NODE": "a100:3"}, [(0, 2, 3), 3, 3, 3]),
        ({"SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "1"}, [(1,), 1, 1, 1]),
        ({"SLURM_GPUS_ON_NODE": "2"}, [2, 2, 2, 2]),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, [3, 3, 3, 3]),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS": "7"}, [4, 3, 3, 3]),
        ({"SLURM_JOB_GPUS": "gpu-7"}, ["auto"] * 4),
        ({"SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "login"}, ["auto"] * 4),  # salloc's shell, elsewhere
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, [0, 0, 0, 0]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["auto"] * 4),
    ],
)
def test_gpus_of_the_job(environ: dict[str, str], gpus: list[Any]) -> None:
    assert given(**{**NODES, **environ}) == [(None, each) for each in gpus]


def test_a_step_wins_over_its_job_unless_it_is_the_shell_of_salloc() -> None:
    job = {**NODES, "SLURM_TASKS_PER_NODE": "4(x4)", "SLURM_JOB_CPUS_PER_NODE": "8(x3),2"}
    step = {"SLURM_STEP_NODELIST": "n[3-4]", "SLURM_STEP_TASKS_PER_NODE": "3(x2)", "SLURM_STEP_ID": "0"}
    hosts = load("slurm:", environ={**job, **step}, connection="ssh").hosts
    assert [(host.name, host.slots) for host in hosts] == [("n3", 3), ("n4", 2)]
    shell = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_ID": "4294967290"}
    assert given(**job, **shell) == [(4, "auto"), (4, "auto"), (4, "auto"), (2, "auto")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2(x3)", "SLURM_TASKS_PER_NODE: '2(x3)' counts 3 nodes, and the list of nodes has 4"),
        ("2(x3),many", "SLURM_TASKS_PER_NODE: '2(x3),many' is not a count for each node, as 2(x3),1"),
        ("1(x999999)", "SLURM_TASKS_PER_NODE: '1(x999999)' is not a count for each node, as 2(x3),1"),
    ],
)
def test_what_cannot_be_read_is_an_error(text: str, said: str) -> None:
    with pytest.raises(HostfileError) as error:
        given(**NODES, SLURM_TASKS_PER_NODE=text)
    assert error.value.problems[0].message == said


def test_pbs(tmp_path: Path) -> None:
    nodes, gpus = tmp_path / "nodes", tmp_path / "gpus"
    nodes.write_text("a.lab\na.lab\nb.lab\n")
    gpus.write_text("a-gpu1\na-gpu0\nb-gpu3\n")
    environ = {"PBS_NODEFILE": str(nodes)}
    assert given("pbs:", **environ) == [(2, "auto"), (1, "auto")]
    assert given("pbs:", **environ, PBS_NUM_PPN="4") == [(2, "auto"), (4, "auto")]
    assert given("pbs:", **environ, PBS_NGPUS="2") == [(2, 2), (1, 2)]
    assert given("pbs:", **environ, PBS_GPUFILE=str(gpus)) == [(2, (0, 1)), (1, (3,))]
    gpus.write_text("")
    assert given("pbs:", **environ, PBS_GPUFILE=str(gpus)) == [(2, 0), (1, 0)]


def test_a_plan_takes_no_more_than_the_job_has_and_says_what_limits_it() -> None:
    environ = {"SLURM_JOB_NODELIST": "g[1-2]", "SLURMD_NODENAME": "g1"}
    environ |= {"SLURM_TASKS_PER_NODE": "2,1", "SLURM_JOB_GPUS": "1,2"}
    settings = {host.name: vars(host) for host in load("slurm:", environ=environ, connection="ssh").hosts}
    hosts = {
        name: {key: said[key] for key in ("slots", "gpus", "slots_by", "gpus_by")}
        for name, said in settings.items()
    }
    members = [facts("g1", some_gpus("g1", 4)), facts("g2", some_gpus("g2", 4))]
    assert taken(plan(asked(ps=0), *members, hosts=hosts)) == ["g1:1", "g2:0", "g1:2"]
    assert taken(plan(asked(ps=0, gpus_per_worker="all"), *members, hosts=hosts)) == ["g1:1,2", "g2:0,1"]
    error = refused(asked(ps=0, workers=4), *members, hosts=hosts)
    assert error.message == (
        "need 4 GPUs (4 workers x 1), 4 are free: g1 2 of 4 (SLURM_JOB_GPUS=1,2; SLURM_TASKS_PER_NODE=2,1), g2 2 of 4 "
        "(as many as Slurm gave on this node; SLURM_TASKS_PER_NODE=2,1); they hold 3 workers, since the GPUs of one "
        "are on one host and SLURM_TASKS_PER_NODE=2,1 limits them"
    )
    bare = [facts("g1"), facts("g2")]
    error = refused(
        asked(ps=0, workers=4), *bare, hosts={name: {**said, "gpus": 0} for name, said in hosts.items()}
    )
    assert error.message == (
        "need 4 slots (4 workers), 3 are given: g1 2, g2 1 "
        "(SLURM_TASKS_PER_NODE=2,1: a worker for each task of the job)"
    )
    assert error.hint == "Ask for 3 workers at most, or have the job ask for more tasks: --ntasks-per-node."


def test_a_job_that_sees_only_its_own_gpus_has_all_that_it_sees() -> None:
    hosts = {"g1": {"gpus": (2, 3), "gpus_by": "SLURM_JOB_GPUS=2,3"}}
    assert taken(plan(asked(ps=0), facts("g1", some_gpus("g1", 2)), hosts=hosts)) == ["g1:0", "g1:1"]
    assert taken(plan(asked(ps=0), facts("g1", some_gpus("g1", 4)), hosts=hosts)) == ["g1:2", "g1:3"]
    error = refused(asked(ps=0), facts("g1", some_gpus("g1", 3)), hosts=hosts)
    assert error.message == "g1: the job has the GPUs 2,3 there (SLURM_JOB_GPUS=2,3), but 3 GPUs are there"
