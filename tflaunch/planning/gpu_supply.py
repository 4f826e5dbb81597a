"""The GPUs that hosts have for the roles of a job, and the sentences where they are too few; pure."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tflaunch.hosts import Host, fold
from tflaunch.planning.gpu_choice import NEEDS_MIG, LeftOut
from tflaunch.planning.inventory import Device, HostFacts, MigDevice
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.job import Cards

_BUSY_REASONS_SHOWN = 2


def plural(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`, `2 ps`."""
    return f"{count} {noun}" if count == 1 or noun == "ps" else f"{count} {noun}s"


@dataclass
class HostCapacity:
    """A host that may take tasks: its facts, the GPUs that it can still give, how many workers it still takes."""

    host: Host
    facts: HostFacts
    free_gpus: list[Device] = field(default_factory=list)  # lowest label first
    room: int | None = None  # for workers; None: no limit
    given: Counter[str] = field(default_factory=Counter)  # cards that other roles have got, by job

    def room_for(self, workers: int) -> int:
        """How many of so many workers, for which it has GPUs, `slots:` lets it take."""
        return workers if self.host.slots is None else min(workers, self.host.slots)

    def room_of_models(self, per_worker: Cards) -> int:
        """How many workers it takes if each gets GPUs of one model only."""
        counts = Counter(card.name for card in self.free_gpus).values()
        return self.room_for(sum(workers_for(count, per_worker) for count in counts))

    @property
    def bare(self) -> bool:
        """Whether it has no GPU to give, free or busy."""
        return not self.facts.gpus or self.host.gpus in (0, ())

    @property
    def needs_mig(self) -> bool:
        """Whether it has MIG instances that tasks get with --mig only."""
        return self.host.gpus not in (0, ()) and any(
            device.busy == NEEDS_MIG for device in self.facts.devices
        )


def workers_for(cards: int, per_worker: Cards) -> int:
    """How many workers so many GPUs of one host are enough for."""
    return min(1, cards) if per_worker == "all" else cards // per_worker


def share_of(capacity: HostCapacity, cards: Cards) -> int:
    """How many GPUs a task gets on that host."""
    return len(capacity.free_gpus) if cards == "all" else cards


def cards_of_worker(asked: Cards | None, capacities: Sequence[HostCapacity]) -> Cards:
    """How many GPUs a worker gets: what the user asked for, else one where any of these hosts has any, else none."""
    if asked is not None:
        return asked
    with_cards = [capacity for capacity in capacities if capacity.host.gpus == "auto" and capacity.facts.gpus]
    return 1 if with_cards or any(capacity.host.gpus not in ("auto", 0, ()) for capacity in capacities) else 0


def note_silent(capacities: Iterable[HostCapacity], notes: list[str]) -> None:
    """Add a note for the hosts whose driver does not say whether they have GPUs."""
    silent: dict[str, list[str]] = defaultdict(list)
    for capacity in capacities:
        if capacity.facts.gpu_note and not capacity.facts.gpus and capacity.host.gpus not in (0, ()):
            silent[capacity.facts.gpu_note].append(capacity.host.name)
    notes.extend(f"{fold(names)}: no cards can be seen: {reason}" for reason, names in silent.items())


def deal(capacities: Iterable[HostCapacity], notes: list[str]) -> None:
    """Give each capacity the GPUs that are free and that `gpus:` of its host allows."""
    taken: dict[str, str] = {}  # one machine under two names shows its GPUs twice
    shared: list[str] = []
    for capacity in capacities:
        free = free_cards(capacity.host, capacity.facts)
        capacity.free_gpus = [
            gpu for gpu in free if taken.setdefault(gpu.uuid, capacity.host.name) == capacity.host.name
        ]
        if len(capacity.free_gpus) < len(free):
            shared.append(capacity.host.name)
    if shared:
        notes.append(f"{fold(shared)}: cards that another host shows too are left to that one")


def check_instances(capacities: Iterable[HostCapacity], cards: Cards, option: str, noun: str) -> None:
    """Raise PlanError where a task would get several MIG instances."""
    for capacity in capacities:
        if share_of(capacity, cards) < 2:
            continue
        if instance := next((gpu for gpu in capacity.free_gpus if isinstance(gpu, MigDevice)), None):
            raise PlanError(
                f"{capacity.host.name}: {instance.label} is a MIG instance, of which a process can use only one",
                f"Leave out {option}; {noun}.",
            )


def make_room(
    capacities: Sequence[HostCapacity], per_worker: Cards, notes: list[str], mix: bool = False
) -> None:
    """Set how many workers each host takes, each with `per_worker` GPUs; with `mix` of several models."""
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
        whole = mix or per_worker == "all"  # what `all` has of two models is refused, not parted
        capacity.room = (
            capacity.room_for(workers_for(len(capacity.free_gpus), per_worker))
            if whole
            else capacity.room_of_models(per_worker)
        )
    bare = [capacity.host.name for capacity in capacities if capacity.bare]
    if bare and len(bare) < len(capacities):
        notes.append(
            f"workers go to cards only; {fold(bare)} can give none"
            " (--gpus-per-worker 0 places workers without cards)"
        )
    if idle := [
        capacity.host.name for capacity in capacities if capacity.needs_mig and not capacity.free_gpus
    ]:
        notes.append(f"{fold(idle)}: no whole card is free; --mig gives workers MIG instances instead")


