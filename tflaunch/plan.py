"""Where every task runs: a pure function from job, hosts and facts to the complete request for every host."""

from __future__ import annotations

import heapq
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tflaunch.command import Command, endpoint, flag_names
from tflaunch.errors import PlanError, UsageError
from tflaunch.gpu_choice import NEEDS_MIG, LeftOut, take_nearest
from tflaunch.hosts import Host, Hostfile, fold, match
from tflaunch.inventory import Device, HostFacts, Inventory, MigDevice
from tflaunch.job import JobSpec, TaskId

WORKERS_PER_PS = 4
# On each host, while nobody knows yet how many tasks it gets: 8 cards of 7 MIG instances, and ps for them.
PORTS_HELD = 72
_BUSY_REASONS_SHOWN = 2
_LOOPBACK_NAMES = {"localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"}


@dataclass(frozen=True)
class TaskPlan:
    """Everything that an agent needs to start one task; nothing is decided later."""

    id: TaskId
    host: str  # the name in the hostfile
    address: str  # what its peers dial
    port: int
    gpus: tuple[str, ...]  # UUIDs of cards or of one MIG instance; () means no card at all
    gpu_labels: tuple[str, ...]  # the same as people see them: "3", or "3.1" for instance 1 of card 3
    argv: tuple[str, ...]
    env: Mapping[str, str]  # on top of what the host gives
    setup: tuple[str, ...]
    cwd: str | None  # None: the fresh directory that the shipped code is unpacked into

    def to_json(self) -> dict[str, Any]:
        """The task as data that another program could start."""
        return {
            "task": str(self.id),
            "host": self.host,
            "address": self.address,
            "port": self.port,
            "gpus": list(self.gpus),
            "gpu_labels": list(self.gpu_labels),
            "argv": list(self.argv),
            "env": dict(self.env),
            "setup": list(self.setup),
            "cwd": self.cwd,
        }


@dataclass(frozen=True)
class ClusterPlan:
    """All tasks of a run; `notes` are things the user should know (a mixed plan, ignored proxies)."""

    run_id: str
    tasks: tuple[TaskPlan, ...]  # chief, ps, workers; each job in the order of its indices
    notes: tuple[str, ...] = ()

    @property
    def cluster(self) -> dict[str, list[str]]:
        """TensorFlow's cluster spec: job name to `address:port`, in task order."""
        cluster: dict[str, list[str]] = {}
        for task in self.tasks:
            cluster.setdefault(task.id.job, []).append(endpoint(task.address, task.port))
        return cluster

    @property
    def targets(self) -> dict[str, str]:
        """What a TensorFlow session is built on, of each task: `grpc://address:port`."""
        return {str(task.id): f"grpc://{endpoint(task.address, task.port)}" for task in self.tasks}

    @property
    def flags(self) -> list[str]:
        """The cluster as the flags that the classic trainers take."""
        return [f"--{job}_hosts={','.join(addresses)}" for job, addresses in self.cluster.items()]

    def to_json(self) -> dict[str, Any]:
        """The whole plan as data: what it holds is what runs."""
        return {
            "run_id": self.run_id,
            "cluster": self.cluster,
            "tasks": [task.to_json() for task in self.tasks],
            "notes": list(self.notes),
        }


