"""How many GPUs a user may hold, on one host and on all hosts of a run together; pure.

A host's own limit comes with its facts: its agent reads it there, and keeps to it.  The limit over all hosts is the
launcher's, and a courtesy: it counts what the user's other runs hold on the hosts of this run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tflaunch.hosts import Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.planning.gpu_choice import LeftOut, take_nearest
from tflaunch.planning.gpu_supply import free_gpus
from tflaunch.planning.inventory import Gpu, GpuOrInstance, HostFacts, Inventory
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import WORKER, JobSpec
from tflaunch.text.numbers import counted


@dataclass(frozen=True)
class GpuLimit:
    """The most GPUs of one user on all hosts of a run together, and where that is written."""

    most: int
    place: str


def within_hosts(inventory: Inventory, hostfile: Hostfile, own: Mapping[str, int] | None = None) -> Inventory:
    """The inventory in which GPUs beyond a host's own limit are busy, with the limit as the reason.

    `own`: how many GPUs of a host this run has already.
    """
    has = own or {}
    hosts = {host.name: host for host in hostfile.hosts}

    def limited(name: str, facts: HostFacts) -> HostFacts:
        if facts.gpu_limit is None:
            return facts
        try:
            free = free_gpus(hosts[name], facts)
        except PlanError:  # the plan will say so
            free = [gpu for gpu in facts.gpus_or_instances if not gpu.busy]
        taken, _ = take_nearest(free, max(0, facts.gpu_limit - facts.gpus_held - has.get(name, 0)))
        allowed = {gpu.uuid for gpu in taken}
        held = f", and your other runs hold {facts.gpus_held}" if facts.gpus_held else ""
        beyond = LeftOut(f"a user may hold {counted(facts.gpu_limit, 'GPU')} of this host{held}")

        def seen(device: GpuOrInstance) -> str:
            return device.busy or ("" if device.uuid in allowed else beyond)

        def seen_gpu(gpu: Gpu) -> Gpu:
            return replace(
                gpu,
                busy=gpu.busy if gpu.mig else seen(gpu),
                mig=tuple(replace(each, busy=seen(each)) for each in gpu.mig),
            )

        return replace(facts, gpus=tuple(map(seen_gpu, facts.gpus)))

    return {name: limited(name, facts) for name, facts in inventory.items()}


def within(
    limit: GpuLimit | None, job: JobSpec, inventory: Inventory, plan: Callable[[JobSpec], ClusterPlan]
) -> ClusterPlan:
    """The plan of that job, with fewer workers where the user gave no number of them and the limit asks for it.

    Raises PlanError.
    """
    made = plan(job)
    if limit is None:
        return made
    left = left_of(limit, inventory)
    while (taken := _gpus(made)) > left:
        workers = [task for task in made.tasks if task.id.job == WORKER]
        each = max((len(task.gpus) for task in workers), default=0)
        fewer = len(workers) - (-(-(taken - left) // each) if each else 0)
        if job.role(WORKER).count is not None or not each or fewer < 1:
            raise too_many(limit, taken, inventory)
        role = dataclasses.replace(job.role(WORKER), count=fewer)
        made = plan(dataclasses.replace(job, roles={**job.roles, WORKER: role}))
        job_note = f"{counted(fewer, 'worker')}: a user may hold {counted(limit.most, 'GPU')} ({limit.place})"
        made = replace(made, notes=(*made.notes, job_note))
        if _gpus(made) >= taken:
            raise too_many(limit, taken, inventory)
    return made


def left_of(limit: GpuLimit, inventory: Inventory) -> int:
    """How many GPUs the user may still take on these hosts together."""
    return max(0, limit.most - sum(_held(inventory).values()))


def _held(inventory: Inventory) -> dict[str, int]:
    """How many GPUs the user's other runs hold, by host; of two names of one machine, under the first one."""
    machines: dict[object, str] = {}
    for name, facts in inventory.items():
        machines.setdefault((facts.boot_id, tuple(gpu.uuid for gpu in facts.gpus)), name)
    return {name: inventory[name].gpus_held for name in machines.values() if inventory[name].gpus_held}


def at_limits(limit: GpuLimit | None, inventory: Inventory) -> list[tuple[str, str]]:
    """For a run that waits: each limit of which the user's other runs have taken a part, and how much."""
    held = _held(inventory)
    found = []
    if limit is not None and held:
        found.append(
            (f"your limit is {counted(limit.most, 'GPU')},", f"your other runs hold {sum(held.values())}")
        )
    for name, count in held.items():
        if (most := inventory[name].gpu_limit) is not None:
            found.append(
                (f"your limit on {name} is {counted(most, 'GPU')},", f"your other runs hold {count}")
            )
    return found


def _gpus(plan: ClusterPlan) -> int:
    return sum(len(task.gpus) for task in plan.tasks)


def too_many(limit: GpuLimit, taken: int, inventory: Inventory, on_spares: int = 0) -> PlanError:
    """The error for a run that takes more GPUs than the user may still have; so many of them wait on spares."""
    held = _held(inventory)
    there = ", ".join(f"{name} {count}" for name, count in held.items())
    others = f", and your other runs hold {sum(held.values())} ({there})" if held else ""
    left = left_of(limit, inventory)
    waiting = f", {on_spares} of them on spares" if on_spares else ""
    way = f"Ask for {left} at most" if left else "End one of your other runs: tflaunch ps"
    return PlanError(
        f"this run takes {counted(taken, 'GPU')}{waiting}; a user may hold {limit.most}{others} "
        f"(max_gpus_per_user, {limit.place})",
        f"{way}.",
    )