def keep_to_one_model(capacities: Sequence[HostCapacity], workers: int, per_worker: Cards) -> None:
    """Leave the hosts only GPUs of one model, where one model has enough for all workers.

    Where none has, but each worker can get GPUs of one model, leave the hosts only room for such workers.
    """
    models = [Counter(card.name for card in capacity.free_gpus) for capacity in capacities]
    for model in dict.fromkeys(card.name for capacity in capacities for card in capacity.free_gpus):
        rooms = [
            capacity.room_for(workers_for(count[model], per_worker))
            for capacity, count in zip(capacities, models, strict=True)
        ]
        if sum(rooms) >= workers:
            for capacity, room in zip(capacities, rooms, strict=True):
                capacity.free_gpus = [card for card in capacity.free_gpus if card.name == model]
                capacity.room = room
            return
    rooms = [capacity.room_of_models(per_worker) for capacity in capacities]
    if per_worker != "all" and sum(rooms) >= workers:
        for capacity, room in zip(capacities, rooms, strict=True):
            capacity.room = room


def free_cards(host: Host, facts: HostFacts) -> list[Device]:
    """The GPUs and MIG instances that `gpus:` of the host allows and that are free, lowest label first."""
    there = facts.devices
    free = [gpu for gpu in there if not gpu.busy]
    if host.gpus == "auto":
        return free
    if host.gpus_by and (isinstance(host.gpus, int) or any(not _named(want, facts) for want in host.gpus)):
        # A job that sees only its own GPUs counts them from 0, whatever their numbers are on the host.
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
            cards = "".join(f"; {gpu.label}: {gpu.uuid}" for gpu in there)
            raise PlanError(
                f"{host.name}: {_listed(host)} names {want}, but {_count_there(facts)}{cards}",
                "Correct `gpus:` in the hostfile, or write `gpus: auto`.",
            )
        reasons = [gpu.busy for gpu in found if not isinstance(gpu.busy, LeftOut) or gpu.busy == NEEDS_MIG]
        if reasons and all(reasons):
            hint = "Wait until it is free, or name other cards; `gpus: auto` takes those that are free."
            if reasons[0] == NEEDS_MIG:
                labels = ", ".join(gpu.label for gpu in found)
                hint = f"Take its instances with --mig, or name them: {labels}."
            raise PlanError(f"{host.name}: {_listed(host)} names {want}, which is busy: {reasons[0]}", hint)
        named.update(gpu.uuid for gpu in found)
    return [gpu for gpu in free if gpu.uuid in named]


def _listed(host: Host) -> str:
    return host.gpus_by or "`gpus:`"


def _not_those(host: Host, facts: HostFacts) -> list[Device]:
    raise PlanError(
        f"{host.name}: the job has the cards {host.gpus_by.partition('=')[2]} there ({host.gpus_by}), but "
        f"{_count_there(facts)}",
        "Name the hosts in a hostfile, with `gpus:` for those that are the job's.",
    )


def _named(want: int | str, facts: HostFacts) -> tuple[Device, ...]:
    """The GPUs that an entry of `gpus:` names on that host: for one in MIG mode, all of its instances."""
    for gpu in facts.gpus:
        if want in (gpu.index, gpu.uuid):
            return gpu.devices
    return tuple(device for device in facts.devices if want in (device.label, device.uuid))


def _count_there(facts: HostFacts) -> str:
    if not facts.gpus and facts.gpu_note:
        return f"no cards can be seen: {facts.gpu_note}"
    there = facts.devices
    return f"{plural(len(there), 'card')} {'is' if len(there) == 1 else 'are'} there"


def too_few_for(job: str, count: int, cards: Cards, capacities: Sequence[HostCapacity]) -> PlanError:
    """The error for `count` tasks of a job whose GPUs are not all on these hosts."""
    free = sum(len(capacity.free_gpus) for capacity in capacities)
    there = _by_host((capacity.host.name, _describe_cards(capacity)) for capacity in capacities)
    if cards == "all":
        return PlanError(
            f"need {plural(count, 'host')} with a free GPU ({count} {job}, each with all GPUs of its host): {there}",
            _one_of(f"say how many cards one gets: --job-gpus {job}=1", "let them go elsewhere: --job-hosts"),
        )
    message = f"need {plural(count * cards, 'GPU')} ({count} {job} x {cards}), {free} {'is' if free == 1 else 'are'}"
    message += f" free: {there}"
    if free >= count * cards:
        message += "; the cards of one task are on one host"
    ways = [f"ask for fewer: --job {job}=N"] if count > 1 else []
    ways += [f"lower --job-gpus {job}"] if cards > 1 else [f"do without cards: --job-gpus {job}=0"]
    return PlanError(message, _one_of(*ways, "let them go elsewhere: --job-hosts"))


