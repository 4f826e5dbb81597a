"""Which hosts a job can use at all, and what is said when the chief or worker/0 is not where it may have been."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from tests.support.planned import PROGRAM, asked, facts, some_gpus
from tflaunch.hosts import Host, Hostfile
from tflaunch.launch.roll_call import as_counted
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_choice import GpuChoice
from tflaunch.planning.plan import plan_cluster, ports_wanted
from tflaunch.planning.usable_hosts import fewer_workers, moved, usable_hosts
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import JobSpec, Role

FOUR = Hostfile("hosts.yaml", tuple(Host(f"gpu0{n}") for n in range(1, 5)))
WITH_CPU = Hostfile("hosts.yaml", (*FOUR.hosts, Host("cpu01", gpus=0)))


def usable(job: JobSpec, hostfile: Hostfile = FOUR, spares: str = "", **choice: Any) -> str:
    names = [host.name for host in usable_hosts(job, hostfile, GpuChoice(**choice), spares)]
    return " ".join(name.replace("gpu0", "") for name in names)


def planned(job: JobSpec, there: Collection[int], hostfile: Hostfile = FOUR, each: int = 0) -> ClusterPlan:
    """The plan on those of the hosts that are there, each with so many GPUs."""
    inventory = {f"gpu0{n}": facts(f"gpu0{n}", some_gpus(f"gpu0{n}", each)) for n in there}
    return plan_cluster(job, hostfile, inventory, {name: name for name in inventory}, "run")


@pytest.mark.parametrize(
    ("job", "choice", "left"),
    [
        (asked(), {}, "1 2 3 4"),
        (asked(worker_hosts="gpu0[1-2]"), {}, "1 2 3 4"),  # a ps may go anywhere
        (asked(ps=0, worker_hosts="gpu0[1-2]"), {}, "1 2"),
        (asked(worker_hosts="gpu0[1-2]", ps_hosts="gpu04"), {}, "1 2 4"),
        (asked(ps_hosts="gpu04"), {}, "1 2 3 4"),
        (asked(ps=0, worker_hosts="gpu01", roles={"data": Role(1, "gpu03")}), {}, "1 3"),
        (asked(ps=0, worker_hosts="gpu01", roles={"data": Role(0, "gpu03")}), {}, "1"),
        (asked(ps=0, worker_hosts="gpu01", roles={"evaluator": Role(1)}), {}, "1 2 3 4"),
        (asked(ps=0, worker_hosts="gpu0[1-2]", chief=True), {}, "1 2"),  # the chief is placed as a worker
        (asked(ps=0, workers=0, chief=True, worker_hosts="gpu02"), {}, "2"),
        (asked(ps=0, worker_hosts="gpu02", roles={"chief": Role(1, "gpu01")}), {}, "1 2"),
        (asked(), {"exclude": ("gpu03",)}, "1 2 4"),
        (asked(), {"exclude": ("gpu03:0,1",)}, "1 2 3 4"),
        (asked(), {"exclude": ("gpu03:0", "gpu03")}, "1 2 4"),
        (asked(ps_hosts="gpu0*"), {"exclude": ("gpu0[3-4]",)}, "1 2"),
        (asked(), {"include": ("gpu01", "gpu02:0")}, "1 2"),
        (asked(ps_hosts="gpu04"), {"include": ("gpu01",)}, "1 4"),  # it needs no GPU
        (asked(ps=0, worker_hosts="gpu0[1-3]"), {"include": ("gpu01",)}, "1"),
        (asked(ps=0, gpus_per_worker=0, worker_hosts="gpu0[1-3]"), {"include": ("gpu01",)}, "1 2 3"),
        (asked(roles={"data": Role(1, "gpu03", 1)}), {"include": ("gpu01",)}, "1"),
    ],
)
def test_hosts_that_no_task_can_run_on_are_left_out(job: JobSpec, choice: Any, left: str) -> None:
    assert usable(job, **choice) == left


def test_include_of_gpus_says_nothing_of_hosts_that_have_none() -> None:
    assert usable(asked(), WITH_CPU, include=("gpu01",)) == "1 cpu01"
    assert usable(asked(), WITH_CPU, include=("gpu01",), exclude=("cpu01",)) == "1"


def test_spares_are_left_out_after_all_patterns_were_read() -> None:
    assert usable(asked(ps=0, worker_hosts="gpu0[2-4]"), spares="gpu04") == "2 3"
    assert usable(asked(), spares="gpu04", exclude=("gpu04",)) == "1 2 3"


def test_options_that_leave_no_host_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--exclude gpu0\*: no host is left for the run"):
        usable(asked(), exclude=("gpu0*",))
    with pytest.raises(UsageError, match=r"--spares gpu0\[1-4\] leaves no host for the run"):
        usable(asked(), spares="gpu0[1-4]")


@pytest.mark.parametrize(
    "job",
    [
        asked(ps=0, workers=2, worker_hosts="gpu0[1-3]"),
        asked(ps=1, workers=1, worker_hosts="gpu0[2-3]", ps_hosts="gpu0[1-2]"),
        asked(ps=0, workers=1, worker_hosts="gpu03", roles={"data": Role(1, "gpu0[1-2]")}),
    ],
)
def test_patterns_keep_their_meaning_while_a_host_is_away(job: JobSpec) -> None:
    assert {task.host for task in planned(job, [1, 3, 4]).tasks} == {"gpu01", "gpu03"}


def test_a_role_whose_hosts_are_all_away_does_not_fit() -> None:
    with pytest.raises(PlanError, match="none of the hosts of 'gpu02' can take a task"):
        planned(asked(ps=0, worker_hosts="gpu02"), [1, 3])


def test_ports_are_held_for_the_tasks_of_the_hosts_that_are_used() -> None:
    job = asked(ps=0, workers=400, worker_hosts="gpu0[1-4]")
    assert ports_wanted(job, FOUR) == 100
    assert ports_wanted(job, FOUR, FOUR.hosts[:2]) == 200


def test_only_hosts_for_workers_that_nobody_counted_make_them_fewer() -> None:
    def fewer(job: JobSpec, absent: str, hostfile: Hostfile = FOUR, each: int = 1, **choice: Any) -> bool:
        return fewer_workers(
            job, hostfile, GpuChoice(**choice), [absent], planned(job, [1, 2], hostfile, each)
        )

    assert fewer(asked(PROGRAM), "gpu03")
    assert not fewer(asked(PROGRAM, workers=2), "gpu03")
    assert not fewer(asked(PROGRAM, worker_hosts="gpu0[1-2]"), "gpu03")
    assert not fewer(asked(PROGRAM, ps_hosts="gpu03,gpu01"), "gpu03", exclude=("gpu03",))
    assert not fewer(asked(PROGRAM), "cpu01", WITH_CPU)  # workers are where GPUs are
    assert fewer(asked(PROGRAM), "cpu01", WITH_CPU, each=0)


def test_as_many_tasks_as_before() -> None:
    before = planned(asked(), [1, 2, 3], each=2)
    job = as_counted(asked(worker_hosts="gpu0[1-4]"), before)
    assert (job.count("worker"), job.count("ps")) == (6, 1)
    assert job.role("worker").hosts == "gpu0[1-4]"
    counted = asked(ps=0, workers=2)
    assert as_counted(counted, before) == counted


def where(job: JobSpec, there: Collection[int], *absent: str, before: ClusterPlan | None = None) -> str:
    plan = planned(job, there, each=1)
    return moved(job, FOUR, GpuChoice(), absent=absent, plan=plan, before=before)


def test_it_is_said_when_the_writer_of_checkpoints_may_not_be_where_they_lie() -> None:
    two = asked(ps=0, workers=2)
    assert where(two, [2, 3], "gpu01") == (
        "worker/0 is on gpu02; were gpu01 there, it might be on that: it finds no checkpoints of earlier runs that lie "
        "on gpu01 alone"
    )
    assert where(two, [1, 2], "gpu03", "gpu04") == ""
    assert where(asked(ps=0, workers=1, chief=True), [2, 3], "gpu01").startswith("chief/0 is on gpu02;")
    assert where(asked(ps=0, workers=2, worker_hosts="gpu0[2-4]"), [2, 3], "gpu01") == ""


def test_it_is_said_when_a_new_plan_moves_the_writer_of_checkpoints() -> None:
    two = asked(ps=0, workers=2)
    before = planned(two, [1, 2], each=1)
    assert where(two, [2, 3], before=before) == (
        "worker/0 moves from gpu01 to gpu02: it finds no checkpoints that lie on gpu01 alone"
    )
    assert where(two, [1, 3], before=before) == ""
