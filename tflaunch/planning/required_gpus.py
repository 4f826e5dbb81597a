"""`--require-gpu`, before anything starts: whether the plan gives GPUs at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import CHIEF, MASTER, WORKER
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.planning.inventory import HostFacts, Inventory

TRAINERS = (CHIEF, MASTER, WORKER)
HOSTS_SHOWN = 4


def check_required(plan: ClusterPlan, inventory: Inventory) -> None:
    """Raise PlanError if no task of the plan has a GPU, or if only some tasks of one job have."""
    having = [task for task in plan.tasks if task.gpus]
    if not having:
        raise PlanError(f"--require-gpu: no task gets a GPU: {_there(inventory)}", _way_out(plan, inventory))
    for job in TRAINERS:
        tasks = [task for task in plan.tasks if task.id.job == job]
        without = [f"{task.id} on {task.host}" for task in tasks if not task.gpus]
        if without and len(without) < len(tasks):
            raise PlanError(
                f"--require-gpu: {len(without)} of {counted(len(tasks), job)} get no GPU: {', '.join(without[:4])}",
                "ask for fewer, or leave --require-gpu out",
            )


def _there(inventory: Mapping[str, HostFacts]) -> str:
    shown = [f"{name}: {_count(facts)}" for name, facts in list(inventory.items())[:HOSTS_SHOWN]]
    more = [f"and {len(inventory) - HOSTS_SHOWN} more hosts"] if len(inventory) > HOSTS_SHOWN else []
    return ", ".join([*shown, *more])


def _count(facts: HostFacts) -> str:
    if facts.gpus or not facts.gpu_note:
        return counted(len(facts.gpus_or_instances), "GPU")
    return f"0 GPUs ({facts.gpu_note})"


def _way_out(plan: ClusterPlan, inventory: Inventory) -> str:
    """The next step that does not lead back here."""
    hosts = dict.fromkeys(_hosts_of_trainers(plan))
    if any(inventory[host].gpus_or_instances for host in hosts if host in inventory):
        return "the GPUs are there, but the job or the hostfile asks for none: --gpus-per-worker 1, and no `gpus: 0`"
    if any(facts.gpus_or_instances for facts in inventory.values()):
        return "let the workers run on the hosts that have GPUs: --worker-hosts"
    if any(facts.gpu_note for facts in inventory.values()):
        return "mend the driver there (nvidia-smi says the same), or leave --require-gpu out"
    return "name hosts that have GPUs, or leave --require-gpu out: the job then runs on CPUs"


def _hosts_of_trainers(plan: ClusterPlan) -> Iterable[str]:
    return [task.host for task in plan.tasks if task.id.job in TRAINERS]
