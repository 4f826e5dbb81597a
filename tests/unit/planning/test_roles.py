"""Jobs of a user's own beside ps and workers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.planned import PROGRAM, asked, facts, places, plan, refused, some_gpus
from tflaunch.code.job_fitting import with_program
from tflaunch.code.program import find_program
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.plan import ports_wanted, usable_gpus
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import JobSpec, Role


def test_roles_beside_ps_and_workers() -> None:
    roles = {
        "evaluator": Role(1, args=("--eval",), env={"X": "evaluator"}),
        "data": Role(3, hosts="g2", args=("--shards", "8")),
    }
    planned = plan(
        asked(PROGRAM, workers=2, args=("own",), env={"X": "job", "Y": "job"}, roles=roles),
        facts("g1"),
        facts("g2"),
    )
    assert places(planned) == {
        "worker/0": "g1",
        "worker/1": "g2",
        "ps/0": "g1",
        "data/0": "g2",
        "data/1": "g2",
        "data/2": "g2",
        "evaluator/0": "g1",
    }
    assert planned.cluster.keys() == {"data", "ps", "worker"}
    evaluator, data = (
        next(task for task in planned.tasks if str(task.id) == name) for name in ("evaluator/0", "data/2")
    )
    assert (evaluator.port, evaluator.to_json()["port"]) == (None, None)
    assert json.loads(evaluator.env["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 0}
    assert (evaluator.env["X"], evaluator.env["Y"], data.env["X"]) == ("evaluator", "job", "job")
    assert evaluator.argv[-4:] == ("--job_name=evaluator", "--task_index=0", "own", "--eval")
    assert data.argv[-3:] == ("own", "--shards", "8")
    hosts_of_data = ",".join(planned.cluster["data"])
    assert all(f"--data_hosts={hosts_of_data}" in task.argv for task in planned.tasks)
    assert not any("evaluator_hosts" in word for word in evaluator.argv)


@pytest.mark.parametrize(
    ("workers", "roles", "expected"),
    [
        # task -> host and number of GPUs; a chief is as a worker unless its role says otherwise
        (2, {"chief": Role(1)}, {"chief/0": "g1 1", "worker/0": "g2 1", "worker/1": "g1 1"}),
        (2, {"master": Role(1)}, {"master/0": "g1 1", "worker/0": "g2 1", "worker/1": "g1 1"}),
        (2, {"chief": Role(1, gpus=0)}, {"chief/0": "g2 0", "worker/0": "g1 1", "worker/1": "g2 1"}),
        (1, {"chief": Role(1, hosts="g2")}, {"chief/0": "g2 1", "worker/0": "g1 1"}),
        # where the fewest GPUs are left
        (1, {"evaluator": Role(1, gpus=1)}, {"evaluator/0": "g2 1", "worker/0": "g1 1"}),
        (1, {"data": Role(2, gpus=2)}, {"data/0": "g2 2", "data/1": "g1 2", "worker/0": "g1 1"}),
        # workers get what is left
        (
            None,
            {"data": Role(1, gpus=3)},
            {"data/0": "g1 3", "worker/0": "g1 1", "worker/1": "g2 1", "worker/2": "g2 1"},
        ),
        (0, {"chief": Role(1, gpus=0), "data": Role(1, gpus=2)}, {"chief/0": "g1 0", "data/0": "g2 2"}),
    ],
)
def test_gpus_of_roles(workers: int | None, roles: dict[str, Role], expected: dict[str, str]) -> None:
    job = asked(PROGRAM, ps=0, workers=workers, roles=roles)
    planned = plan(job, facts("g1", some_gpus("g1", 4)), facts("g2", some_gpus("g2", 2)))
    assert {str(task.id): f"{task.host} {len(task.gpus)}" for task in planned.tasks} == expected


def test_gpus_for_ps_that_ask_for_them() -> None:
    job = asked(PROGRAM, workers=1, roles={"ps": Role(1, gpus=1)})
    planned = plan(job, facts("g1", some_gpus("g1", 2)))
    assert [(str(task.id), task.gpu_labels) for task in planned.tasks] == [
        ("ps/0", ("0",)),
        ("worker/0", ("1",)),
    ]


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (
            {"evaluator": Role(2, gpus=2)},
            "need 4 GPUs (2 evaluator x 2), 3 are free: g1 3 of 4 (1 busy: x)",
        ),
        (
            {"data": Role(1, hosts="g1", gpus=4)},
            "need 4 GPUs (1 data x 4), 3 are free: g1 3 of 4 (1 busy: x)",
        ),
        (
            {"data": Role(1, gpus=2)},
            "need 2 GPUs (2 workers x 1), 1 is free: g1 1 of 4 (1 busy: x; 2 for data)",
        ),
    ],
)
def test_too_few_gpus_for_roles(roles: dict[str, Role], message: str) -> None:
    error = refused(asked(PROGRAM, ps=0, workers=2, roles=roles), facts("g1", some_gpus("g1", 4, {1: "x"})))
    assert error.message == message
    assert error.hint


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"chief": Role(2)}, "--job chief=2: a cluster has one chief"),
        ({"data": Role(-1)}, "--job data=-1: a count cannot be negative"),
        ({"data": Role(1, gpus=-1)}, "--job-gpus data=-1: a count cannot be negative"),
        ({"data": Role(1, hosts="nowhere")}, "nowhere"),
        ({"ps": Role(gpus=1)}, "how many ps there are is not known"),
        ({"worker": Role(end="stopped")}, "no worker whose end would end the run"),
    ],
)
def test_roles_that_make_no_job(roles: dict[str, Role], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan(JobSpec(PROGRAM, roles=roles), facts("g1"))
    assert message in raised.value.message


def test_two_hundred_tasks_of_a_job_of_ones_own() -> None:
    job = asked(PROGRAM, workers=2, roles={"data": Role(200), "evaluator": Role(50)})
    hostfile = Hostfile("hosts.yaml", (Host(name="g1"), Host(name="g2")))
    held = ports_wanted(job, hostfile)
    members = [facts(name, ports=tuple(range(20000, 20000 + held))) for name in ("g1", "g2")]
    planned = plan(job, *members)
    assert {*Counter(task.host for task in planned.tasks).values()} <= {126, 127}
    assert len(planned.cluster["data"]) == 200
    alone = Hostfile("hosts.yaml", (Host(name="g1"),))
    assert ports_wanted(job, alone) >= 203


def test_what_roles_wait_for() -> None:
    members = {"g1": facts("g1", some_gpus("g1", 2)), "g2": facts("g2", some_gpus("g2", 1))}
    hostfile = Hostfile("hosts.yaml", tuple(Host(name=name) for name in members))
    job = asked(PROGRAM, workers=1, worker_hosts="g1", roles={"evaluator": Role(1, hosts="g2", gpus=1)})
    assert {name: len(found) for name, found in usable_gpus(job, hostfile, members).items()} == {
        "g1": 2,
        "g2": 1,
    }
    gpuless = asked(PROGRAM, workers=1, gpus_per_worker=0, roles={"evaluator": Role(1, gpus=2)})
    assert usable_gpus(gpuless, hostfile, members).keys() == {"g1"}


@pytest.mark.parametrize(
    ("text", "role", "listens"),
    [
        ("print('prepares data')\n", {}, False),
        ("print('prepares data')\n", {"args": ("--port={port}",)}, True),
        ("print('prepares data')\n", {"env": {"PEERS": "{data_hosts}"}}, True),
        ("print('prepares data')\n", {"env": {"PEERS": "{worker_hosts}"}}, False),
        ("import json, os\nprint(json.loads(os.environ['TF_CONFIG']))\n", {}, True),
    ],
)
def test_a_program_of_a_role_that_cannot_know_its_port_is_not_expected_to_open_it(
    tmp_path: Path, text: str, role: dict[str, Any], listens: bool
) -> None:
    (tmp_path / "own.py").write_text(text)
    job = asked(PROGRAM, workers=1, ps=0, flags=None, roles={"data": Role(1, program=("own.py",), **role)})
    job = with_program(job, "data", find_program("own.py", False, tmp_path))
    planned = plan(job, facts("c1"))
    assert {str(task.id): task.listens for task in planned.tasks} == {"data/0": listens, "worker/0": True}
