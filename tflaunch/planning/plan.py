"""Where every task runs: a pure function from job, hosts and facts to the complete request for every host."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tflaunch.hosts import Host, Hostfile, fold, match
from tflaunch.inputs.variables import DECIDED
from tflaunch.lifecycle.states import decisive
from tflaunch.planning.addresses import interfaces, peer_addresses, take_ports
from tflaunch.planning.command import Command, endpoint, flag_names, image
from tflaunch.planning.environments import setup
from tflaunch.planning.frameworks import OF_THEIR_OWN
from tflaunch.planning.gpu_choice import take_nearest
from tflaunch.planning.gpu_supply import (
    Seat,
    cards_of_worker,
    check_instances,
    deal,
    keep_to_one_model,
    make_room,
    mixed,
    note_silent,
    share_of,
    too_few,
    too_few_for,
)
from tflaunch.planning.inventory import Device, Inventory
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import CHIEF, EVALUATOR, MASTER, PS, WORKER, Cards, JobSpec, TaskId

WORKERS_PER_PS = 4
MASK = "***"  # instead of a value that nobody is shown
# On each host, while nobody knows yet how many tasks it gets: 8 cards of 7 MIG instances, and ps for them.
PORTS_HELD = 72


@dataclass(frozen=True)
class TaskPlan:
    """Everything that an agent needs to start one task; nothing is decided later."""

    id: TaskId
    host: str  # the name in the hostfile
    address: str  # what its peers dial
    port: int | None  # None: it is not part of the cluster, as an evaluator
    gpus: tuple[str, ...]  # UUIDs of cards or of one MIG instance; () means no card at all
    gpu_labels: tuple[str, ...]  # the same as people see them: "3", or "3.1" for instance 1 of card 3
    argv: tuple[str, ...]
    env: Mapping[str, str]  # on top of what the host gives
    setup: tuple[str, ...]
    cwd: str | None  # None: the fresh directory that the shipped code is copied to
    container: str = ""  # the image that it runs in, with `setup`
    mounts: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()  # variables whose values nobody is shown
    listens: bool = True  # on its port, if it has one; of PyTorch and JAX only rank 0 does
    shares_port: bool = False  # it opens its port with SO_REUSEADDR alone, as PyTorch's store does

    @property
    def endpoint(self) -> str | None:
        """What its peers dial, as TensorFlow writes it; None: nobody does."""
        return None if self.port is None else endpoint(self.address, self.port)

    def to_json(self) -> dict[str, Any]:
        """The task as data that another program could start, but for values that are masked."""
        return {
            "task": str(self.id),
            "host": self.host,
            "address": self.address,
            "port": self.port,
            "gpus": list(self.gpus),
            "gpu_labels": list(self.gpu_labels),
            "argv": list(self.argv),
            "env": {name: MASK if name in self.masked else value for name, value in self.env.items()},
            "setup": list(self.setup),
            "cwd": self.cwd,
            "container": self.container,
            "mounts": list(self.mounts),
        }

    def to_wire(self) -> dict[str, Any]:
        """The request for its agent."""
        request = {
            "id": str(self.id),
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "setup": list(self.setup),
            "decided": [name for name in DECIDED if name in self.env],
            "port": self.port if self.listens else None,
            "gpus": list(self.gpus),
            "gpu_labels": list(self.gpu_labels),
            "container": self.container and {"image": self.container, "mounts": list(self.mounts)},
        }
        return {**request, "shares_port": True} if self.shares_port else request


@dataclass(frozen=True)
class ClusterPlan:
    """All tasks of a run; `notes` are things the user should know (a mixed plan, ignored proxies)."""

    run_id: str
    tasks: tuple[TaskPlan, ...]  # by job name; each job in the order of its indices
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()  # what the text of the program has decided, and why
    left_out: Mapping[str, str] = field(default_factory=dict)  # hosts that it goes without, each with why
    moved: str = ""  # one of the notes: the task that writes checkpoints is not where they may lie

    @property
    def cluster(self) -> dict[str, list[str]]:
        """TensorFlow's cluster spec: job name to `address:port`, in task order."""
        cluster: dict[str, list[str]] = {}
        for task in self.tasks:
            if dialled := task.endpoint:
                cluster.setdefault(task.id.job, []).append(dialled)
        return cluster

    @property
    def images(self) -> dict[str, set[str]]:
        """What the containers of each host are made of."""
        images: dict[str, set[str]] = {}
        for task in self.tasks:
            images.setdefault(task.host, set()).update([task.container] if task.container else [])
        return images

    @property
    def targets(self) -> dict[str, str]:
        """What a TensorFlow session is built on, of each task: `grpc://address:port`."""
        return {str(task.id): f"grpc://{task.endpoint}" for task in self.tasks if task.endpoint}

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
            "choices": list(self.choices),
            "left_out": dict(self.left_out),
        }


