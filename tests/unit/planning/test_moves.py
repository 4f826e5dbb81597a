"""The requests by which tasks would run on spares."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.planned import asked, facts, some_gpus
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.inventory import Node
from tflaunch.planning.plan import plan_cluster
from tflaunch.planning.spare_moves import Moves, moves
from tflaunch.protocol.job import JobSpec, Role
from tflaunch.protocol.moves import at, fill, values


def planned(
    job: JobSpec,
    *,
    gpus: dict[str, tuple[Any, ...]] | None = None,
    address: str = "10.0.0.{}",
    spare: str = "10.0.0.{}",
    **more: Any,
) -> tuple[Any, Moves, Any]:
    """(the plan on h0 and h1, the moves with the spare s2, the plan as if h1 were s2)."""
    names = ["h0", "h1", "s2"]
    hosts = [
        Host(name, address=(spare if name == "s2" else address).format(number))
        for number, name in enumerate(names)
    ]
    inventory = {name: facts(name, (gpus or {}).get(name, ()), **more) for name in names}
    hostfile = Hostfile("test", tuple(hosts))
    plan = plan_cluster(job, hostfile, {name: inventory[name] for name in names[:2]}, {}, "run")
    free = {"s2": inventory["s2"].gpus}
    found = moves(job, plan, hostfile, hosts[2:], inventory=inventory, ssh={}, free=free)
    as_if = plan_cluster(job, hostfile, {name: inventory[name] for name in ("h0", "s2")}, {}, "run")
    return plan, found, as_if


def filled(found: Moves, host: str, places: dict[str, str]) -> dict[str, Any]:
    standing = values(found.marks, found.seats, places)
    requests = [fill(each, standing) for each in at(found.requests[host], host, places)]
    return {each["id"]: each for each in requests}


@pytest.mark.parametrize("address", ["10.0.0.{}", "fd00::{}", "node{}.lab"])
@pytest.mark.parametrize("framework", ["tensorflow", "torch", "jax"])
def test_the_requests_after_a_move_are_those_of_a_plan_on_these_hosts(address: str, framework: Any) -> None:
    roles = {
        "worker": Role(
            2, args=("--me={address}", "--all={cluster_json}"), env={"HERE": "{host}", "N": "{rank}"}
        )
    }
    job = asked(ps=0 if framework != "tensorflow" else 1, workers=2, roles=roles, framework=framework)
    _, found, as_if = planned(job, address=address, spare=address)
    places = {"h1": "s2"}
    got = {**filled(found, "h0", places), **filled(found, "s2", places)}
    assert filled(found, "h1", places) == {}
    for task in as_if.tasks:
        assert got[str(task.id)] == task.to_wire()


def test_a_spare_has_the_gpus_of_the_model_or_is_none() -> None:
    job = asked(ps=0, workers=2)
    mine = {"h0": some_gpus("h0", 1), "h1": some_gpus("h1", 1)}
    _, found, _ = planned(job, gpus={**mine, "s2": some_gpus("s2", 2)})
    assert found.gpus_on("s2") == {"GPU-s2-0"}
    [request] = filled(found, "s2", {"h1": "s2"}).values()
    assert request["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-s2-0"
    _, none, _ = planned(job, gpus={**mine, "s2": some_gpus("s2", 2, name="V100")})
    assert none.spares == []


def test_a_spare_whose_address_is_of_another_family_is_none() -> None:
    _, found, _ = planned(asked(ps=1, workers=1), address="10.0.0.{}", spare="fd00::{}")
    assert found.spares == []


def test_what_the_user_wrote_stays_as_it_is() -> None:
    job = asked(ps=1, workers=1, args=("10.0.0.1:20001", "{literal}"))
    plan, found, _ = planned(job)
    port = plan.tasks[0].port
    assert port
    request = filled(found, "s2", {"h1": "s2"})
    assert all(each["argv"][-2:] == ["10.0.0.1:20001", "{literal}"] for each in request.values())


def test_tasks_are_bound_on_the_spare_to_the_cores_of_its_gpus() -> None:
    """Beside the GPUs of the spare, whose numbers may be others."""
    nodes = (Node(0, ((0,), (1,)), (0,)), Node(1, ((2,), (3,)), (1,)))
    mine = {"h0": some_gpus("h0", 1), "h1": some_gpus("h1", 1), "s2": some_gpus("s2", 2)[1:]}
    plan, found, as_if = planned(asked(ps=0, workers=2), gpus=mine, nodes=nodes)
    assert [task.cpus for task in plan.tasks] == ["0-1", "0-1"]
    [request] = filled(found, "s2", {"h1": "s2"}).values()
    assert (request["cpus"], request["env"]["OMP_NUM_THREADS"]) == ("2-3", "2")
    assert request == as_if.tasks[1].to_wire()
