"""Which cores tasks are bound to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.planned import asked, facts, plan, some_gpus, split
from tflaunch.planning.binding import Cores, share_out
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.inventory import HostFacts, Node
from tflaunch.protocol.job import JobSpec

INTRA = "TF_NUM_INTRAOP_THREADS"


def nodes(
    *sizes: int, gpus: tuple[tuple[int, ...], ...] = (), threads: int = 1, **far: Any
) -> tuple[Node, ...]:
    """Nodes of so many cores each, of which CPU n and n + all are hyperthreads; `gpus` are beside each."""
    total, first, found = sum(sizes), 0, []
    for number, size in enumerate(sizes):
        cores = tuple(
            tuple(core + total * thread for thread in range(threads)) for core in range(first, first + size)
        )
        beside = gpus[number] if number < len(gpus) else ()
        distances = far.get("distances", [{}] * len(sizes))[number]
        found.append(Node(number, cores, beside, {str(key): way for key, way in distances.items()}))
        first += size
    return tuple(found)


DGX = nodes(56, 56, gpus=((0, 1, 2, 3), (4, 5, 6, 7)), threads=2)  # an H100 machine: two sockets of 56 cores


def dgx(host: str = "g1", **more: Any) -> HostFacts:
    return facts(host, some_gpus(host, 8), nodes=DGX, **more)


def bound(planned: ClusterPlan) -> dict[str, str]:
    return {str(task.id): task.cpus for task in planned.tasks if task.cpus}


def job(bind: str = "auto", **more: Any) -> JobSpec:
    return asked(bind=bind, **{"ps": 0, **more})


def test_each_worker_gets_the_cores_of_its_gpu() -> None:
    planned = plan(job(), dgx())
    assert bound(planned) == {
        "worker/0": "0-13,112-125",
        "worker/1": "14-27,126-139",
        "worker/2": "28-41,140-153",
        "worker/3": "42-55,154-167",
        "worker/4": "56-69,168-181",
        "worker/5": "70-83,182-195",
        "worker/6": "84-97,196-209",
        "worker/7": "98-111,210-223",
    }
    first = planned.tasks[0]
    assert {name: first.env[name] for name in first.cores.thread_pools} == {
        "OMP_NUM_THREADS": "14",
        "TF_NUM_INTRAOP_THREADS": "28",
        "TF_NUM_INTEROP_THREADS": "28",
    }
    assert first.to_wire()["cpus"] == first.to_json()["cpus"] == "0-13,112-125"


def test_two_runs_on_one_host_never_meet() -> None:
    one = bound(plan(job(), dgx(), include=("g1:0,1,2",)))
    other = bound(plan(job(workers=1, gpus_per_worker=2), dgx(), include=("g1:3,4",)))
    assert list(one.values()) == ["0-13,112-125", "14-27,126-139", "28-41,140-153"]
    assert other == {"worker/0": "42-69,154-181"}


def test_a_ps_takes_its_part_from_the_workers_beside_it() -> None:
    members = facts("g1", some_gpus("g1", 2), nodes=nodes(9, 9, gpus=((0,), (1,))))
    planned = plan(job(ps=1), members)
    assert bound(planned) == {"ps/0": "3-8", "worker/0": "0-2", "worker/1": "9-17"}
    planned = plan(job(ps=4), members)
    assert sorted(len(task.cpus.split(",")) for task in planned.tasks) == [1] * 6
    everything = [cpu for task in planned.tasks for cpu in cpus(task.cpus)]
    assert sorted(everything) == list(range(18))


def test_a_ps_where_the_run_has_no_gpu_is_not_bound() -> None:
    planned = plan(job(ps=1), dgx(), facts("c2", nodes=nodes(8, 8)))
    assert "ps/0" not in bound(planned)
    assert next(task for task in planned.tasks if task.id.job == "ps").host == "c2"


def test_nodes_without_gpus_go_to_the_nearest_with_some() -> None:
    """An A100 machine whose firmware divides each socket into four nodes: GPUs beside 1 and 3, 5 and 7."""
    ways = [
        {other: 10 if a == other else 12 if a // 4 == other // 4 else 32 for other in range(8)}
        for a in range(8)
    ]
    there = nodes(*[16] * 8, gpus=((), (2, 3), (), (0, 1), (), (6, 7), (), (4, 5)), distances=ways)
    planned = plan(job(), facts("g1", some_gpus("g1", 8), nodes=there))
    sizes = {task: len(cpus(each)) for task, each in bound(planned).items()}
    assert sizes == {f"worker/{number}": 16 for number in range(8)}
    assert {cpu // 64 for cpu in cpus(bound(planned)["worker/0"])} == {0}
    assert {cpu // 64 for cpu in cpus(bound(planned)["worker/7"])} == {1}


def test_mig_instances_share_the_part_of_their_gpu() -> None:
    there = facts("g1", (split("g1", 0, 2), split("g1", 1, 2)), nodes=nodes(4, 4, gpus=((0,), (1,))))
    assert bound(plan(job(), there, mig="")) == {
        "worker/0": "0-1",
        "worker/1": "2-3",
        "worker/2": "4-5",
        "worker/3": "6-7",
    }


def test_one_node_is_left_alone_unless_asked() -> None:
    there = facts("g1", some_gpus("g1", 2), nodes=nodes(8, gpus=((0, 1),)))
    assert bound(plan(job(), there)) == {}
    assert bound(plan(job("none"), dgx())) == {}
    assert bound(plan(job("numa"), there)) == {"worker/0": "0-3", "worker/1": "4-7"}


def test_cores_are_dealt_whole_also_without_gpus() -> None:
    there = facts("c1", nodes=nodes(4, 4))
    assert bound(plan(job("cores", workers=4), there)) == {
        "worker/0": "0-1",
        "worker/1": "2-3",
        "worker/2": "4-5",
        "worker/3": "6-7",
    }
    assert bound(plan(job("cores", workers=1), there)) == {"worker/0": "0-7"}
    assert bound(plan(job("cores", ps=1, workers=2), facts("c1", nodes=nodes(5, 4)))) == {
        "ps/0": "0-1",
        "worker/0": "2-4",
        "worker/1": "5-8",
    }
    two = plan(job("cores"), dgx(), include=("g1:0,4",))
    assert bound(two) == {"worker/0": "0-55,112-167", "worker/1": "56-111,168-223"}


def test_what_cannot_be_bound_is_told() -> None:
    planned = plan(job("cores", workers=3), facts("c1", nodes=nodes(2)), facts("c2"))
    assert bound(planned) == {"worker/0": "0", "worker/2": "1"}
    assert planned.notes == ("c2 does not say which cores it has: no task is bound there",)
    planned = plan(job("cores", workers=3), facts("c1", nodes=nodes(2)))
    assert planned.notes == ("c1 has fewer cores than tasks: no task is bound there",)
    planned = plan(job("numa", workers=1), facts("c1", nodes=nodes(2, 2)))
    assert planned.notes[-1].startswith("no task has GPUs, so --bind numa binds none")


def test_thread_pools_that_the_user_sizes_stay() -> None:
    env = {"TF_NUM_INTEROP_THREADS": "3"}
    planned = plan(
        job(workers=1, env=env), dgx(set_there=("OMP_NUM_THREADS",)), hosts={"g1": {"env": {"A": "1"}}}
    )
    told = planned.tasks[0].env
    assert "OMP_NUM_THREADS" not in told  # the host's own stands
    assert told["TF_NUM_INTEROP_THREADS"] == "3"
    assert told["TF_NUM_INTRAOP_THREADS"] == "28"


def test_thread_pools_are_no_larger_than_a_quota() -> None:
    """Also of tasks that are not bound, where TensorFlow would start a thread for each CPU."""

    def pools(bind: str, quota: float | None, tasks: int) -> set[tuple[str | None, ...]]:
        there = facts("c1", nodes=nodes(8), cores=8, cpu_quota=quota)
        planned = plan(job(bind, workers=tasks), there)
        return {tuple(task.env.get(name) for name in ("OMP_NUM_THREADS", INTRA)) for task in planned.tasks}

    assert pools("auto", 4.0, 1) == {("4", "4")}
    assert pools("auto", 4.0, 2) == {("2", "2")}
    assert pools("auto", 0.5, 1) == {("1", "1")}
    assert pools("auto", 9.5, 1) == pools("auto", None, 1) == pools("none", 4.0, 1) == {(None, None)}
    assert pools("cores", 4.0, 1) == {("4", "4")}
    assert pools("cores", 7.9, 4) == {("1", "1")}
    assert pools("cores", 64.0, 2) == {("4", "4")}


def test_a_quota_counts_as_so_many_cores() -> None:
    """Where hosts are filled, one task for each core."""
    held = facts("c1", nodes=nodes(8), cores=8, cpu_quota=1.5)
    planned = plan(job(workers=6, place="pack"), held, facts("c2", nodes=nodes(8), cores=8))
    assert [task.host for task in planned.tasks] == ["c1", "c1", "c2", "c2", "c2", "c2"]
    assert any("c1 has 2 cores, c2 8" in note for note in planned.notes)


def test_the_nodes_that_memory_comes_from() -> None:
    """Those of a task's cores; where it has none of its own, all of them in turn."""

    def asked_of(memory: str, bind: str = "cores", workers: int = 2) -> dict[str, str]:
        planned = plan(job(bind, workers=workers, memory_policy=memory), facts("c1", nodes=nodes(4, 4)))
        return {str(task.id): task.numactl for task in planned.tasks}

    assert asked_of("membind") == {"worker/0": "--membind=0", "worker/1": "--membind=1"}
    assert asked_of("interleave", workers=1) == {"worker/0": "--interleave=0,1"}
    assert asked_of("interleave", "none", 1) == {"worker/0": "--interleave=0,1"}
    assert asked_of("none") == {"worker/0": "", "worker/1": ""}
    planned = plan(job("cores", workers=1, memory_policy="membind"), facts("c1", nodes=nodes(4)))
    assert planned.tasks[0].to_wire()["numactl"] == "--membind=0"
    planned = plan(job("none", workers=1, memory_policy="membind"), facts("c1", nodes=nodes(4, 4)))
    assert "numactl" not in planned.tasks[0].to_wire()
    assert planned.notes[-1].endswith("does nothing for those: --bind cores binds them")


