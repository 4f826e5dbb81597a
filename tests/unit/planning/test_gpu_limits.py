"""How many GPUs a user may hold, on a host and on all of them: in the plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.gpus import GIB, facts, gpu
from tflaunch.hosts import Host, Hostfile
from tflaunch.launch.acquisition import Planner
from tflaunch.planning.gpu_choice import GpuChoice
from tflaunch.planning.gpu_limits import GpuLimit, at_limits, left_of, within_hosts
from tflaunch.planning.inventory import Inventory
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import JobSpec, Role

HOSTS = Hostfile("hosts.yaml", (Host("a"), Host("b")))


def inventory(**fields: Any) -> Inventory:
    """Two hosts of four GPUs; GPUs 2 and 3 of each are linked."""
    return {
        name: dataclasses.replace(
            facts(
                name, *(gpu(number, links={5 - number: "NV4"} if number > 1 else {}) for number in range(4))
            ),
            ports=tuple(range(20000, 20010)),
            **fields.get(name, {}),
        )
        for name in ("a", "b")
    }


def planner(workers: int | None, each: int | None = None, limit: int | None = None) -> Planner:
    job = JobSpec(("t.py",), roles={"worker": Role(workers, gpus=each), "ps": Role(0)})
    of_user = None if limit is None else GpuLimit(limit, "/etc/tflaunch/config.toml:4")
    return Planner(job, HOSTS, GpuChoice(), {"a": "10.0.0.1", "b": "10.0.0.2"}, "run", of_user)


def taken(of: Planner, there: Inventory) -> list[str]:
    return sorted(f"{task.host}:{','.join(task.gpu_labels)}" for task in of.plan(there).tasks)


def test_of_a_host_a_user_gets_the_nearest_gpus_that_are_allowed() -> None:
    there = inventory(a={"gpu_limit": 2}, b={"gpu_limit": 3, "gpus_held": 3})
    assert taken(planner(None), there) == ["a:2", "a:3"]
    assert taken(planner(1, 2), there) == ["a:2,3"]
    seen = within_hosts(there, HOSTS)
    assert [each.busy for each in seen["b"].gpus] == [
        "a user may hold 3 GPUs of this host, and your other runs hold 3"
    ] * 4
    assert there["a"].gpus[0].memory_total_bytes == 80 * GIB, "the facts themselves stay as they are"


def test_what_the_limit_forbids_now_is_worth_waiting_for_what_it_always_forbids_is_not() -> None:
    there = inventory(a={"gpu_limit": 2, "gpus_held": 1}, b={"gpu_limit": 0})
    with pytest.raises(PlanError, match=r"1 is free: .*your other runs hold 1") as raised:
        planner(2).plan(there)
    assert "--wait" in raised.value.hint
    with pytest.raises(PlanError) as raised:
        planner(3).plan(there)
    assert "--wait" not in raised.value.hint


def test_over_all_hosts_fewer_workers_where_their_number_was_not_given() -> None:
    there = inventory(b={"gpus_held": 2})
    assert left_of(GpuLimit(5, ""), there) == 3
    made = planner(None, limit=5).plan(there)
    assert len(made.tasks) == 3
    assert made.notes[-1] == "3 workers: a user may hold 5 GPUs (/etc/tflaunch/config.toml:4)"
    assert len(planner(None, 2, limit=5).plan(there).tasks) == 1, (
        "a worker gets all of its GPUs or is left out"
    )
    assert len(planner(3, limit=5).plan(there).tasks) == 3
    with pytest.raises(PlanError) as raised:
        planner(4, limit=5).plan(there)
    assert raised.value.message == (
        "this run takes 4 GPUs; a user may hold 5, and your other runs hold 2 (b 2) (max_gpus_per_user, "
        "/etc/tflaunch/config.toml:4)"
    )
    assert raised.value.hint == "Ask for 3 at most. Or queue for the GPUs: --wait, --wait 2h."
    assert len(planner(2, 0, limit=0).plan(there).tasks) == 2, "without GPUs there is no limit"


def test_two_names_of_one_machine_count_once() -> None:
    one = facts("a", gpu(0), boot_id="same", gpus_held=1)
    other = facts("b", gpu(0), boot_id="same", gpus_held=1)
    assert left_of(GpuLimit(4, ""), {"a": one, "b": other}) == 3
    assert at_limits(GpuLimit(4, ""), {"a": one, "b": other}) == [
        ("your limit is 4 GPUs,", "your other runs hold 1")
    ]
