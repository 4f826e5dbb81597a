"""Where every task runs: a pure function from job, hosts and facts to the complete request for every host."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tflaunch.frameworks.table import named
from tflaunch.hosts import Host, Hostfile, match
from tflaunch.lifecycle.states import decisive
from tflaunch.planning.addresses import interfaces, peer_addresses, take_ports
from tflaunch.planning.binding import UNBOUND, Cores, share_out
from tflaunch.planning.cluster_plan import ClusterPlan, Placed, Standing, TaskPlan, on_host
from tflaunch.planning.filling import check as check_placeholders
from tflaunch.planning.gpu_choice import take_nearest
from tflaunch.planning.gpu_supply import (
    HostCapacity,
    check_instances,
    check_selected,
    deal,
    gpus_of_worker,
    keep_to_one_model,
    make_room,
    mixed,
    note_silent,
    share_of,
    too_few,
    too_few_for,
)
from tflaunch.planning.inventory import GpuOrInstance, HostFacts, Inventory
from tflaunch.planning.networks import chosen, nccl_variables
from tflaunch.planning.plan_notes import note
from tflaunch.planning.task_commands import Command, endpoint, flag_names
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import CHIEF, EVALUATOR, MASTER, PS, WORKER, GpuCount, JobSpec, TaskId

WORKERS_PER_PS = 4
# By each agent, before the plan says how many tasks its host gets: 8 GPUs of 7 MIG instances each, and ps for them.
PORTS_HELD = 72


def plan_cluster(
    job: JobSpec, hostfile: Hostfile, inventory: Inventory, addresses: Mapping[str, str], run_id: str
) -> ClusterPlan:
    """Decide everything about every task of `job`, or raise PlanError with the numbers that do not fit.

    Hosts without facts in `inventory` get no task.  `addresses` maps a host to what SSH dials, "" for a local
    one.  Raises UsageError for counts that make no job and for a host pattern that matches nothing.

    GPUs: where any host for workers has GPUs (and its `gpus:` is not 0), every worker gets as many of them as
    its role says, one by default, and hosts without GPUs get no worker, since a job that is half on GPUs and half
    on CPUs is of no use.  0 places workers without GPUs.  The chief is placed as a worker before worker/0, unless
    its role names hosts or GPUs of its own.  A MIG instance counts as a GPU; a task gets one of them at most.
    Other roles that ask for GPUs get theirs before the workers do, on the hosts where the fewest are left.

    Models: where the user gave the number of workers and one model has GPUs for all of them, they get GPUs of that
    model only; of several such models, of the one that comes first on the hosts.  Without a number, workers get all
    GPUs that are free.  A worker gets GPUs of different models only where nothing else would do.

    Counts: there are as many workers as free GPUs hold, or one per host (`slots:` per host where it is given), the
    chief included; ps are one per 4 workers, at least one.

    Places: "spread" gives each host one task per round, in the order of the hostfile; "pack" fills a host (its
    GPUs, else its slots, else its cores) before the next.  Tasks without GPUs, ps first, go to the hosts with the
    fewest tasks, among those to the one with the fewest GPUs.  An evaluator is no part of the cluster: it gets no
    port, and no task dials it.
    """
    _check_counts(job)
    notes: list[str] = list(job.notes)
    capacities = {
        host.name: HostCapacity(host, inventory[host.name])
        for host in hostfile.hosts
        if host.name in inventory
    }
    if not capacities:
        raise PlanError(f"{hostfile.source}: none of {len(hostfile.hosts)} hosts can take a task")
    placed = _place(job, hostfile, capacities, notes)
    used = [capacities[name].host for name in dict.fromkeys(task.host for task in placed)]
    dialled = peer_addresses(used, inventory, addresses, notes)
    network = chosen(job.network, used, inventory, dialled)
    if network is not None:
        dialled = {**dialled, **network.addresses}
    tasks = _task_plans(job, placed, used, inventory, dialled, run_id=run_id)
    note(job, placed, tasks, used, inventory, notes=notes)
    if network is not None and not job.network:
        notes.append(
            Standing(
                f"the tasks dial each other over {network.told}, the fastest network that all their hosts are in; "
                "--network none: by the addresses that SSH has"
            )
        )
    return ClusterPlan(run_id, tasks, tuple(notes), job.choices, network=network.prefix if network else "")


def _place(
    job: JobSpec, hostfile: Hostfile, capacities: Mapping[str, HostCapacity], notes: list[str]
) -> list[Placed]:
    """Every task with its host and its GPUs, by job name and index; raises PlanError where they do not fit."""
    for_workers, per_worker, apart = _shares(job, hostfile, capacities, notes)
    check_selected(job, per_worker, for_workers)
    placed: list[Placed] = []
    for share in apart:
        if share.gpus_each:
            _place_with_gpus(job, share, placed)
    if for_workers:
        make_room(for_workers, per_worker, notes, job.mix_models)
    workers, ps = _counts(job, for_workers, per_worker)
    leading = chiefs_as_workers(job)
    if job.role(WORKER).count is not None and per_worker:
        keep_to_one_model(for_workers, workers + len(leading), per_worker)
    waiting = [TaskId(name, 0) for name in leading] + [TaskId(WORKER, index) for index in range(workers)]
    _place_workers(job, for_workers, waiting, per_worker, placed)
    if not job.mix_models:
        alike = [task for task in placed if task.id.job == WORKER or task.id.job in leading]
        each = [(task.host, gpu) for task in alike for gpu in task.gpus]
        if error := mixed(each, len(alike), job.role(WORKER).count is not None):
            raise error
    for share in apart:
        if not share.gpus_each:
            _place_bare(job, share, ps, placed)
    return sorted(placed, key=lambda task: task.id)


def _task_plans(
    job: JobSpec,
    placed: Sequence[Placed],
    used: Sequence[Host],
    inventory: Inventory,
    dialled: Mapping[str, str],
    *,
    run_id: str,
) -> tuple[TaskPlan, ...]:
    """The complete requests: ports, command and environment of each task that has its place."""
    members = [task for task in placed if task.id.job != EVALUATOR]
    hosts = {host.name: host for host in used}
    taken = take_ports([task.host for task in members], hosts, inventory)
    ports = {task.id: port for task, port in zip(members, taken, strict=True)}
    cluster: dict[str, list[str]] = {}
    for task in members:
        cluster.setdefault(task.id.job, []).append(endpoint(dialled[task.host], ports[task.id]))
    faces = interfaces(dialled, inventory)
    over_network = faces if len(used) > 1 else {}
    command = Command(job, cluster, run_id, faces, dialled)
    framework = named(job.framework)
    cores = _cores(job, placed, inventory)
    tasks = []
    for task in placed:
        host = hosts[task.host]
        mine = cores.get(task.id, UNBOUND)
        uuids = tuple(gpu.uuid for gpu in task.gpus)
        tasks.append(
            TaskPlan(
                id=task.id,
                **on_host(host, job),
                address=dialled[task.host],
                port=ports.get(task.id),
                gpus=uuids,
                gpu_labels=tuple(gpu.label for gpu in task.gpus),
                argv=command.argv(task.id, host),
                env=command.env(
                    task.id,
                    host,
                    uuids,
                    host_variables(
                        inventory[task.host], mine, over_network.get(task.host, "") if uuids else ""
                    ),
                    inventory[task.host].set_there,
                ),
                cores=mine,
                filled=command.filled(task.id, host),
                yielding=command.yielding(task.id, host),
                masked=tuple(sorted(job.masked)),
                listens=(not framework.by_rank or (task.id == command.first and not framework.rendezvous))
                and (job.role(task.id.job).opens_port or command.learns_its_port(task.id, host)),
                shares_port=(framework.shares_port and task.id == command.first)
                or command.is_given_its_port(task.id, host),
            )
        )
    if framework.rendezvous and command.first is not None:
        first = next(task for task in tasks if task.id == command.first)
        if ":" in first.address:
            raise PlanError(
                f"the others dial {first.host} at {first.address}, and {framework.title} knows IPv4 only",
                "give each host an IPv4 address by `address:` in the hostfile",
            )
        tasks = [
            replace(task, rendezvous=_callers(inventory, dialled))
            if task.id == command.first and task.env[framework.rendezvous] == str(task.port)
            else task  # or the user names a rendezvous of their own
            for task in tasks
        ]
    return tuple(tasks)


def host_variables(facts: HostFacts, cores: Cores, interface: str) -> dict[str, str]:
    """The variables of a task that its host decides.

    `interface` is the one by which its peers reach it, "" where they are on this host, too, or it has no GPUs.
    """
    return {**cores.thread_pools, **(nccl_variables(facts, interface) if interface else {})}


def _cores(job: JobSpec, placed: Sequence[Placed], inventory: Inventory) -> dict[TaskId, Cores]:
    """The cores of each task that is bound to some."""
    by_host: dict[str, dict[TaskId, tuple[GpuOrInstance, ...]]] = defaultdict(dict)
    for task in placed:
        by_host[task.host][task.id] = task.gpus
    found: dict[TaskId, Cores] = {}
    for host, tasks in by_host.items():
        found |= share_out(job.bind, inventory[host], tasks, job.memory_policy)
    return found


def _callers(inventory: Inventory, dialled: Mapping[str, str]) -> tuple[str, ...]:
    """All addresses from which tasks of the run, or of its spares, may call."""
    return tuple(
        sorted({*dialled.values(), *(each for facts in inventory.values() for each in facts.addresses)})
    )


def places(
    job: JobSpec, hostfile: Hostfile, inventory: Inventory, notes: list[str]
) -> list[tuple[Host, tuple[GpuOrInstance, ...]]]:
    """All places that are free now for trials of a sweep, which do not talk to each other; each with its GPUs.

    Without GPUs and `slots:`, a host has one place.  Each host gives one in turn.  Raises PlanError where none is free.
    """
    there = {
        host.name: HostCapacity(host, inventory[host.name])
        for host in hostfile.hosts
        if host.name in inventory
    }
    capacities, per_worker, _ = _shares(job, hostfile, there, notes)
    check_selected(job, per_worker, capacities)
    make_room(capacities, per_worker, notes)
    rooms = [1 if capacity.room is None else capacity.room for capacity in capacities]
    if not any(rooms):
        raise too_few(1, (), capacities, per_worker, 0)
    found = []
    for turn in range(max(rooms)):
        for capacity, room in zip(capacities, rooms, strict=True):
            if turn < room:
                mine, capacity.free_gpus = take_nearest(capacity.free_gpus, share_of(capacity, per_worker))
                found.append((capacity.host, mine))
    return found


def usable_gpus(job: JobSpec, hostfile: Hostfile, inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """For each host the UUIDs of the GPUs that its tasks could be given: the plan takes from these only."""
    capacities = {}
    for host in hostfile.hosts:
        if host.name in inventory:
            any_of_them = isinstance(host.gpus, int) and host.gpus > 0  # `gpus: 2` are any two
            capacities[host.name] = HostCapacity(
                replace(host, gpus="auto") if any_of_them else host, inventory[host.name]
            )
    for_workers, per_worker, apart = _shares(job, hostfile, capacities, [])
    if per_worker:
        make_room(for_workers, per_worker, [], job.mix_models)
    uses = {capacity.host.name for capacity in for_workers if per_worker and capacity.room}
    for share in apart:
        uses |= {
            capacity.host.name
            for capacity in share.capacities
            if 0 < share_of(capacity, share.gpus_each) <= len(capacity.free_gpus)
        }
    return {
        name: tuple(gpu.uuid for gpu in capacities[name].free_gpus) for name in capacities if name in uses
    }


def ports_wanted(job: JobSpec, hostfile: Hostfile, usable: Collection[Host] | None = None) -> int:
    """How many ports each agent should hold before the plan is known: enough for the fullest of the `usable` hosts.

    Raises UsageError for what can be refused before any host is asked.
    """
    _check_counts(job)
    flag_names(job)
    check_placeholders(job, hostfile)
    names = {host.name for host in (hostfile.hosts if usable is None else usable)}

    def fullest(count: int, pattern: str | None) -> int:
        """How many of `count` tasks one host may get at most."""
        hosts = {host.name for host in match(pattern, hostfile)} & names if pattern is not None else names
        return count if job.place == "pack" else -(-count // max(1, len(hosts)))

    leading = chiefs_as_workers(job)
    apart = {name: role for name, role in job.others.items() if name not in (*leading, EVALUATOR)}
    others = sum(fullest(role.count or 0, role.hosts) for role in apart.values())
    slots = max((host.slots or 0 for host in hostfile.hosts), default=0)
    counted, ps = job.role(WORKER).count, job.role(PS).count
    if counted is None:  # as many as there are GPUs
        return max(PORTS_HELD, len(leading) + slots + (_default_ps(slots) if ps is None else ps)) + others
    workers, ps = counted + len(leading), _default_ps(counted) if ps is None else ps
    everything = max(1, workers + ps)
    if job.place == "pack" or slots:  # then one host may get all of them
        return everything + others
    most = fullest(workers, job.role(WORKER).hosts) + fullest(ps, job.role(PS).hosts)
    return min(everything, max(PORTS_HELD, most)) + others


@dataclass(frozen=True)
class _Share:
    """What a role asks for, if its tasks are placed apart from the workers."""

    job: str
    count: int | None  # None (only ps): by the number of workers
    gpus_each: GpuCount
    capacities: Sequence[HostCapacity]  # where it may go


def chiefs_as_workers(job: JobSpec) -> list[str]:
    """The chiefs (`chief`, `master`) that are placed in one go with the workers."""
    worker = job.role(WORKER)
    return [
        name
        for name, role in job.others.items()
        if name in (CHIEF, MASTER) and role.hosts in (None, worker.hosts) and role.gpus in (None, worker.gpus)
    ]


def _shares(
    job: JobSpec, hostfile: Hostfile, capacities: Mapping[str, HostCapacity], notes: list[str]
) -> tuple[list[HostCapacity], GpuCount, list[_Share]]:
    """Return (hosts for workers, GPUs of each worker, the other roles); deals every host its free GPUs."""

    def chosen(pattern: str | None) -> list[HostCapacity]:
        if pattern is None:
            return list(capacities.values())
        names = {host.name for host in match(pattern, hostfile)}
        found = [capacity for name, capacity in capacities.items() if name in names]
        if not found:
            raise PlanError(
                f"{hostfile.source}: none of the hosts of {pattern!r} can take a task",
                "they are left out by another option, or cannot be reached",
            )
        return found

    worker, leading = job.role(WORKER), chiefs_as_workers(job)
    for_workers = chosen(worker.hosts) if worker.count != 0 or leading else []
    per_worker = gpus_of_worker(worker.gpus, for_workers)
    if per_worker and worker.gpus is None and job.whole_host:
        per_worker = "all"
    roles = {name: role for name, role in job.others.items() if name not in leading}
    apart = []
    for name in sorted({*roles, PS}, key=lambda name: (name not in (CHIEF, MASTER), name != PS, name)):
        role = job.role(name)
        each = per_worker if role.gpus is None and name in (CHIEF, MASTER) else role.gpus or 0
        apart.append(_Share(name, role.count, each, chosen(role.hosts)))
    with_gpus = [share for share in apart if share.gpus_each]
    holders = {capacity.host.name for share in with_gpus for capacity in share.capacities}
    of_workers = {capacity.host.name for capacity in for_workers}
    note_silent([capacity for name, capacity in capacities.items() if name in holders | of_workers], notes)
    if per_worker:
        holders |= of_workers
    deal([capacity for name, capacity in capacities.items() if name in holders], notes)
    for share in with_gpus:
        check_instances(
            share.capacities,
            share.gpus_each,
            f"--job-gpus {share.job}={share.gpus_each}",
            "one is all it gets",
        )
    return for_workers, per_worker, apart


def _check_counts(job: JobSpec) -> None:
    options = {PS: "--ps ", WORKER: "--workers "}
    for name, role in job.roles.items():
        for option, count in (
            (options.get(name, f"--job {name}="), role.count),
            ("--gpus-per-worker " if name == WORKER else f"--job-gpus {name}=", role.gpus),
        ):
            if isinstance(count, int) and count < 0:
                raise UsageError(f"{option}{count}: a count cannot be negative")
        if name in (CHIEF, MASTER) and (role.count or 0) > 1:
            raise UsageError(f"--job {name}={role.count}: a cluster has one {name}", f"Say --job {name}=1.")
    ps, worker = job.role(PS), job.role(WORKER)
    if ps.gpus and ps.count is None:
        raise UsageError(f"--job-gpus {PS}={ps.gpus}: how many ps there are is not known", "Say --ps N, too.")
    named = {PS: ps, WORKER: worker, **job.others}
    if all(role.count == 0 for role in named.values()):
        raise UsageError("--workers 0 --ps 0 leaves nothing to run", "Ask for at least one task.")
    living = {TaskId(name, 0): "" for name, role in named.items() if role.count != 0}
    ends = {name: role.end for name, role in job.roles.items() if role.end}
    if job.done in ("workers", "chief") and not decisive(living, job.done, ends) & living.keys():
        raise UsageError(
            f"--workers 0: there is no worker whose end would end the run (--done {job.done})",
            "Add --chief, or say when ps alone are done: --done all or --done never.",
        )


def _default_ps(workers: int) -> int:
    return max(1, workers // WORKERS_PER_PS)


def _counts(job: JobSpec, capacities: Sequence[HostCapacity], per_worker: GpuCount) -> tuple[int, int]:
    """Return (number of workers without the chief, number of ps); raises PlanError where the workers do not fit."""
    places = sum(1 if capacity.room is None else capacity.room for capacity in capacities)
    bounded = all(capacity.room is not None for capacity in capacities)
    leading, workers = chiefs_as_workers(job), job.role(WORKER).count
    asked = max(0, 1 - len(leading)) if workers is None else workers
    if bounded and asked + len(leading) > places:
        raise too_few(asked, leading, capacities, per_worker, places)
    if workers is None:
        workers = max(places - len(leading), 0 if bounded else 1)
    ps = job.role(PS).count
    return workers, _default_ps(workers) if ps is None else ps


# --- places ----------------------------------------------------------------------------------------------


def _place_with_gpus(job: JobSpec, share: _Share, placed: list[Placed]) -> None:
    """Place each task where the fewest GPUs are left, so that workers find many together; of equals, the last."""
    before = [list(capacity.free_gpus) for capacity in share.capacities]
    mine: Counter[str] = Counter()
    for index in range(share.count or 0):
        fits = [
            (mine[capacity.host.name] if job.place == "spread" else 0, len(capacity.free_gpus), -order)
            for order, capacity in enumerate(share.capacities)
            if len(capacity.free_gpus) >= max(1, share_of(capacity, share.gpus_each))
        ]
        if not fits:
            for capacity, free in zip(share.capacities, before, strict=True):
                capacity.free_gpus = free
                del capacity.given[share.job]
            raise too_few_for(share.job, share.count or 0, share.gpus_each, share.capacities)
        capacity = share.capacities[-min(fits)[-1]]
        gpus, capacity.free_gpus = take_nearest(capacity.free_gpus, share_of(capacity, share.gpus_each))
        capacity.given[share.job] += len(gpus)
        mine[capacity.host.name] += 1
        placed.append(Placed(TaskId(share.job, index), capacity.host.name, gpus))


def _place_workers(
    job: JobSpec,
    capacities: Sequence[HostCapacity],
    tasks: Sequence[TaskId],
    per_worker: GpuCount,
    placed: list[Placed],
) -> None:
    waiting = list(reversed(tasks))
    while waiting:
        before = len(waiting)
        for capacity in capacities:
            # One round of "pack" fills the host; without GPUs and slots, a full host has a task per core.
            turn = 1 if job.place == "spread" else max(1, capacity.facts.usable_cores)
            if capacity.room is not None:
                turn = capacity.room if job.place == "pack" else min(turn, capacity.room)
                capacity.room -= min(turn, len(waiting))
            for _ in range(min(turn, len(waiting))):
                mine, capacity.free_gpus = take_nearest(capacity.free_gpus, share_of(capacity, per_worker))
                placed.append(Placed(waiting.pop(), capacity.host.name, mine))
        assert len(waiting) < before, "the counts were checked against the room"  # noqa: S101


def _place_bare(job: JobSpec, share: _Share, ps: int, placed: list[Placed]) -> None:
    wanted = ps if share.count is None else share.count
    tasks = Counter(task.host for task in placed)
    queue = [
        (tasks[capacity.host.name], len(capacity.facts.gpus), order, capacity)
        for order, capacity in enumerate(share.capacities)
    ]
    heapq.heapify(queue)
    index = 0
    while index < wanted:
        count, there, order, capacity = heapq.heappop(queue)
        turn = 1 if job.place == "spread" else max(1, capacity.facts.usable_cores - count)
        turn = min(turn, wanted - index)
        placed.extend(Placed(TaskId(share.job, index + i), capacity.host.name) for i in range(turn))
        index += turn
        heapq.heappush(queue, (count + turn, there, order, capacity))