def plan_cluster(
    job: JobSpec, hostfile: Hostfile, inventory: Inventory, addresses: Mapping[str, str], run_id: str
) -> ClusterPlan:
    """Decide everything about every task of `job`, or raise PlanError with the numbers that do not fit.

    Hosts without facts in `inventory` get no task.  `addresses` maps a host to what SSH dials, "" for a local
    one.  Raises UsageError for counts that make no job and for a host pattern that matches nothing.

    Cards: where any host for workers has cards (and its `gpus:` is not 0), every worker gets as many of them as
    its role says, one by default, and hosts without cards get no worker: nobody asks for a job that is half on
    cards and half on CPUs.  0 places workers without cards.  The chief is placed as a worker before worker/0,
    unless its role names hosts or cards of its own.  A MIG instance counts as a card; a task gets one of them
    at most.  Other roles that ask for cards get theirs before the workers do, where the fewest are left.

    Models: where workers are counted and one model can hold them all, they get cards of that model only; of
    several such models, the one that comes first on the hosts.  Workers that are not counted get all that is
    free.  A worker gets cards of different models only where nothing else would do.

    Counts: workers fill the free cards, or are one per host (`slots:` per host where it is given), the chief
    included; ps are one per 4 workers, at least one.

    Places: "spread" gives each host one task per round, in the order of the hostfile; "pack" fills a host
    (its cards, else its slots, else its cores) before the next.  What needs no card, ps first, goes to the hosts
    with the fewest tasks, among those to the one with the fewest cards.  An evaluator is no part of the cluster:
    it gets no port, and nobody dials it.
    """
    _check_counts(job)
    notes: list[str] = list(job.notes)
    seats = {host.name: Seat(host, inventory[host.name]) for host in hostfile.hosts if host.name in inventory}
    if not seats:
        raise PlanError(f"{hostfile.source}: none of {len(hostfile.hosts)} hosts can take a task")
    worker_seats, per_worker, apart = _shares(job, hostfile, seats, notes)
    placed: list[_Placed] = []
    for share in apart:
        if share.cards:
            _place_with_cards(job, share, placed)
    if worker_seats:
        make_room(worker_seats, per_worker, notes, job.mix_models)
    workers, ps = _counts(job, worker_seats, per_worker)
    leading = chiefs_as_workers(job)
    if job.role(WORKER).count is not None and per_worker:
        keep_to_one_model(worker_seats, workers + len(leading), per_worker)
    waiting = [TaskId(name, 0) for name in leading] + [TaskId(WORKER, index) for index in range(workers)]
    _place_workers(job, worker_seats, waiting, per_worker, placed)
    if not job.mix_models:
        alike = [task for task in placed if task.id.job == WORKER or task.id.job in leading]
        cards = [(task.host, card) for task in alike for card in task.gpus]
        if error := mixed(cards, len(alike), job.role(WORKER).count is not None):
            raise error
    for share in apart:
        if not share.cards:
            _place_bare(job, share, ps, placed)
    placed.sort(key=lambda task: task.id)

    used = [seats[name].host for name in dict.fromkeys(task.host for task in placed)]
    dialled = peer_addresses(used, inventory, addresses, notes)
    members = [task for task in placed if task.id.job != EVALUATOR]
    hosts = {host.name: host for host in used}
    taken = take_ports([task.host for task in members], hosts, inventory)
    ports = {task.id: port for task, port in zip(members, taken, strict=True)}

    cluster: dict[str, list[str]] = {}
    for task in members:
        cluster.setdefault(task.id.job, []).append(endpoint(dialled[task.host], ports[task.id]))
    command = Command(job, cluster, run_id, interfaces(dialled, inventory))
    tasks = []
    for task in placed:
        host = hosts[task.host]
        uuids = tuple(gpu.uuid for gpu in task.gpus)
        tasks.append(
            TaskPlan(
                id=task.id,
                host=task.host,
                address=dialled[task.host],
                port=ports.get(task.id),
                gpus=uuids,
                gpu_labels=tuple(gpu.label for gpu in task.gpus),
                argv=command.argv(task.id, host),
                env=command.env(task.id, host, uuids),
                setup=setup(host),
                cwd=host.workdir,
                container=image(host, job),
                mounts=(*host.mounts, *job.mounts),
                masked=tuple(sorted(job.masked)),
                listens=job.framework not in OF_THEIR_OWN or task.id == command.first,
                shares_port=job.framework == "torch" and task.id == command.first,
            )
        )
    _note_alone(job, placed, notes)
    _note_models(job, placed, notes)
    _note_proxies(job, used, inventory, notes)
    return ClusterPlan(run_id, tuple(tasks), tuple(notes), job.choices)