def plan_cluster(
    job: JobSpec, hostfile: Hostfile, inventory: Inventory, addresses: Mapping[str, str], run_id: str
) -> ClusterPlan:
    """Decide everything about every task of `job`, or raise PlanError with the numbers that do not fit.

    Hosts without facts in `inventory` get no task.  `addresses` maps a host to what SSH dials, "" for a local
    one.  Raises UsageError for counts that make no job and for a host pattern that matches nothing.

    Cards: where any host for workers has cards (and its `gpus:` is not 0), every worker gets
    `job.gpus_per_worker` of them, one by default, and hosts without cards get no worker: nobody asks for a
    job that is half on cards and half on CPUs.  `gpus_per_worker=0` places workers without cards.  The chief
    is placed as a worker before worker/0.  A MIG instance counts as a card; a worker gets one of them at most.

    Models: where workers are counted and one model can hold them all, they get cards of that model only; of
    several such models, the one that comes first on the hosts.  Workers that are not counted get all that is
    free.  A worker gets cards of different models only where nothing else would do.

    Counts: workers fill the free cards, or are one per host (`slots:` per host where it is given), the chief
    included; ps are one per 4 workers, at least one.

    Places: "spread" gives each host one task per round, in the order of the hostfile; "pack" fills a host
    (its cards, else its slots, else its cores) before the next.  ps go to the hosts with the fewest tasks,
    among those to the one with the fewest cards.
    """
    _check_counts(job)
    notes: list[str] = []
    known = [host for host in hostfile.hosts if host.name in inventory]
    if not known:
        raise PlanError(f"{hostfile.source}: none of {len(hostfile.hosts)} hosts can take a task")
    worker_hosts = _chosen(job.worker_hosts, hostfile, known) if job.workers != 0 or job.chief else []
    worker_seats = [_Seat(host, inventory[host.name]) for host in worker_hosts]
    per_worker = _deal_cards(job, worker_seats, notes)

    workers, ps = _counts(job, worker_seats, per_worker)
    if job.workers is not None and per_worker:
        _keep_to_one_model(worker_seats, workers + job.chief, per_worker)
    placed: list[_Placed] = []
    _place_workers(job, worker_seats, workers, per_worker, placed)
    _place_ps(job, [inventory[host.name] for host in _chosen(job.ps_hosts, hostfile, known)], ps, placed)
    placed.sort(key=lambda task: task.id)  # chief, ps, worker

    hosts = {host.name: host for host in hostfile.hosts}
    used = [hosts[name] for name in dict.fromkeys(task.host for task in placed)]
    dialled = peer_addresses(used, inventory, addresses, notes)
    ports = _ports([task.host for task in placed], hosts, inventory)

    cluster: dict[str, list[str]] = {}
    for task, port in zip(placed, ports, strict=True):
        cluster.setdefault(task.id.job, []).append(endpoint(dialled[task.host], port))
    command = Command(job, cluster, run_id)
    tasks = []
    for task, port in zip(placed, ports, strict=True):
        host = hosts[task.host]
        uuids = tuple(gpu.uuid for gpu in task.gpus)
        tasks.append(
            TaskPlan(
                id=task.id,
                host=task.host,
                address=dialled[task.host],
                port=port,
                gpus=uuids,
                gpu_labels=tuple(gpu.label for gpu in task.gpus),
                argv=command.argv(task.id, host),
                env=command.env(task.id, host, uuids),
                setup=host.setup,
                cwd=host.workdir,
            )
        )
    _note_models(job, placed, notes)
    _note_proxies(job, used, inventory, notes)
    return ClusterPlan(run_id, tuple(tasks), tuple(notes))


def places(
    job: JobSpec, hostfile: Hostfile, inventory: Inventory, notes: list[str]
) -> list[tuple[Host, tuple[Device, ...]]]:
    """As many places as there are now for workers that know nothing of each other, each with its cards.

    Without cards and `slots:`, a host has one.  The hosts are served in turn.  Raises PlanError where there is none.
    """
    seats = [_Seat(host, inventory[host.name]) for host in hostfile.hosts if host.name in inventory]
    per_worker = _deal_cards(job, seats, notes)
    rooms = [1 if seat.room is None else seat.room for seat in seats]
    if not any(rooms):
        raise _too_few(replace(job, workers=1, chief=False), seats, per_worker, 0)
    found = []
    for turn in range(max(rooms)):
        for seat, room in zip(seats, rooms, strict=True):
            if turn < room:
                mine, seat.cards = take_nearest(seat.cards, per_worker)
                found.append((seat.host, mine))
    return found


