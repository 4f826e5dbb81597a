"""Plans to ask for, of hosts that exist in tests alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_choice import GpuChoice, choose
from tflaunch.planning.inventory import (
    Gpu,
    HostFacts,
    MigInstance,
)
from tflaunch.planning.plan import plan_cluster
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import CHIEF, PS, WORKER, GpuCount, JobSpec, Role

PROGRAM = ("trainer.py",)


def asked(
    program: tuple[str, ...] = PROGRAM,
    *,
    ps: int | None = None,
    workers: int | None = None,
    chief: bool = False,
    ps_hosts: str | None = None,
    worker_hosts: str | None = None,
    gpus_per_worker: GpuCount | None = None,
    roles: Mapping[str, Role] | None = None,
    **more: Any,
) -> JobSpec:
    """As `tflaunch run` makes it of the options of these names."""
    usual = {PS: Role(ps, ps_hosts), WORKER: Role(workers, worker_hosts, gpus_per_worker)}
    return JobSpec(program, roles={**usual, **({CHIEF: Role(1)} if chief else {}), **(roles or {})}, **more)


def some_gpus(
    host: str, count: int, busy: Mapping[int, str] | None = None, name: str = "A100"
) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index, f"GPU-{host}-{index}", name, 80 << 30, 0, (busy or {}).get(index, ""))
        for index in range(count)
    )


def split(host: str, index: int, count: int, profile: str = "1g.10gb") -> Gpu:
    """A GPU in MIG mode with so many instances."""
    instances = tuple(
        MigInstance(part, f"MIG-{host}-{index}-{part}", f"A100 MIG {profile}", 10 << 30, 0, gpu=index)
        for part in range(count)
    )
    return Gpu(index, f"GPU-{host}-{index}", "A100", 80 << 30, 0, "MIG", mig_mode=True, mig=instances)


def facts(host: str, gpus: tuple[Gpu, ...] = (), **other: Any) -> HostFacts:
    values: dict[str, Any] = {
        "host": host,
        "hostname": host,
        "boot_id": f"boot-{host}",
        "addresses": (f"10.0.0.{host.lstrip('cghlnopu') or 1}",),
        "python": "3.11.7",
        "cores": 8,
        "memory_bytes": 64 << 30,
        "ports": tuple(range(20000, 20064)),
        "gpus": gpus,
    }
    return HostFacts(**{**values, **other})


def plan(
    job: JobSpec,
    *members: HostFacts,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    addresses: Mapping[str, str] | None = None,
    **choice: Any,
) -> ClusterPlan:
    """Plan on hosts with these facts; `hosts` adds hostfile settings, SSH dials the name unless told."""
    settings = hosts or {}
    listed = tuple(Host(name=one.host, **settings.get(one.host, {})) for one in members)
    dialled = {host.name: "" if host.connection == "local" else host.name for host in listed}
    hostfile = Hostfile("hosts.yaml", listed)
    inventory = choose({one.host: one for one in members}, GpuChoice(**choice), hostfile)
    return plan_cluster(job, hostfile, inventory, {**dialled, **(addresses or {})}, "run")


def places(planned: ClusterPlan) -> dict[str, str]:
    return {str(task.id): task.host for task in planned.tasks}


def refused(job: JobSpec, *members: HostFacts, **settings: Any) -> PlanError:
    with pytest.raises(PlanError) as raised:
        plan(job, *members, **settings)
    return raised.value


BUSY = {0: "processes", 1: "processes", 2: "processes"}


def taken(planned: ClusterPlan) -> list[str]:
    """The GPUs of each worker: `g1:0,1`."""
    return [f"{task.host}:{','.join(task.gpu_labels)}" for task in planned.tasks if task.gpus]