def places(
    job: JobSpec, hostfile: Hostfile, inventory: Inventory, notes: list[str]
) -> list[tuple[Host, tuple[Device, ...]]]:
    """As many places as there are now for workers that know nothing of each other, each with its cards.

    Without cards and `slots:`, a host has one.  The hosts are served in turn.  Raises PlanError where there is none.
    """
    there = {host.name: Seat(host, inventory[host.name]) for host in hostfile.hosts if host.name in inventory}
    seats, per_worker, _ = _shares(job, hostfile, there, notes)
    make_room(seats, per_worker, notes)
    rooms = [1 if seat.room is None else seat.room for seat in seats]
    if not any(rooms):
        raise too_few(1, (), seats, per_worker, 0)
    found = []
    for turn in range(max(rooms)):
        for seat, room in zip(seats, rooms, strict=True):
            if turn < room:
                mine, seat.cards = take_nearest(seat.cards, share_of(seat, per_worker))
                found.append((seat.host, mine))
    return found


def usable_cards(job: JobSpec, hostfile: Hostfile, inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """For each host the UUIDs of the cards that its tasks could be given; whichever they get, it is of these."""
    seats = {}
    for host in hostfile.hosts:
        if host.name in inventory:
            any_of_them = isinstance(host.gpus, int) and host.gpus > 0  # `gpus: 2` are any two
            seats[host.name] = Seat(replace(host, gpus="auto") if any_of_them else host, inventory[host.name])
    worker_seats, per_worker, apart = _shares(job, hostfile, seats, [])
    if per_worker:
        make_room(worker_seats, per_worker, [], job.mix_models)
    uses = {seat.host.name for seat in worker_seats if per_worker and seat.room}
    for share in apart:
        uses |= {seat.host.name for seat in share.seats if 0 < share_of(seat, share.cards) <= len(seat.cards)}
    return {name: tuple(gpu.uuid for gpu in seats[name].cards) for name in seats if name in uses}


def ports_wanted(job: JobSpec, hostfile: Hostfile, usable: Collection[Host] | None = None) -> int:
    """How many ports each agent should hold before the plan is known: enough for the fullest of the `usable` hosts.

    Raises UsageError for what can be refused before any host is asked.
    """
    _check_counts(job)
    flag_names(job)
    names = {host.name for host in (hostfile.hosts if usable is None else usable)}

    def fullest(count: int, pattern: str | None) -> int:
        """The most tasks of so many on one host."""
        hosts = {host.name for host in match(pattern, hostfile)} & names if pattern is not None else names
        return count if job.place == "pack" else -(-count // max(1, len(hosts)))

    leading = chiefs_as_workers(job)
    apart = {name: role for name, role in job.others.items() if name not in (*leading, EVALUATOR)}
    others = sum(fullest(role.count or 0, role.hosts) for role in apart.values())
    slots = max((host.slots or 0 for host in hostfile.hosts), default=0)
    counted, ps = job.role(WORKER).count, job.role(PS).count
    if counted is None:  # as many as there are cards
        return max(PORTS_HELD, len(leading) + slots + (_default_ps(slots) if ps is None else ps)) + others
    workers, ps = counted + len(leading), _default_ps(counted) if ps is None else ps
    everything = max(1, workers + ps)
    if job.place == "pack" or slots:  # then one host may get all of them
        return everything + others
    most = fullest(workers, job.role(WORKER).hosts) + fullest(ps, job.role(PS).hosts)
    return min(everything, max(PORTS_HELD, most)) + others


@dataclass(frozen=True)
class _Share:
    """What a role that is placed apart from the workers asks for."""

    job: str
    count: int | None  # None, of ps: by the workers
    cards: Cards  # of each task
    seats: Sequence[Seat]  # where it may go


def chiefs_as_workers(job: JobSpec) -> list[str]:
    """The chiefs that are placed as workers are."""
    worker = job.role(WORKER)
    return [
        name
        for name, role in job.others.items()
        if name in (CHIEF, MASTER) and role.hosts in (None, worker.hosts) and role.gpus in (None, worker.gpus)
    ]


def _shares(
    job: JobSpec, hostfile: Hostfile, seats: Mapping[str, Seat], notes: list[str]
) -> tuple[list[Seat], Cards, list[_Share]]:
    """(seats for workers, cards of a worker, the other roles); each seat has got its free cards."""

    def chosen(pattern: str | None) -> list[Seat]:
        if pattern is None:
            return list(seats.values())
        names = {host.name for host in match(pattern, hostfile)}
        found = [seat for name, seat in seats.items() if name in names]
        if not found:
            raise PlanError(
                f"{hostfile.source}: none of the hosts of {pattern!r} can take a task",
                "they are left out by another option, or cannot be reached",
            )
        return found

    worker, leading = job.role(WORKER), chiefs_as_workers(job)
    worker_seats = chosen(worker.hosts) if worker.count != 0 or leading else []
    per_worker = cards_of_worker(worker.gpus, worker_seats)
    roles = {name: role for name, role in job.others.items() if name not in leading}
    apart = []
    for name in sorted({*roles, PS}, key=lambda name: (name not in (CHIEF, MASTER), name != PS, name)):
        role = job.role(name)
        cards = per_worker if role.gpus is None and name in (CHIEF, MASTER) else role.gpus or 0
        apart.append(_Share(name, role.count, cards, chosen(role.hosts)))
    with_cards = [share for share in apart if share.cards]
    holders = {seat.host.name for share in with_cards for seat in share.seats}
    of_workers = {seat.host.name for seat in worker_seats}
    note_silent([seat for name, seat in seats.items() if name in holders | of_workers], notes)
    if per_worker:
        holders |= of_workers
    deal([seat for name, seat in seats.items() if name in holders], notes)
    for share in with_cards:
        check_instances(
            share.seats, share.cards, f"--job-gpus {share.job}={share.cards}", "one is all it gets"
        )
    return worker_seats, per_worker, apart


@dataclass(frozen=True)
class _Placed:
    """A task that has its host and its cards."""

    id: TaskId
    host: str
    gpus: tuple[Device, ...] = ()


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


def _counts(job: JobSpec, seats: Sequence[Seat], per_worker: Cards) -> tuple[int, int]:
    """How many workers (the chief not counted) and ps there are; raises PlanError when workers do not fit."""
    places = sum(1 if seat.room is None else seat.room for seat in seats)
    bounded = all(seat.room is not None for seat in seats)
    leading, workers = chiefs_as_workers(job), job.role(WORKER).count
    asked = max(0, 1 - len(leading)) if workers is None else workers
    if bounded and asked + len(leading) > places:
        raise too_few(asked, leading, seats, per_worker, places)
    if workers is None:
        workers = max(places - len(leading), 0 if bounded else 1)
    ps = job.role(PS).count
    return workers, _default_ps(workers) if ps is None else ps


# --- places ----------------------------------------------------------------------------------------------


def _place_with_cards(job: JobSpec, share: _Share, placed: list[_Placed]) -> None:
    """Each task to where the fewest cards are left, so that workers find many together, and from the last host on."""
    before = [list(seat.cards) for seat in share.seats]
    mine: Counter[str] = Counter()
    for index in range(share.count or 0):
        fits = [
            (mine[seat.host.name] if job.place == "spread" else 0, len(seat.cards), -order)
            for order, seat in enumerate(share.seats)
            if len(seat.cards) >= max(1, share_of(seat, share.cards))
        ]
        if not fits:
            for seat, cards in zip(share.seats, before, strict=True):
                seat.cards = cards
                del seat.given[share.job]
            raise too_few_for(share.job, share.count or 0, share.cards, share.seats)
        seat = share.seats[-min(fits)[-1]]
        gpus, seat.cards = take_nearest(seat.cards, share_of(seat, share.cards))
        seat.given[share.job] += len(gpus)
        mine[seat.host.name] += 1
        placed.append(_Placed(TaskId(share.job, index), seat.host.name, gpus))


def _place_workers(
    job: JobSpec, seats: Sequence[Seat], tasks: Sequence[TaskId], per_worker: Cards, placed: list[_Placed]
) -> None:
    waiting = list(reversed(tasks))
    while waiting:
        before = len(waiting)
        for seat in seats:
            # One round of "pack" fills the host; without cards and slots, a full host has a task per core.
            turn = 1 if job.place == "spread" else max(1, seat.facts.cores)
            if seat.room is not None:
                turn = seat.room if job.place == "pack" else min(turn, seat.room)
                seat.room -= min(turn, len(waiting))
            for _ in range(min(turn, len(waiting))):
                mine, seat.cards = take_nearest(seat.cards, share_of(seat, per_worker))
                placed.append(_Placed(waiting.pop(), seat.host.name, mine))
        assert len(waiting) < before, "the counts were checked against the room"  # noqa: S101


def _place_bare(job: JobSpec, share: _Share, ps: int, placed: list[_Placed]) -> None:
    wanted = ps if share.count is None else share.count
    tasks = Counter(task.host for task in placed)
    queue = [
        (tasks[seat.host.name], len(seat.facts.gpus), order, seat) for order, seat in enumerate(share.seats)
    ]
    heapq.heapify(queue)
    index = 0
    while index < wanted:
        count, cards, order, seat = heapq.heappop(queue)
        turn = 1 if job.place == "spread" else max(1, seat.facts.cores - count)
        turn = min(turn, wanted - index)
        placed.extend(_Placed(TaskId(share.job, index + i), seat.host.name) for i in range(turn))
        index += turn
        heapq.heappush(queue, (count + turn, cards, order, seat))


# --- notes -----------------------------------------------------------------------------------------------


def _note_alone(job: JobSpec, placed: Sequence[_Placed], notes: list[str]) -> None:
    jobs = Counter(task.id.job for task in placed)
    workers = sum(jobs[name] for name in (WORKER, CHIEF, MASTER))
    if job.alone and workers > 1:
        ps = ", and each ps," if jobs[PS] else ""
        words = "--workers 1 --ps 0" + (" --no-flags" if job.flags is not None else "")
        notes.append(f"each of {workers} workers{ps} trains alone: {job.alone}; {words} starts one")


def _note_models(job: JobSpec, placed: Sequence[_Placed], notes: list[str]) -> None:
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    cards: Counter[str] = Counter()
    for task in placed:
        for gpu in task.gpus if task.id.job in (WORKER, CHIEF, MASTER) else ():
            hosts[gpu.name][task.host] = None
            cards[gpu.name] += 1
    if len(cards) > 1:
        models = ", ".join(f"{count} x {name} ({fold(hosts[name])})" for name, count in cards.most_common())
        why = "" if job.role(WORKER).count is None else ", since no one model is enough"
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
