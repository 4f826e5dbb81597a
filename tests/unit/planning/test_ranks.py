"""What PyTorch, JAX and Horovod programs are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.frameworks import JAX, TORCH, given
from tests.support.planned import asked, facts, plan
from tflaunch.frameworks.table import named, started_by
from tflaunch.hosts import Host
from tflaunch.planning.addresses import interfaces
from tflaunch.planning.ranks import ranks, roles_for
from tflaunch.planning.task_commands import Command
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import JobSpec, Role, TaskId

HOST = Host(name="gpu01")
CLUSTER = {
    "chief": ["c:1"],
    "data": ["d:1", "d:2"],
    "feed": ["f:1"],
    "ps": ["p:1"],
    "worker": ["w:1", "w:2"],
}


def env_of(job: JobSpec, task: TaskId, cluster: Mapping[str, list[str]] = CLUSTER) -> dict[str, str]:
    return Command(job, cluster, "trainer-k3f9x2").env(task, HOST, ())


def test_who_decides_the_end_has_a_rank_and_the_chief_is_the_first() -> None:
    ends = {"data": Role(2, end="decides"), "feed": Role(1), "ps": Role(1, end="decides")}
    job = JobSpec(("t.py",), roles={**ends, "evaluator": Role(1, end="decides")})
    assert [str(task) for task in ranks(job, {**CLUSTER, "evaluator": ["e:1"]})] == [
        "chief/0",
        "worker/0",
        "worker/1",
        "data/0",
        "data/1",
    ]
    stopped = JobSpec(("t.py",), roles={"worker": Role(2, end="stopped")})
    assert [str(task) for task in ranks(stopped, CLUSTER)] == ["chief/0"]


def test_a_task_is_a_node_with_one_process() -> None:
    env = env_of(JobSpec(("t.py",), framework="torch"), TaskId("worker", 1))
    assert given(env) == {
        "MASTER_ADDR": "c",
        "MASTER_PORT": "1",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "2",
    }


def test_jax_is_told_its_coordinator_and_its_process() -> None:
    env = env_of(JobSpec(("t.py",), framework="jax"), TaskId("chief", 0))
    assert given(env) == {
        "JAX_COORDINATOR_ADDRESS": "c:1",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "0",
    }


@pytest.mark.parametrize(
    ("framework", "names"), [("auto", TORCH | JAX), ("tensorflow", set()), ("torch", TORCH), ("jax", JAX)]
)
def test_what_each_framework_is_told(framework: str, names: set[str]) -> None:
    job = JobSpec(("t.py",), framework=framework)
    assert set(given(env_of(job, TaskId("worker", 0)))) == names
    for task in (TaskId("ps", 0), TaskId("data", 0), TaskId("evaluator", 0)):
        assert given(env_of(job, task)) == {}


def test_an_ipv6_address_is_written_as_each_of_them_reads_it() -> None:
    env = env_of(JobSpec(("t.py",)), TaskId("worker", 0), {"worker": ["[fd00::7]:2000", "[fd00::8]:2000"]})
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("fd00::7", "2000")
    assert env["JAX_COORDINATOR_ADDRESS"] == "[fd00::7]:2000"


def test_what_the_user_sets_wins() -> None:
    job = JobSpec(
        ("t.py",), env={"RANK": "7", "JAX_PROCESS_ID": "8"}, roles={"worker": Role(env={"WORLD_SIZE": "9"})}
    )
    command = Command(job, CLUSTER, "r", {"gpu01": "eth0"})
    host = Host(name="gpu01", env={"MASTER_PORT": "29500", "RANK": "1", "GLOO_SOCKET_IFNAME": "ib0"})
    env = command.env(TaskId("worker", 1), host, ())
    assert {name: env[name] for name in ("RANK", "JAX_PROCESS_ID", "WORLD_SIZE", "MASTER_PORT")} == {
        "RANK": "7",
        "JAX_PROCESS_ID": "8",
        "WORLD_SIZE": "9",
        "MASTER_PORT": "29500",
    }
    assert env["GLOO_SOCKET_IFNAME"] == "ib0"
    assert command.env(TaskId("worker", 1), HOST, ())["GLOO_SOCKET_IFNAME"] == "eth0"


def test_there_is_no_ps_unless_somebody_asks_for_one() -> None:
    assert roles_for(named("torch"), {"worker": Role(2)})["ps"].count == 0
    assert roles_for(named("jax"), {"ps": Role(hosts="a")})["ps"] == Role(0, hosts="a")
    assert roles_for(named("torch"), {"ps": Role(2)})["ps"].count == 2
    assert "ps" not in roles_for(named("auto"), {"worker": Role(2)})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"torch.distributed", "tensorflow", "argparse"}, "torch"),
        ({"LOCAL_RANK"}, "torch"),
        ({"jax.distributed", "tensorflow"}, "jax"),
        ({"jax.distributed", "RANK"}, "auto"),
        ({"torch", "jax"}, "auto"),
        ({"horovod", "tensorflow"}, "horovod"),
        ({"HOROVOD_RANK"}, "horovod"),
        (set(), "auto"),
    ],
)
def test_who_starts_a_program_with_these_words(words: set[str], expected: str) -> None:
    assert started_by(words) == expected


@pytest.mark.parametrize(
    ("dialled", "addresses", "expected"),
    [
        ("10.0.0.1", {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}, "eth0"),  # what is dialled is its own
        ("gpu1", {"eth0": "10.0.0.1", "docker0": "172.17.0.1"}, "eth0"),  # every machine has the bridge
        ("gpu1", {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}, None),  # either
        ("192.0.2.9", {"eth0": "10.0.0.1"}, "eth0"),  # behind a router
        ("127.0.0.1", {"eth0": "10.0.0.1"}, None),
        ("gpu1", {}, None),
    ],
)
def test_the_interface_that_gloo_listens_on(
    dialled: str, addresses: Mapping[str, str], expected: str | None
) -> None:
    def host(name: str, faces: Mapping[str, str]) -> Any:
        return facts(name, addresses=tuple(faces.values()), interfaces=tuple(faces))

    inventory = {
        "gpu1": host("gpu1", addresses),
        "gpu2": host("gpu2", {"eth0": "10.0.0.2", "docker0": "172.17.0.1"}),
    }
    assert interfaces({"gpu1": dialled, "gpu2": "10.0.0.2"}, inventory).get("gpu1") == expected


@pytest.mark.parametrize("framework", ["auto", "tensorflow", "jax", "torch"])
def test_only_rank_0_of_pytorch_and_jax_listens_and_only_pytorch_shares_its_port(
    framework: str,
) -> None:
    job = asked(ps=1, workers=2, chief=True, framework=framework)
    wire = {str(task.id): task.to_wire() for task in plan(job, facts("a"), facts("b")).tasks}
    own = framework in ("jax", "torch")
    assert {name: request["port"] is not None for name, request in wire.items()} == {
        "chief/0": True,
        "ps/0": not own,
        "worker/0": not own,
        "worker/1": not own,
    }
    sharing = [name for name, request in wire.items() if request.get("shares_port")]
    assert sharing == (["chief/0"] if framework == "torch" else [])
    ports = [task.port for task in plan(job, facts("a"), facts("b")).tasks]
    assert None not in ports  # the hosts call each other there before the start, as its own threads will


def test_horovods_ranks_go_host_by_host_and_each_task_is_a_host_with_one_process() -> None:
    job = asked(ps=0, workers=4, framework="horovod")
    tasks = {str(task.id): task for task in plan(job, facts("a"), facts("b")).tasks}
    assert {name: (task.host, task.env["HOROVOD_RANK"]) for name, task in tasks.items()} == {
        "worker/0": ("a", "0"),
        "worker/1": ("b", "2"),
        "worker/2": ("a", "1"),
        "worker/3": ("b", "3"),
    }
    first = tasks["worker/0"]
    assert given(tasks["worker/1"].env) == {
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "2",
        "HOROVOD_CROSS_SIZE": "4",
        "HOROVOD_HOSTNAME": "rank-2",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(first.port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",
    }
    assert not given(env_of(asked(framework="auto"), TaskId("worker", 0))).keys() & {"HOROVOD_RANK"}


def test_horovod_is_told_the_interface_of_each_host() -> None:
    job = JobSpec(("t.py",), framework="horovod")
    command = Command(job, CLUSTER, "r", {"gpu01": "eth0"})
    assert command.env(TaskId("worker", 1), HOST, ())["HOROVOD_GLOO_IFACE"] == "eth0"
    assert "GLOO_SOCKET_IFNAME" not in command.env(TaskId("worker", 1), HOST, ())


def test_the_agent_of_rank_0_answers_the_hosts_of_the_run_in_its_place() -> None:
    here = facts("a", addresses=("10.0.0.1", "10.1.0.1")), facts("b", addresses=("10.0.0.2",))
    requests = {
        str(task.id): task.to_wire()
        for task in plan(asked(ps=0, workers=2, framework="horovod"), *here).tasks
    }
    assert {"10.0.0.1", "10.1.0.1", "10.0.0.2"} <= set(requests["worker/0"]["rendezvous"])
    assert "rendezvous" not in requests["worker/1"]
    assert {request["port"] for request in requests.values()} == {None}  # no task listens
    env = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "gpu9", "HOROVOD_GLOO_RENDEZVOUS_PORT": "7"}
    own = plan(asked(ps=0, workers=2, framework="horovod", env=env), *here)
    assert not any("rendezvous" in task.to_wire() for task in own.tasks)  # the user serves it


def test_horovod_by_ipv6_is_refused() -> None:
    with pytest.raises(PlanError, match="Horovod knows IPv4 only"):
        plan(asked(ps=0, workers=1, framework="horovod"), facts("a"), hosts={"a": {"address": "fd00::7"}})