def test_an_unknown_place_of_a_gpu_binds_nothing_by_itself() -> None:
    there = facts("g1", some_gpus("g1", 2), nodes=nodes(4, 4))  # a virtual machine may not say it
    assert bound(plan(job(), there)) == {}
    assert bound(plan(job("cores"), there)) == {"worker/0": "0-3", "worker/1": "4-7"}


def cpus(text: str) -> list[int]:
    spans = [each.partition("-") for each in text.split(",")]
    return [cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=8),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
    st.sampled_from(["auto", "numa", "cores"]),
)
def test_no_two_tasks_of_a_host_have_a_core_in_common(
    sizes: list[int], homes: list[int], wants: list[int], bind: Any
) -> None:
    beside = tuple(
        tuple(gpu for gpu, home in enumerate(homes) if home % len(sizes) == number)
        for number in range(len(sizes))
    )
    there = facts("g", some_gpus("g", len(homes)), nodes=nodes(*sizes, gpus=beside, threads=2))
    left = list(there.gpus)
    tasks = {}
    for number, want in enumerate(wants):
        tasks[number], left = left[:want], left[want:]
    found = share_out(bind, there, tasks)
    taken = [core for each in found.values() for core in each.cores]
    assert len(taken) == len(set(taken))
    assert set(taken) <= {core for node in there.nodes for core in node.cores}
    assert all(each.cores for each in found.values())
    if bind == "cores" and not left and len(found) == len(tasks) and not any(tasks.values()):
        assert len(taken) == sum(sizes)


@pytest.mark.parametrize(
    ("cores", "text"), [(((0, 64), (1, 65)), "0-1,64-65"), (((3,), (1,)), "1,3"), (((7,),), "7"), ((), "")]
)
def test_cpus_as_the_kernel_lists_them(cores: Any, text: str) -> None:
    assert Cores(cores).cpus == text


def test_a_share_of_cores_is_divided_without_rest() -> None:
    whole = Cores(tuple((number,) for number in range(7)), ("OMP_NUM_THREADS",))
    parts = [whole.part(number, 3) for number in range(3)]
    assert sum((each.cores for each in parts), ()) == whole.cores
    assert all("OMP_NUM_THREADS" not in each.thread_pools for each in parts)
    assert [whole.part(number, 8) for number in range(8)] == [whole] * 8
    assert replace(whole, said=()).thread_pools["OMP_NUM_THREADS"] == "7"
    held = Cores((), (), 5)
    assert [held.part(number, 2).thread_pools["OMP_NUM_THREADS"] for number in range(2)] == ["2", "2"]
    assert held.part(0, 8).most == 1
