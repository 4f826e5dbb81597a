"""What the plan of a run tells beside where its tasks are: what may be meant otherwise, or makes it slow; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from tflaunch.hosts import Host, fold
from tflaunch.planning.binding import why_unbound
from tflaunch.planning.cluster_plan import Placed, Standing, TaskPlan
from tflaunch.planning.inventory import Inventory
from tflaunch.protocol.job import CHIEF, MASTER, PS, WORKER, JobSpec
from tflaunch.text.numbers import agreeing

UNLIKE = 2  # one host has so many times the cores or the memory of another: worth a note


def note(
    job: JobSpec,
    placed: Sequence[Placed],
    tasks: Sequence[TaskPlan],
    used: Sequence[Host],
    inventory: Inventory,
    *,
    notes: list[str],
) -> None:
    """Add them to `notes`; `tasks` are those of `placed`, and `used` the hosts where they are."""
    _note_alone(job, placed, notes)
    _note_models(job, placed, notes)
    _note_collectives(job, placed, notes)
    _note_proxies(job, used, inventory, notes)
    _note_unbound(job, tasks, inventory, notes)
    note_memory(job, [task.host for task in tasks if not task.numactl], notes)
    _note_machines(placed, inventory, notes)


def _note_alone(job: JobSpec, placed: Sequence[Placed], notes: list[str]) -> None:
    jobs = Counter(task.id.job for task in placed)
    workers = sum(jobs[name] for name in (WORKER, CHIEF, MASTER))
    if job.alone and workers > 1:
        ps = ", and each ps," if jobs[PS] else ""
        words = "--workers 1 --ps 0" + (" --gpus-per-worker all" if job.whole_host else "")
        words += " --no-flags" if job.flags is not None else ""
        notes.append(
            f"each of {workers} workers{ps} trains alone: {job.alone}; to start only one, add {words}"
        )


def _note_models(job: JobSpec, placed: Sequence[Placed], notes: list[str]) -> None:
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    gpus: Counter[str] = Counter()
    for task in placed:
        for gpu in task.gpus if task.id.job in (WORKER, CHIEF, MASTER) else ():
            hosts[gpu.name][task.host] = None
            gpus[gpu.name] += 1
    if len(gpus) > 1:
        models = ", ".join(f"{count} x {name} ({fold(hosts[name])})" for name, count in gpus.most_common())
        why = "" if job.role(WORKER).count is None else ", since no one model is enough"
        notes.append(
            f"the workers get GPUs of different models{why}: {models}; "
            "where they train in step, all wait for the slowest"
        )


def _note_collectives(job: JobSpec, placed: Sequence[Placed], notes: list[str]) -> None:
    """Where NCCL could move the gradients of MultiWorkerMirroredStrategy and is not asked, or is asked and cannot."""
    workers = [task for task in placed if task.id.job in (WORKER, CHIEF, MASTER)]
    bare = [str(task.id) for task in workers if not task.gpus]
    if job.collectives == "nccl" and bare:
        has = agreeing(len(bare), "has no GPU", "have no GPUs")
        notes.append(
            f"{job.collectives_at}, and {', '.join(bare)} {has}: there CommunicationImplementation.RING is needed"
        )
    elif job.collectives == "auto" and len(workers) > 1 and not bare:
        notes.append(
            f"{job.collectives_at}, which moves gradients by gRPC unless the program asks for NCCL. All workers have "
            "GPUs: communication_options=tf.distribute.experimental.CommunicationOptions(implementation="
            "tf.distribute.experimental.CommunicationImplementation.NCCL)"
        )


def _note_unbound(job: JobSpec, tasks: Sequence[TaskPlan], inventory: Inventory, notes: list[str]) -> None:
    """Where --bind was given and binds no task of a host."""
    if job.bind in ("auto", "none"):
        return
    by_host: dict[str, list[TaskPlan]] = defaultdict(list)
    for task in tasks:
        by_host[task.host].append(task)
    if not any(task.gpus for task in tasks) and job.bind == "numa":
        notes.append(
            "no task has GPUs, so --bind numa binds none; --bind cores binds tasks without GPUs, too"
        )
        return
    whys: dict[str, list[str]] = defaultdict(list)
    for host, mine in by_host.items():
        why = why_unbound(job.bind, inventory[host], sum(len(task.gpus) for task in mine))
        if why and not any(task.cpus for task in mine):
            whys[why].append(host)
    notes.extend(f"{fold(hosts)} {why}: no task is bound there" for why, hosts in whys.items())


def note_memory(job: JobSpec, hosts: Sequence[str], notes: list[str]) -> None:
    """On these hosts a task, or trial, is to have memory of the nodes of its cores, and has none of its own."""
    if job.memory_policy == "membind" and hosts:
        notes.append(
            f"on {fold(dict.fromkeys(hosts))} not all tasks are bound to cores, so --memory-policy membind does "
            "nothing for those" + ("" if job.bind == "cores" else ": --bind cores binds them")
        )


def _note_machines(placed: Sequence[Placed], inventory: Inventory, notes: list[str]) -> None:
    """Hosts of workers of which one has much fewer cores, or less memory, than another.

    Of workers with GPUs, whose number goes by the GPUs, that is for each.  Models that differ have a note of their own.
    """
    working = [task for task in placed if task.id.job in (WORKER, CHIEF, MASTER)]
    models = {gpu.name for task in working for gpu in task.gpus}
    if len(models) > 1:
        return
    with_gpus = bool(models)
    sharing = {
        host: count if with_gpus else 1 for host, count in Counter(task.host for task in working).items()
    }
    each = " for each worker" if with_gpus else ""
    there = {
        "cores" + each: {host: inventory[host].usable_cores // count for host, count in sharing.items()},
        "GiB of memory" + each: {
            host: (inventory[host].memory_bytes >> 30) // count for host, count in sharing.items()
        },
    }
    for what, amounts in there.items():
        least, most = min(amounts.values(), default=0), max(amounts.values(), default=0)
        if least and most >= UNLIKE * least:
            few = fold(host for host, amount in amounts.items() if amount == least)
            many = fold(host for host, amount in amounts.items() if amount == most)
            notes.append(
                Standing(
                    f"{few} has {least} {what}, {many} {most}; where workers train in step, all wait for the slowest"
                )
            )


def _note_proxies(job: JobSpec, used: Sequence[Host], inventory: Inventory, notes: list[str]) -> None:
    hosts: dict[str, list[str]] = defaultdict(list)
    for host in used:
        if "no_grpc_proxy" not in {**host.env, **job.env}:
            for variable in inventory[host.name].proxies:
                hosts[variable].append(host.name)
    if hosts:
        found = ", ".join(f"{variable} ({fold(names)})" for variable, names in sorted(hosts.items()))
        notes.append(
            Standing(
                f"proxies are set: {found}; tasks talk to each other without them: tflaunch sets no_grpc_proxy"
            )
        )
