"""Which hosts of the hostfile a job can use at all, and what absent hosts change; pure.

Patterns always select among all hosts of the hostfile, absent ones included: a plan gets the whole hostfile and the
facts of the hosts that are up.
"""

from __future__ import annotations

from collections.abc import Collection

from tflaunch.hosts import Host, Hostfile, match
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.planning.gpu_choice import GpuChoice, excluded_hosts, not_included
from tflaunch.planning.plan import chiefs_as_workers
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import CHIEF, MASTER, PS, WORKER, JobSpec, Role, deciding


def usable_hosts(job: JobSpec, hostfile: Hostfile, gpus: GpuChoice, spares: str = "") -> tuple[Host, ...]:
    """The hosts on which any task of the job may run, whatever GPUs they have; the others are not dialled.

    Left out are hosts that --exclude names whole, that the patterns of all roles leave out, and that --include does
    not name, unless `gpus: 0` says that they are for tasks without GPUs, or the pattern of such a role selects them.
    `spares`: a pattern of more hosts that are left out.  Raises UsageError when no host is left.
    """
    usable = {name for role in _roles(job) for name in _hosts_for(*role, hostfile, gpus)}
    if not (usable or gpus.include or gpus.exclude):
        return hostfile.hosts  # a job without tasks, which the plan refuses
    if not usable:
        said = [f"--include {each}" for each in gpus.include] + [f"--exclude {each}" for each in gpus.exclude]
        raise UsageError(f"{' '.join(said)}: no host is left for the run", "name others, or fewer")
    if spares:
        usable -= {host.name for host in match(spares, hostfile)}
        if not usable:
            raise UsageError(f"--spares {spares} leaves no host for the run", "name fewer of them")
    return tuple(host for host in hostfile.hosts if host.name in usable)


def asks_gpus(job: JobSpec, host: Host) -> bool:
    """Whether a task of the job could get a GPU of that host: else nobody needs to know whether it has any."""
    chiefs = chiefs_as_workers(job)
    wanted = [job.role(WORKER).gpus != 0] if job.role(WORKER).count != 0 or chiefs else []
    for name in {PS, *job.others}.difference(chiefs):
        gpus = job.role(name).gpus
        as_worker = gpus is None and name in (CHIEF, MASTER)
        wanted.append(job.role(WORKER).gpus != 0 if as_worker else bool(gpus))
    return any(wanted) and host.gpus not in (0, ())


def fewer_workers(
    job: JobSpec, hostfile: Hostfile, gpus: GpuChoice, absent: Collection[str], plan: ClusterPlan
) -> bool:
    """Whether the plan may have fewer workers because hosts are `absent`; never where the user gave their number."""
    return job.role(WORKER).count is None and any(
        host.name in absent for host in _for_workers(job, hostfile, gpus, plan)
    )


def moved(
    job: JobSpec,
    hostfile: Hostfile,
    gpus: GpuChoice,
    *,
    absent: Collection[str],
    plan: ClusterPlan,
    before: ClusterPlan | None,
) -> str:
    """A note where the task that writes checkpoints (the chief or worker/0) is on another host than these; else "".

    `before` is the plan of this run that was carried out before.  Without one, an earlier run may have had that task
    on a host that comes first in the hostfile and is absent.
    """
    here = _first(plan)
    if before is not None:
        there = _first(before)
        if there.host == here.host:
            return ""
        ways = f"{here.id} moves from {there.host} to {here.host}"
        return f"{ways}: it finds no checkpoints that lie on {there.host} alone"
    for host in _for_workers(job, hostfile, gpus, plan, here.id.job):
        if host.name == here.host:
            break
        if host.name in absent:
            return (
                f"{here.id} is on {here.host}; were {host.name} there, it might be on that: it finds no checkpoints of "
                f"earlier runs that lie on {host.name} alone"
            )
    return ""


def _first(plan: ClusterPlan) -> TaskPlan:
    return min(plan.tasks, key=lambda task: deciding(task.id))


def _for_workers(
    job: JobSpec, hostfile: Hostfile, gpus: GpuChoice, plan: ClusterPlan, name: str = WORKER
) -> list[Host]:
    """The hosts on which tasks of job `name` may run: those with GPUs, if its tasks in the plan have GPUs."""
    role = job.role(WORKER) if name in chiefs_as_workers(job) else job.role(name)
    names = _hosts_for(name, role, hostfile, gpus)
    with_gpus = any(task.gpus for task in plan.tasks if task.id.job == name)
    return [
        host for host in hostfile.hosts if host.name in names and not (with_gpus and host.gpus in (0, ()))
    ]


def _roles(job: JobSpec) -> list[tuple[str, Role]]:
    """(name, role) of each role that may have tasks; chiefs that are placed as workers count as workers."""
    as_workers = chiefs_as_workers(job)
    worker, ps = job.role(WORKER), job.role(PS)
    roles = [(WORKER, worker)] if worker.count != 0 or as_workers else []
    roles += [(PS, ps)] if ps.count != 0 else []
    return roles + [(name, role) for name, role in job.others.items() if name not in as_workers]


def _hosts_for(name: str, role: Role, hostfile: Hostfile, gpus: GpuChoice) -> set[str]:
    chosen = {
        host.name for host in (match(role.hosts, hostfile) if role.hosts is not None else hostfile.hosts)
    }
    takes_gpus = role.gpus != 0 if name in (WORKER, CHIEF, MASTER) else bool(role.gpus)
    without_gpus = {host.name for host in hostfile.hosts if host.gpus in (0, ())}
    if takes_gpus or role.hosts is None:
        chosen -= not_included(gpus, hostfile) - without_gpus
    return chosen - excluded_hosts(gpus, hostfile)