def usable_cards(job: JobSpec, hostfile: Hostfile, inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """For each host the UUIDs of the cards that its workers could be given; whichever they get, it is of these."""
    known = [host for host in hostfile.hosts if host.name in inventory]
    seats = []
    for host in _chosen(job.worker_hosts, hostfile, known) if job.workers != 0 or job.chief else []:
        any_of_them = isinstance(host.gpus, int) and host.gpus > 0  # `gpus: 2` are any two
        seats.append(_Seat(replace(host, gpus="auto") if any_of_them else host, inventory[host.name]))
    _deal_cards(job, seats, [])
    return {
        seat.host.name: tuple(gpu.uuid for gpu in seat.cards) for seat in seats if seat.room and seat.cards
    }


def ports_wanted(job: JobSpec, hostfile: Hostfile) -> int:
    """How many ports each agent should hold before the plan is known: enough for the fullest host.

    Raises UsageError for what can be refused before any host is asked.
    """
    _check_counts(job)
    flag_names(job.flags)
    worker_hosts, ps_hosts = (
        len(match(pattern, hostfile)) if pattern is not None else len(hostfile.hosts)
        for pattern in (job.worker_hosts, job.ps_hosts)
    )
    slots = max((host.slots or 0 for host in hostfile.hosts), default=0)
    if job.workers is None:  # as many as there are cards
        most_ps = _default_ps(slots) if job.ps is None else job.ps
        return max(PORTS_HELD, job.chief + slots + most_ps)
    workers, ps = job.workers + job.chief, _default_ps(job.workers) if job.ps is None else job.ps
    everything = max(1, workers + ps)
    if job.place == "pack" or slots:  # then one host may get all of them
        return everything
    fullest = -(-workers // max(1, worker_hosts)) - (-ps // max(1, ps_hosts))
    return min(everything, max(PORTS_HELD, fullest))


@dataclass
class _Seat:
    """A host that may take workers: its facts, the cards it can still give, how many workers may come."""

    host: Host
    facts: HostFacts
    cards: list[Device] = field(default_factory=list)  # free, lowest label first
    room: int | None = None  # None: no limit

    def room_for(self, workers: int) -> int:
        """How many of so many, for which it has cards, may come."""
        return workers if self.host.slots is None else min(workers, self.host.slots)

    @property
    def needs_mig(self) -> bool:
        """Whether it has MIG instances that only --mig would give to workers."""
        gives = self.host.gpus not in (0, ())
        return gives and any(device.busy == NEEDS_MIG for device in self.facts.devices)


@dataclass(frozen=True)
class _Placed:
    """A task that has its host and its cards."""

    id: TaskId
    host: str
    gpus: tuple[Device, ...] = ()


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 or noun == "ps" else f"{count} {noun}s"


def _chosen(pattern: str | None, hostfile: Hostfile, known: Sequence[Host]) -> list[Host]:
    """The hosts that a pattern allows, in the order of the file."""
    if pattern is None:
        return list(known)
    names = {host.name for host in match(pattern, hostfile)}
    chosen = [host for host in known if host.name in names]
    if not chosen:
        raise PlanError(f"{hostfile.source}: none of the hosts of {pattern!r} can take a task")
    return chosen


def _check_counts(job: JobSpec) -> None:
    for option, count in (
        ("--ps", job.ps),
        ("--workers", job.workers),
        ("--gpus-per-worker", job.gpus_per_worker),
    ):
        if count is not None and count < 0:
            raise UsageError(f"{option} {count}: a count cannot be negative")
    if job.workers != 0 or job.chief:
        return
    if job.ps == 0:
        raise UsageError("--workers 0 --ps 0 leaves nothing to run", "Ask for at least one task.")
    if job.done in ("workers", "chief"):
        raise UsageError(
            f"--workers 0: there is no worker whose end would end the run (--done {job.done})",
            "Add --chief, or say when ps alone are done: --done all or --done never.",
        )


def _default_ps(workers: int) -> int:
    return max(1, workers // WORKERS_PER_PS)


# --- cards -----------------------------------------------------------------------------------------------


def _deal_cards(job: JobSpec, seats: Sequence[_Seat], notes: list[str]) -> int:
    """Give each seat its free cards and its room; returns how many cards a worker gets."""
    silent: dict[str, list[str]] = defaultdict(list)
    for seat in seats:
        if seat.facts.gpu_note and not seat.facts.gpus and seat.host.gpus not in (0, ()):
            silent[seat.facts.gpu_note].append(seat.host.name)
    notes.extend(f"{fold(names)}: no cards can be seen: {reason}" for reason, names in silent.items())

    per_worker = job.gpus_per_worker
    if per_worker is None:
        with_cards = [seat for seat in seats if seat.host.gpus == "auto" and seat.facts.gpus]
        per_worker = 1 if with_cards or any(seat.host.gpus not in ("auto", 0, ()) for seat in seats) else 0
    if per_worker == 0:
        for seat in seats:
            seat.room = seat.host.slots
        return 0

    taken: dict[str, str] = {}  # one machine under two names shows its cards twice
    shared: list[str] = []
    bare: list[str] = []
    for seat in seats:
        free = free_cards(seat.host, seat.facts)
        if per_worker > 1 and (instance := next((gpu for gpu in free if isinstance(gpu, MigDevice)), None)):
            raise PlanError(
                f"{seat.host.name}: {instance.label} is a MIG instance, of which a process can use only one",
                f"Leave out --gpus-per-worker {per_worker}; more workers use more instances: --workers.",
            )
        seat.cards = [gpu for gpu in free if taken.setdefault(gpu.uuid, seat.host.name) == seat.host.name]
        if len(seat.cards) < len(free):
            shared.append(seat.host.name)
        seat.room = seat.room_for(len(seat.cards) // per_worker)
        if not seat.facts.gpus or seat.host.gpus in (0, ()):
            bare.append(seat.host.name)
    if shared:
        notes.append(f"{fold(shared)}: cards that another host shows too are left to that one")
    if bare and len(bare) < len(seats):
        notes.append(
            f"workers go to cards only; {fold(bare)} can give none"
            " (--gpus-per-worker 0 places workers without cards)"
        )
    if idle := [seat.host.name for seat in seats if seat.needs_mig and not seat.cards]:
        notes.append(f"{fold(idle)}: no whole card is free; --mig gives workers MIG instances instead")
    return per_worker


def _keep_to_one_model(seats: Sequence[_Seat], workers: int, per_worker: int) -> None:
    """Leave the seats only cards of one model, where one can hold all workers.

    Where none can, but each worker can have cards of one model, leave them only room for such workers.
    """
    models = [Counter(card.name for card in seat.cards) for seat in seats]
    for model in dict.fromkeys(card.name for seat in seats for card in seat.cards):
        rooms = [seat.room_for(count[model] // per_worker) for seat, count in zip(seats, models, strict=True)]
        if sum(rooms) >= workers:
            for seat, room in zip(seats, rooms, strict=True):
                seat.cards = [card for card in seat.cards if card.name == model]
                seat.room = room
            return
    rooms = [
        seat.room_for(sum(cards // per_worker for cards in count.values()))
        for seat, count in zip(seats, models, strict=True)
    ]
    if sum(rooms) >= workers:
        for seat, room in zip(seats, rooms, strict=True):
            seat.room = room


def free_cards(host: Host, facts: HostFacts) -> list[Device]:
    """The cards and instances that `gpus:` of the host allows and that are free, lowest label first."""
    there = facts.devices
    free = [gpu for gpu in there if not gpu.busy]
    if host.gpus == "auto":
        return free
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
            cards = "".join(f"; {gpu.label}: {gpu.uuid}" for gpu in there)
            raise PlanError(
                f"{host.name}: `gpus:` names {want}, but {_count_there(facts)}{cards}",
                "Correct `gpus:` in the hostfile, or write `gpus: auto`.",
            )
        reasons = [gpu.busy for gpu in found if not isinstance(gpu.busy, LeftOut) or gpu.busy == NEEDS_MIG]
        if reasons and all(reasons):
            hint = "Wait until it is free, or name other cards; `gpus: auto` takes those that are free."
            if reasons[0] == NEEDS_MIG:
                labels = ", ".join(gpu.label for gpu in found)
                hint = f"Take its instances with --mig, or name them: {labels}."
            raise PlanError(f"{host.name}: `gpus:` names {want}, which is busy: {reasons[0]}", hint)
        named.update(gpu.uuid for gpu in found)
    return [gpu for gpu in free if gpu.uuid in named]


def _named(want: int | str, facts: HostFacts) -> tuple[Device, ...]:
    """What an entry of `gpus:` means there: a card in MIG mode is all of its instances."""
    for gpu in facts.gpus:
        if want in (gpu.index, gpu.uuid):
            return gpu.devices
    return tuple(device for device in facts.devices if want in (device.label, device.uuid))


def _count_there(facts: HostFacts) -> str:
    if not facts.gpus and facts.gpu_note:
        return f"no cards can be seen: {facts.gpu_note}"
    there = facts.devices
    return f"{_plural(len(there), 'card')} {'is' if len(there) == 1 else 'are'} there"


# --- counts ----------------------------------------------------------------------------------------------


def _counts(job: JobSpec, seats: Sequence[_Seat], per_worker: int) -> tuple[int, int]:
    """How many workers (the chief not counted) and ps there are; raises PlanError when workers do not fit."""
    places = sum(1 if seat.room is None else seat.room for seat in seats)
    bounded = all(seat.room is not None for seat in seats)
    if job.workers is not None:
        workers = job.workers
        short = bounded and workers + job.chief > places
    else:
        short = places == 0
        workers = max(places - job.chief, 0 if bounded else 1)
    if short:
        raise _too_few(job, seats, per_worker, places)
    return workers, _default_ps(workers) if job.ps is None else job.ps


def _too_few(job: JobSpec, seats: Sequence[_Seat], per_worker: int, places: int) -> PlanError:
    tasks = (job.workers if job.workers is not None else 1 - job.chief) + job.chief
    who = _plural(tasks - job.chief, "worker") if tasks > job.chief else ""
    who = " and ".join(filter(None, ["the chief" if job.chief else "", who]))
    ways = [f"ask for {_plural(places - job.chief, 'worker')} at most"] if places > job.chief else []
    if not per_worker:
        slots = _by_host((seat.host.name, str(seat.host.slots)) for seat in seats)
        message = f"need {_plural(tasks, 'slot')} ({who}), {places} are given: {slots}"
        return PlanError(message, _one_of(*ways, "raise `slots:`"))
    need, free = tasks * per_worker, sum(len(seat.cards) for seat in seats)
    cards = _by_host((seat.host.name, _describe_cards(seat)) for seat in seats)
    each = f"{who} x {per_worker}"
    message = f"need {_plural(need, 'GPU')} ({each}), {free} {'is' if free == 1 else 'are'} free: {cards}"
    if free >= need:
        message += f"; they hold {_plural(places, 'worker')}, since the cards of one are on one host"
        if any(seat.host.slots is not None for seat in seats):
            message += " and `slots:` limits them"
    if (instances := [seat.host.name for seat in seats if seat.needs_mig]) and per_worker == 1:
        ways.append(f"take the MIG instances of {fold(instances)} with --mig")
    lower = "lower" if per_worker > 1 else "place workers without cards:"
    lower += " --gpus-per-worker" if per_worker > 1 else " --gpus-per-worker 0"
    return PlanError(message, _one_of(*ways, lower))


def _one_of(*ways: str) -> str:
    """`Ask for less, or take more.`"""
    *most, last = ways
    sentence = ", or ".join(filter(None, [", ".join(most), last]))
    return f"{sentence[0].upper()}{sentence[1:]}."


def _describe_cards(seat: _Seat) -> str:
    """`4`, or `1 of 4 (3 busy: processes)`."""
    there = seat.facts.devices
    if not there:
        return "none"
    busy = Counter(gpu.busy for gpu in there if gpu.busy)
    why = []
    if busy:
        reasons = [reason for reason, _ in busy.most_common()]
        reasons.sort(key=lambda reason: isinstance(reason, LeftOut))  # who is on a card is news
        reasons = reasons[:_BUSY_REASONS_SHOWN]
        more = ["..."] if len(busy) > len(reasons) else []
        why.append(f"{busy.total()} busy: {', '.join(reasons + more)}")
    if seat.host.gpus != "auto":
        listed = seat.host.gpus if isinstance(seat.host.gpus, int) else list(seat.host.gpus)
        why.append(f"`gpus: {listed}`")
    if seat.host.slots is not None:
        why.append(f"`slots: {seat.host.slots}`")
    count = str(len(seat.cards)) if len(seat.cards) == len(there) else f"{len(seat.cards)} of {len(there)}"
    return f"{count} ({'; '.join(why)})" if why else count


def _by_host(facts: Iterable[tuple[str, str]]) -> str:
    """`gpu[1-3] 4, gpu4 none`: hosts with equal facts folded."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, fact in facts:
        names[fact].append(name)
    return ", ".join(f"{fold(group)} {fact}" for fact, group in names.items())


# --- places ----------------------------------------------------------------------------------------------


def _place_workers(
    job: JobSpec, seats: Sequence[_Seat], workers: int, per_worker: int, placed: list[_Placed]
) -> None:
    waiting = [TaskId("chief", 0)] if job.chief else []
    waiting += [TaskId("worker", index) for index in range(workers)]
    waiting.reverse()
    while waiting:
        before = len(waiting)
        for seat in seats:
            # One round of "pack" fills the host; without cards and slots, a full host has a task per core.
            turn = 1 if job.place == "spread" else max(1, seat.facts.cores)
            if seat.room is not None:
                turn = seat.room if job.place == "pack" else min(turn, seat.room)
                seat.room -= min(turn, len(waiting))
            for _ in range(min(turn, len(waiting))):
                mine, seat.cards = take_nearest(seat.cards, per_worker)
                placed.append(_Placed(waiting.pop(), seat.host.name, mine))
        assert len(waiting) < before, "the counts were checked against the room"  # noqa: S101


def _place_ps(job: JobSpec, allowed: Sequence[HostFacts], ps: int, placed: list[_Placed]) -> None:
    tasks = Counter(task.host for task in placed)
    queue = [(tasks[facts.host], len(facts.gpus), order, facts) for order, facts in enumerate(allowed)]
    heapq.heapify(queue)
    index = 0
    while index < ps:
        count, cards, order, facts = heapq.heappop(queue)
        turn = 1 if job.place == "spread" else max(1, facts.cores - count)
        turn = min(turn, ps - index)
        placed.extend(_Placed(TaskId("ps", index + i), facts.host) for i in range(turn))
        index += turn
        heapq.heappush(queue, (count + turn, cards, order, facts))


# --- addresses and ports ---------------------------------------------------------------------------------


def _machine(facts: HostFacts) -> tuple[str, str]:
    """What two names of one machine share; containers share the boot id, so the host name counts too."""
    return (facts.boot_id, facts.hostname) if facts.boot_id else ("", facts.host)


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address.lower() in _LOOPBACK_NAMES


def _is_link_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_link_local
    except ValueError:
        return False


def peer_addresses(
    used: Sequence[Host], inventory: Inventory, ssh: Mapping[str, str], notes: list[str]
) -> dict[str, str]:
    """What the peers of each host dial: `address:`, else what SSH dials, else an interface of its own.

    Loopback is right for a cluster on one machine and only there.
    """
    dialled = {host.name: host.address or ssh.get(host.name, "") or "127.0.0.1" for host in used}
    one_machine = len({_machine(inventory[host.name]) for host in used}) == 1
    if one_machine and all(map(is_loopback, dialled.values())):
        return dialled

    # An address that several machines have (a container bridge, say) leads nowhere.
    machines: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for facts in inventory.values():
        for address in facts.addresses:
            machines[address].add(_machine(facts))
    replaced: dict[str, str] = {}
    for host in used:
        if not is_loopback(dialled[host.name]):
            continue
        others = fold(other.name for other in used if other is not host)
        if host.address:
            raise PlanError(
                f"{host.name}: `address: {host.address}` is loopback, which {others} cannot dial",
                "Write the address under which the other hosts reach it, or leave `address:` out.",
            )
        own = [a for a in inventory[host.name].addresses if not is_loopback(a) and not _is_link_local(a)]
        routable = [address for address in own if len(machines[address]) == 1]
        if not routable:
            found = f"others have {', '.join(own)} too" if own else "it has no other address"
            raise PlanError(
                f"{host.name}: {others} cannot dial {dialled[host.name]}, and {found}",
                f"Write `address:` for {host.name} in the hostfile: what the other hosts reach it by.",
            )
        replaced[host.name] = routable[0]
    if replaced:
        first = next(iter(replaced))
        notes.append(
            f"{fold(replaced)}: peers dial an address of an interface ({first}: {replaced[first]}), because"
            " loopback leads them nowhere; `address:` decides otherwise"
        )
    dialled.update(replaced)
    return dialled


def _ports(places: Sequence[str], hosts: Mapping[str, Host], inventory: Inventory) -> list[int]:
    """A port for each task of `places`, lowest first; names of one machine never share one."""
    wanted = Counter(places)
    taken: dict[tuple[str, str], set[int]] = defaultdict(set)
    mine: dict[str, list[int]] = {}
    for name, count in wanted.items():
        facts = inventory[name]
        others = taken[_machine(facts)]
        free = sorted(port for port in set(facts.ports) if port not in others)
        if len(free) < count:
            limits = hosts[name].ports
            where = f" of `ports: {limits[0]}-{limits[1]}`" if limits else ""
            more = f"Widen `ports:` of {name}" if limits else "Say --workers and --ps, for more to be held"
            raise PlanError(
                f"{name}: need {_plural(count, 'port')}, {len(free)}{where} could be had",
                f"{more}, or put fewer tasks on {name}.",
            )
        mine[name] = free[:count][::-1]
        others.update(mine[name])
    return [mine[name].pop() for name in places]


# --- notes -----------------------------------------------------------------------------------------------


def _note_models(job: JobSpec, placed: Sequence[_Placed], notes: list[str]) -> None:
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    cards: Counter[str] = Counter()
    for task in placed:
        for gpu in task.gpus:
            hosts[gpu.name][task.host] = None
            cards[gpu.name] += 1
    if len(cards) > 1:
        models = ", ".join(f"{count} x {name} ({fold(hosts[name])})" for name, count in cards.most_common())
        why = "" if job.workers is None else ", since no one model is enough"
        notes.append(f"workers get different cards{why}: {models}; in step, the slowest sets the pace")


def _note_proxies(job: JobSpec, used: Sequence[Host], inventory: Inventory, notes: list[str]) -> None:
    hosts: dict[str, list[str]] = defaultdict(list)
    for host in used:
        if "no_grpc_proxy" not in {**host.env, **job.env}:
            for variable in inventory[host.name].proxies:
                hosts[variable].append(host.name)
    if hosts:
        found = ", ".join(f"{variable} ({fold(names)})" for variable, names in sorted(hosts.items()))
        notes.append(f"proxies are set: {found}; gRPC between tasks goes around them (no_grpc_proxy)")