def too_few(
    workers: int, leading: Sequence[str], capacities: Sequence[HostCapacity], per_worker: Cards, places: int
) -> PlanError:
    """The error for `workers`, and chiefs that are placed as workers, where there are only `places` places."""
    tasks = workers + len(leading)
    who = plural(workers, "worker") if workers else ""
    who = " and ".join(filter(None, [*(f"the {job}" for job in leading), who]))
    ways = [f"ask for {plural(places - len(leading), 'worker')} at most"] if places > len(leading) else []
    if not per_worker:
        slots = _by_host((capacity.host.name, str(capacity.host.slots)) for capacity in capacities)
        message = (
            f"need {plural(tasks, 'slot')} ({who}), {places} {'is' if places == 1 else 'are'} given: {slots}"
        )
        return PlanError(message + _by_the_job(capacities), _one_of(*ways, _more_slots(capacities)))
    if per_worker == "all":
        cards = _by_host((capacity.host.name, _describe_cards(capacity)) for capacity in capacities)
        message = f"need {plural(tasks, 'host')} with a free GPU ({who}, each with all GPUs of its host), "
        message += f"{places} {'has' if places == 1 else 'have'} one: {cards}"
        return PlanError(message, _one_of(*ways, "say how many cards one gets: --gpus-per-worker 1"))
    need, free = tasks * per_worker, sum(len(capacity.free_gpus) for capacity in capacities)
    cards = _by_host((capacity.host.name, _describe_cards(capacity)) for capacity in capacities)
    each = f"{who} x {per_worker}"
    message = f"need {plural(need, 'GPU')} ({each}), {free} {'is' if free == 1 else 'are'} free: {cards}"
    if free >= need:
        message += f"; they hold {plural(places, 'worker')}, since the cards of one are on one host"
        if any(len({card.name for card in capacity.free_gpus}) > 1 for capacity in capacities):
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
    lower = "lower" if per_worker > 1 else "place workers without cards:"
    lower += " --gpus-per-worker" if per_worker > 1 else " --gpus-per-worker 0"
    return PlanError(message, _one_of(*ways, lower))


def _by_the_job(capacities: Sequence[HostCapacity]) -> str:
    by = dict.fromkeys(capacity.host.slots_by for capacity in capacities if capacity.host.slots_by)
    return f" ({', '.join(by)}: a worker for each task of the job)" if by else ""


def _more_slots(capacities: Sequence[HostCapacity]) -> str:
    by = next((capacity.host.slots_by for capacity in capacities if capacity.host.slots_by), "")
    if by.startswith("SLURM"):
        return "have the job ask for more tasks: --ntasks-per-node"
    return "have the job ask for more processes: mpiprocs, ppn" if by else "raise `slots:`"


def _one_of(*ways: str) -> str:
    """`Ask for less, or take more.`"""
    *most, last = ways
    sentence = ", or ".join(filter(None, [", ".join(most), last]))
    return f"{sentence[0].upper()}{sentence[1:]}."


def _describe_cards(capacity: HostCapacity) -> str:
    """`4`, or `1 of 4 (3 busy: processes)`."""
    there = capacity.facts.devices
    if not there:
        return "none"
    busy = Counter(gpu.busy for gpu in there if gpu.busy)
    why = []
    if busy:
        reasons = [reason for reason, _ in busy.most_common()]
        reasons.sort(key=lambda reason: isinstance(reason, LeftOut))  # who uses a GPU is news
        reasons = reasons[:_BUSY_REASONS_SHOWN]
        more = ["..."] if len(busy) > len(reasons) else []
        why.append(f"{busy.total()} busy: {', '.join(reasons + more)}")
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


def mixed(cards: Sequence[tuple[str, Device]], workers: int, counted: bool) -> PlanError | None:
    """The error where these GPUs of workers, each with its host, are of several models; None: they are of one."""
    hosts: dict[str, dict[str, None]] = defaultdict(dict)
    counts = Counter(card.name for _, card in cards)
    for host, card in cards:
        hosts[card.name][host] = None
    if len(counts) < 2:
        return None
    there = ", ".join(f"{count} x {name} ({fold(hosts[name])})" for name, count in counts.most_common())
    who = plural(workers, "worker")
    message = f"{who} would get GPUs of {len(counts)} models: {there}; in step, the slowest sets the pace"
    if counted:
        message += f". No one model is enough for {who}"
    first = counts.most_common(1)[0][0]
    ways = [f"take one model: --gpu-model {shlex.quote(_short(first, counts))}"]
    if any(isinstance(card, MigDevice) for _, card in cards):
        ways = [f"take instances of one profile: --mig {_short(first, counts)}"]
    ways.append("ask for fewer workers: --workers N" if counted else "say how many workers: --workers N")
    return PlanError(message, _one_of(*ways, "mix them: --mix-models"))


def _short(name: str, others: Iterable[str]) -> str:
    """The first word of a model's name that no other one has, a number in it if there is one, else all of the name."""
    rest = " ".join(other for other in others if other != name).lower()
    words = [word for word in name.split() if word.lower() not in rest]
    return next((word for word in words if any(map(str.isdigit, word))), (words or [name])[0])
