"""The GPUs that hosts have for the roles of a job, and the errors where they are too few; pure."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tflaunch.gpu_probe import CRASHED, HANGS
from tflaunch.hosts import Host, fold
from tflaunch.planning.cluster_plan import Standing
from tflaunch.planning.gpu_choice import NEEDS_MIG, LeftOut
from tflaunch.planning.gpu_words import not_one_of_it, one_of, repair, short_name, what_keeps_them
from tflaunch.planning.inventory import GpuOrInstance, HostFacts, MigInstance
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import WORKER, GpuCount, JobSpec
from tflaunch.text.numbers import agreeing, counted


@dataclass
class HostCapacity:
    """A host that may take tasks: its facts, the GPUs that it can still give, how many workers it still takes."""

    host: Host
    facts: HostFacts
    free_gpus: list[GpuOrInstance] = field(default_factory=list)  # lowest label first
    room: int | None = None  # for workers; None: no limit
    given: Counter[str] = field(default_factory=Counter)  # GPUs that other roles have got, by job

    def room_for(self, workers: int) -> int:
        """How many workers `slots:` lets it take, if it has GPUs for that many `workers`."""
        return workers if self.host.slots is None else min(workers, self.host.slots)

    def room_of_models(self, per_worker: GpuCount) -> int:
        """How many workers it takes if each gets GPUs of one model only."""
        counts = Counter(gpu.name for gpu in self.free_gpus).values()
        return self.room_for(sum(workers_for(count, per_worker) for count in counts))

    @property
    def bare(self) -> bool:
        """Whether it has no GPU to give, free or busy."""
        return not self.facts.gpus or self.host.gpus in (0, ())

    @property
    def needs_mig(self) -> bool:
        """Whether it has free MIG instances that tasks get with --mig only."""
        return self.host.gpus not in (0, ()) and any(
            isinstance(device.busy, LeftOut) and device.busy == NEEDS_MIG and not device.busy.in_use
            for device in self.facts.gpus_or_instances
        )


def workers_for(gpus: int, per_worker: GpuCount) -> int:
    """For how many workers that many GPUs of one host are enough."""
    return min(1, gpus) if per_worker == "all" else gpus // per_worker


def share_of(capacity: HostCapacity, gpus: GpuCount) -> int:
    """How many GPUs a task gets on that host."""
    return len(capacity.free_gpus) if gpus == "all" else gpus


def gpus_of_worker(asked: GpuCount | None, capacities: Sequence[HostCapacity]) -> GpuCount:
    """How many GPUs a worker gets: what the user asked for, else one where any of these hosts has any, else none."""
    if asked is not None:
        return asked
    with_gpus = [capacity for capacity in capacities if capacity.host.gpus == "auto" and capacity.facts.gpus]
    return 1 if with_gpus or any(capacity.host.gpus not in ("auto", 0, ()) for capacity in capacities) else 0


def check_selected(job: JobSpec, per_worker: GpuCount, capacities: Sequence[HostCapacity]) -> None:
    """Raise PlanError where an option asks for a kind of GPU, and no host of the workers has any for them."""
    said = any(role.gpus for role in job.roles.values()) or job.role(WORKER).gpus is not None
    if per_worker or said or not capacities or not job.selects_gpus:
        return
    there = _by_host((capacity.host.name, _describe_gpus(capacity)) for capacity in capacities)
    raise PlanError(
        f"{job.selects_gpus}: no worker gets a GPU: {there}",
        one_of(
            *_repairs(capacities), "leave that out", "say --gpus-per-worker 0: the workers then run on CPUs"
        ),
    )


def note_silent(capacities: Collection[HostCapacity], notes: list[str]) -> None:
    """Add a note for the hosts whose driver does not say whether they have GPUs, and for GPUs that it cannot ask."""
    notes.extend(
        f"{names}: no GPUs can be seen: {reason}; {repair(reason, names)}"
        for reason, names in _silent(capacities)
    )
    notes.extend(_sick(capacities))


def _unseen(capacity: HostCapacity) -> bool:
    """Whether it may have GPUs, and its driver does not show them."""
    return bool(capacity.facts.gpu_note) and not capacity.facts.gpus and capacity.host.gpus not in (0, ())


def _silent(capacities: Iterable[HostCapacity]) -> list[tuple[str, str]]:
    """Why GPUs cannot be seen, each reason with its hosts."""
    silent: dict[str, list[str]] = defaultdict(list)
    for capacity in capacities:
        if _unseen(capacity):
            silent[capacity.facts.gpu_note].append(capacity.host.name)
    return [(reason, fold(names)) for reason, names in silent.items()]


def _repairs(capacities: Iterable[HostCapacity]) -> list[str]:
    return [repair(reason, names) for reason, names in _silent(capacities)]


def _sick(capacities: Iterable[HostCapacity]) -> list[str]:
    """A note for each GPU that NVML cannot ask, on hosts where it can ask others."""
    return [
        f"{capacity.host.name}: GPU {gpu.label} is left out: {gpu.error}; {repair(gpu.error)}"
        for capacity in capacities
        if capacity.host.gpus not in (0, ())
        for gpu in capacity.facts.gpus
        if any(word in gpu.error for word in (HANGS, CRASHED))
    ]


def deal(capacities: Iterable[HostCapacity], notes: list[str]) -> None:
    """Give each capacity the GPUs that are free and that `gpus:` of its host allows."""
    taken: dict[str, str] = {}  # one machine under two names shows its GPUs twice
    shared: list[str] = []
    for capacity in capacities:
        free = free_gpus(capacity.host, capacity.facts)
        capacity.free_gpus = [
            gpu for gpu in free if taken.setdefault(gpu.uuid, capacity.host.name) == capacity.host.name
        ]
        if len(capacity.free_gpus) < len(free):
            shared.append(capacity.host.name)
    if shared:
        notes.append(
            f"{fold(shared)}: GPUs that an earlier host of the hostfile has, too (the same machine?), are used there "
            "only"
        )


def check_instances(capacities: Iterable[HostCapacity], gpus: GpuCount, option: str, noun: str) -> None:
    """Raise PlanError where a task would get several MIG instances."""
    for capacity in capacities:
        if share_of(capacity, gpus) < 2:
            continue
        if instance := next((gpu for gpu in capacity.free_gpus if isinstance(gpu, MigInstance)), None):
            raise PlanError(
                f"{capacity.host.name}: {instance.label} is a MIG instance, of which a process can use only one",
                f"Leave out {option}; {noun}.",
            )


def make_room(
    capacities: Sequence[HostCapacity], per_worker: GpuCount, notes: list[str], mix: bool = False
) -> None:
    """Set how many workers of `per_worker` GPUs each host takes; `mix`: one worker may get several models."""
    if per_worker == 0:
        for capacity in capacities:
            capacity.room = capacity.host.slots
        return
    check_instances(
        capacities,
        per_worker,
        f"--gpus-per-worker {per_worker}",
        "more workers use more instances: --workers",
    )
    for capacity in capacities:
        whole = mix or per_worker == "all"  # `all` of a host with two models is refused later
        capacity.room = (
            capacity.room_for(workers_for(len(capacity.free_gpus), per_worker))
            if whole
            else capacity.room_of_models(per_worker)
        )
    bare = [capacity.host.name for capacity in capacities if capacity.bare]
    if bare and len(bare) < len(capacities):
        why = agreeing(len(bare), "which has no GPU to give", "which have no GPU to give")
        notes.append(
            Standing(
                f"no worker runs on {fold(bare)}, {why}; to start workers without GPUs: --gpus-per-worker 0"
            )
        )
    if idle := [
        capacity.host.name for capacity in capacities if capacity.needs_mig and not capacity.free_gpus
    ]:
        notes.append(f"{fold(idle)}: no whole GPU is free for workers; to give them MIG instances, add --mig")


def keep_to_one_model(capacities: Sequence[HostCapacity], workers: int, per_worker: GpuCount) -> None:
    """Leave the hosts only GPUs of one model, where one model has enough for all workers.

    Where none has, but each worker can get GPUs of one model, leave the hosts only room for such workers.
    """
    models = [Counter(gpu.name for gpu in capacity.free_gpus) for capacity in capacities]
    for model in dict.fromkeys(gpu.name for capacity in capacities for gpu in capacity.free_gpus):
        rooms = [
            capacity.room_for(workers_for(count[model], per_worker))
            for capacity, count in zip(capacities, models, strict=True)
        ]
        if sum(rooms) >= workers:
            for capacity, room in zip(capacities, rooms, strict=True):
                capacity.free_gpus = [gpu for gpu in capacity.free_gpus if gpu.name == model]
                capacity.room = room
            return
    rooms = [capacity.room_of_models(per_worker) for capacity in capacities]
    if per_worker != "all" and sum(rooms) >= workers:
        for capacity, room in zip(capacities, rooms, strict=True):
            capacity.room = room


def free_gpus(host: Host, facts: HostFacts) -> list[GpuOrInstance]:
    """The GPUs and MIG instances that `gpus:` of the host allows and that are free, lowest label first."""
    there = facts.gpus_or_instances
    free = [gpu for gpu in there if not gpu.busy]
    if host.gpus == "auto" or (facts.gpu_note and not there):  # of a sick driver there is a note
        return free
    if host.gpus_by and (isinstance(host.gpus, int) or any(not _named(want, facts) for want in host.gpus)):
        # A batch job that sees only its own GPUs counts them from 0, whatever their numbers are on the host.
        count = host.gpus if isinstance(host.gpus, int) else len(host.gpus)
        return free[:count] if isinstance(host.gpus, int) or len(there) <= count else _not_those(host, facts)
    if isinstance(host.gpus, int):
        if host.gpus > len(there):
            raise PlanError(
                f"{host.name}: `gpus: {host.gpus}`, but {_count_there(facts)}",
                "Correct `gpus:` in the hostfile, or write `gpus: auto`.",
            )
        return free[: host.gpus]
    named: set[str] = set()
    for want in host.gpus:
        found = _named(want, facts)
        if not found:
            gpus = "".join(f"; {gpu.label}: {gpu.uuid}" for gpu in there)
            raise PlanError(
                f"{host.name}: {_listed(host)} names {want}, but {_count_there(facts)}{gpus}",
                "Correct `gpus:` in the hostfile, or write `gpus: auto`.",
            )
        reasons = [gpu.busy for gpu in found if not isinstance(gpu.busy, LeftOut) or gpu.busy == NEEDS_MIG]
        if reasons and all(reasons):
            hint = "Wait until it is free, or name other GPUs; `gpus: auto` takes those that are free."
            if reasons[0] == NEEDS_MIG:
                labels = ", ".join(gpu.label for gpu in found)
                hint = f"Take its instances with --mig, or name them: {labels}."
            raise PlanError(f"{host.name}: {_listed(host)} names {want}, which is busy: {reasons[0]}", hint)
        named.update(gpu.uuid for gpu in found)
    return [gpu for gpu in free if gpu.uuid in named]


def _listed(host: Host) -> str:
    return host.gpus_by or "`gpus:`"


def _not_those(host: Host, facts: HostFacts) -> list[GpuOrInstance]:
    raise PlanError(
        f"{host.name}: the job has the GPUs {host.gpus_by.partition('=')[2]} there ({host.gpus_by}), but "
        f"{_count_there(facts)}",
        "Name the hosts in a hostfile, with `gpus:` for those that are the job's.",
    )


def _named(want: int | str, facts: HostFacts) -> tuple[GpuOrInstance, ...]:
    """The GPUs that an entry of `gpus:` names on that host: for one in MIG mode, all of its instances."""
    for gpu in facts.gpus:
        if want in (gpu.index, gpu.uuid):
            return gpu.gpus_or_instances
    return tuple(device for device in facts.gpus_or_instances if want in (device.label, device.uuid))


def _count_there(facts: HostFacts) -> str:
    if not facts.gpus and facts.gpu_note:
        return f"no GPUs can be seen: {facts.gpu_note}"
    there = facts.gpus_or_instances
    return f"{counted(len(there), 'GPU')} {agreeing(len(there), 'is', 'are')} there"


def too_few_for(job: str, count: int, gpus: GpuCount, capacities: Sequence[HostCapacity]) -> PlanError:
    """The error for `count` tasks of a job whose GPUs are not all on these hosts."""
    if error := _not_one_of_it(capacities):
        return error
    free = sum(len(capacity.free_gpus) for capacity in capacities)
    there = _by_host((capacity.host.name, _describe_gpus(capacity)) for capacity in capacities)
    if gpus == "all":
        return PlanError(
            f"need {counted(count, 'host')} with a free GPU ({count} {job}, each with all GPUs of its host): {there}",
            one_of(
                *_repairs(capacities),
                f"say how many GPUs one gets: --job-gpus {job}=1",
                "let them go elsewhere: --job-hosts",
            ),
        )
    message = (
        f"need {counted(count * gpus, 'GPU')} ({count} {job} x {gpus}), {free} {agreeing(free, 'is', 'are')}"
    )
    message += f" free: {there}"
    if free >= count * gpus:
        message += "; the GPUs of one task are on one host"
    ways = [f"ask for fewer: --job {job}=N"] if count > 1 else []
    ways += [f"lower --job-gpus {job}"] if gpus > 1 else [f"do without GPUs: --job-gpus {job}=0"]
    return PlanError(message, one_of(*_repairs(capacities), *ways, "let them go elsewhere: --job-hosts"))


def too_few(
    workers: int,
    leading: Sequence[str],
    capacities: Sequence[HostCapacity],
    per_worker: GpuCount,
    places: int,
) -> PlanError:
    """The error for `workers`, and chiefs that are placed as workers, where there are only `places` places."""
    tasks = workers + len(leading)
    who = counted(workers, "worker") if workers else ""
    who = " and ".join(filter(None, [*(f"the {job}" for job in leading), who]))
    ways = [f"ask for {counted(places - len(leading), 'worker')} at most"] if places > len(leading) else []
    if not per_worker:
        slots = _by_host((capacity.host.name, str(capacity.host.slots)) for capacity in capacities)
        message = (
            f"need {counted(tasks, 'slot')} ({who}), {places} {agreeing(places, 'is', 'are')} given: {slots}"
        )
        return PlanError(message + _by_the_job(capacities), one_of(*ways, _more_slots(capacities)))
    if error := _not_one_of_it(capacities):
        return error
    if per_worker == "all":
        gpus = _by_host((capacity.host.name, _describe_gpus(capacity)) for capacity in capacities)
        message = f"need {counted(tasks, 'host')} with a free GPU ({who}, each with all GPUs of its host), "
        message += f"{places} {agreeing(places, 'has', 'have')} one: {gpus}"
        ways = [*_repairs(capacities), *ways]
        return PlanError(message, one_of(*ways, "say how many GPUs one gets: --gpus-per-worker 1"))
    need, free = tasks * per_worker, sum(len(capacity.free_gpus) for capacity in capacities)
    gpus = _by_host((capacity.host.name, _describe_gpus(capacity)) for capacity in capacities)
    each = f"{who} x {per_worker}"
    if not places and (error := _no_host_has(per_worker, capacities, f"{each}: {gpus}")):
        return error
    message = f"need {counted(need, 'GPU')} ({each}), {free} {agreeing(free, 'is', 'are')} free: {gpus}"
    if free >= need:
        message += f"; they hold {counted(places, 'worker')}, since the GPUs of one are on one host"
        if any(len({gpu.name for gpu in capacity.free_gpus}) > 1 for capacity in capacities):
            message += " and of one model (--mix-models)"
        if any(capacity.host.slots is not None for capacity in capacities):
            by = next(
                (capacity.host.slots_by for capacity in capacities if capacity.host.slots_by), "`slots:`"
            )
            message += f" and {by} limits them"
    if (
        instances := [capacity.host.name for capacity in capacities if capacity.needs_mig]
    ) and per_worker == 1:
        ways.append(f"take the MIG instances of {fold(instances)} with --mig")
    if not free and (options := _too_strict(capacities)):
        ways.append(f"leave out {' and '.join(options)}")
    lower = "lower" if per_worker > 1 else "place workers without GPUs:"
    lower += " --gpus-per-worker" if per_worker > 1 else " --gpus-per-worker 0"
    return PlanError(message, one_of(*_repairs(capacities), *ways, lower))


def _too_strict(capacities: Sequence[HostCapacity]) -> list[str]:
    """The options on the kind of GPU without which there would be free ones."""
    why = [device.busy for capacity in capacities for device in capacity.facts.gpus_or_instances]
    found = {
        each.option for each in why if isinstance(each, LeftOut) and not each.in_use and each != NEEDS_MIG
    }
    return sorted(each for each in found if each.startswith(("--mig", "--min-gpu-memory")))


def _not_one_of_it(capacities: Sequence[HostCapacity]) -> PlanError | None:
    return not_one_of_it(
        [(each.host.name, each.facts) for each in capacities if each.host.gpus not in (0, ())]
    )


def _no_host_has(
    per_worker: int, capacities: Sequence[HostCapacity], asked_and_there: str
) -> PlanError | None:
    """The error for workers of which each needs more GPUs than any host has free; None where that is not the reason."""
    most = max(len(capacity.free_gpus) for capacity in capacities)
    if not 0 < most < per_worker:
        return None
    first = [capacity.host.name for capacity in capacities if len(capacity.free_gpus) == most]
    have = agreeing(len(first), "has the most", "have the most")
    return PlanError(
        f"no host has {per_worker} free GPUs for a worker; {fold(first)} {have}: {most} ({asked_and_there})",
        f"Give each worker fewer: --gpus-per-worker {most}.",
    )


def _by_the_job(capacities: Sequence[HostCapacity]) -> str:
    by = dict.fromkeys(capacity.host.slots_by for capacity in capacities if capacity.host.slots_by)
    return f" ({', '.join(by)}: a worker for each task of the job)" if by else ""


def _more_slots(capacities: Sequence[HostCapacity]) -> str:
    by = next((capacity.host.slots_by for capacity in capacities if capacity.host.slots_by), "")
    if by.startswith("SLURM"):
        return "have the job ask for more tasks: --ntasks-per-node"
    return "have the job ask for more processes: mpiprocs, ppn" if by else "raise `slots:`"


def _describe_gpus(capacity: HostCapacity) -> str:
    """`4`, or `1 of 4 (3 busy: processes)`."""
    there = capacity.facts.gpus_or_instances
    if not there:
        return f"none, for they cannot be seen ({capacity.facts.gpu_note})" if _unseen(capacity) else "none"
    why = what_keeps_them(there)
    why += [f"{count} for {job}" for job, count in capacity.given.items()]
    if capacity.host.gpus != "auto":
        listed = capacity.host.gpus if isinstance(capacity.host.gpus, int) else list(capacity.host.gpus)
        why.append(capacity.host.gpus_by or f"`gpus: {listed}`")
    if capacity.host.slots is not None:
        why.append(capacity.host.slots_by or f"`slots: {capacity.host.slots}`")
    count = (
        str(len(capacity.free_gpus))
        if len(capacity.free_gpus) == len(there)
        else f"{len(capacity.free_gpus)} of {len(there)}"
    )
    return f"{count} ({'; '.join(why)})" if why else count


def _by_host(facts: Iterable[tuple[str, str]]) -> str:
    """`gpu[1-3] 4, gpu4 none`: hosts with equal facts folded."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, fact in facts:
        names[fact].append(name)
    return ", ".join(f"{fold(group)} {fact}" for fact, group in names.items())


def mixed(gpus: Sequence[tuple[str, GpuOrInstance]], workers: int, said: bool) -> PlanError | None:
    """The error where these GPUs of workers, each with its host, are of several models; None: they are of one."""
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    counts = Counter(gpu.name for _, gpu in gpus)
    for host, gpu in gpus:
        hosts[gpu.name][host] = None
    if len(counts) < 2:
        return None
    there = ", ".join(f"{count} x {name} ({fold(hosts[name])})" for name, count in counts.most_common())
    who = counted(workers, "worker")
    message = f"{who} would get GPUs of {len(counts)} models: {there}; in step, the slowest sets the pace"
    if said:
        message += f". No one model is enough for {who}"
    first = counts.most_common(1)[0][0]
    ways = [f"take one model: --gpu-model {shlex.quote(short_name(first, counts))}"]
    if any(isinstance(gpu, MigInstance) for _, gpu in gpus):
        ways = [f"take instances of one profile: --mig {short_name(first, counts)}"]
    ways.append("ask for fewer workers: --workers N" if said else "say how many workers: --workers N")
    return PlanError(message, one_of(*ways, "mix them: --mix-models"))
