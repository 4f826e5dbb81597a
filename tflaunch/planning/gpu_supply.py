"""Which cards the hosts have for the roles of a job, and the sentences when they are too few; pure."""

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
class Seat:
    """A host that may take tasks: its facts, the cards it can still give, how many workers may come."""

    host: Host
    facts: HostFacts
    cards: list[Device] = field(default_factory=list)  # free, lowest label first
    room: int | None = None  # for workers; None: no limit
    given: Counter[str] = field(default_factory=Counter)  # cards that other roles have got, by job

    def room_for(self, workers: int) -> int:
        """How many of so many, for which it has cards, may come."""
        return workers if self.host.slots is None else min(workers, self.host.slots)

    def room_of_models(self, per_worker: Cards) -> int:
        """How many workers may come if each gets cards of one model."""
        counts = Counter(card.name for card in self.cards).values()
        return self.room_for(sum(workers_for(count, per_worker) for count in counts))

    @property
    def bare(self) -> bool:
        """Whether it has no card to give, in use or not."""
        return not self.facts.gpus or self.host.gpus in (0, ())

    @property
    def needs_mig(self) -> bool:
        """Whether it has MIG instances that only --mig would give to tasks."""
        return self.host.gpus not in (0, ()) and any(
            device.busy == NEEDS_MIG for device in self.facts.devices
        )


def workers_for(cards: int, per_worker: Cards) -> int:
    """How many workers so many cards of one host are enough for."""
    return min(1, cards) if per_worker == "all" else cards // per_worker


def share_of(seat: Seat, cards: Cards) -> int:
    """How many cards a task gets there."""
    return len(seat.cards) if cards == "all" else cards


def cards_of_worker(asked: Cards | None, seats: Sequence[Seat]) -> Cards:
    """How many cards a worker gets: one, if nobody said it, where any of these hosts has any."""
    if asked is not None:
        return asked
    with_cards = [seat for seat in seats if seat.host.gpus == "auto" and seat.facts.gpus]
    return 1 if with_cards or any(seat.host.gpus not in ("auto", 0, ()) for seat in seats) else 0


def note_silent(seats: Iterable[Seat], notes: list[str]) -> None:
    """Say where nobody can see whether there are cards."""
    silent: dict[str, list[str]] = defaultdict(list)
    for seat in seats:
        if seat.facts.gpu_note and not seat.facts.gpus and seat.host.gpus not in (0, ()):
            silent[seat.facts.gpu_note].append(seat.host.name)
    notes.extend(f"{fold(names)}: no cards can be seen: {reason}" for reason, names in silent.items())


def deal(seats: Iterable[Seat], notes: list[str]) -> None:
    """Give each seat the cards that its host gives and that are free."""
    taken: dict[str, str] = {}  # one machine under two names shows its cards twice
    shared: list[str] = []
    for seat in seats:
        free = free_cards(seat.host, seat.facts)
        seat.cards = [gpu for gpu in free if taken.setdefault(gpu.uuid, seat.host.name) == seat.host.name]
        if len(seat.cards) < len(free):
            shared.append(seat.host.name)
    if shared:
        notes.append(f"{fold(shared)}: cards that another host shows too are left to that one")


def check_instances(seats: Iterable[Seat], cards: Cards, option: str, noun: str) -> None:
    """Raise PlanError where a task would get several MIG instances."""
    for seat in seats:
        if share_of(seat, cards) < 2:
            continue
        if instance := next((gpu for gpu in seat.cards if isinstance(gpu, MigDevice)), None):
            raise PlanError(
                f"{seat.host.name}: {instance.label} is a MIG instance, of which a process can use only one",
                f"Leave out {option}; {noun}.",
            )


def make_room(seats: Sequence[Seat], per_worker: Cards, notes: list[str], mix: bool = False) -> None:
    """How many workers each seat takes, with so many of its cards; with `mix` one may get several models."""
    if per_worker == 0:
        for seat in seats:
            seat.room = seat.host.slots
        return
    check_instances(
        seats, per_worker, f"--gpus-per-worker {per_worker}", "more workers use more instances: --workers"
    )
    for seat in seats:
        whole = mix or per_worker == "all"  # what `all` has of two models is refused, not parted
        seat.room = (
            seat.room_for(workers_for(len(seat.cards), per_worker))
            if whole
            else seat.room_of_models(per_worker)
        )
    bare = [seat.host.name for seat in seats if seat.bare]
    if bare and len(bare) < len(seats):
        notes.append(
            f"workers go to cards only; {fold(bare)} can give none"
            " (--gpus-per-worker 0 places workers without cards)"
        )
    if idle := [seat.host.name for seat in seats if seat.needs_mig and not seat.cards]:
        notes.append(f"{fold(idle)}: no whole card is free; --mig gives workers MIG instances instead")


def keep_to_one_model(seats: Sequence[Seat], workers: int, per_worker: Cards) -> None:
    """Leave the seats only cards of one model, where one can hold all workers.

    Where none can, but each worker can have cards of one model, leave them only room for such workers.
    """
    models = [Counter(card.name for card in seat.cards) for seat in seats]
    for model in dict.fromkeys(card.name for seat in seats for card in seat.cards):
        rooms = [
            seat.room_for(workers_for(count[model], per_worker))
            for seat, count in zip(seats, models, strict=True)
        ]
        if sum(rooms) >= workers:
            for seat, room in zip(seats, rooms, strict=True):
                seat.cards = [card for card in seat.cards if card.name == model]
                seat.room = room
            return
    rooms = [seat.room_of_models(per_worker) for seat in seats]
    if per_worker != "all" and sum(rooms) >= workers:
        for seat, room in zip(seats, rooms, strict=True):
            seat.room = room


def free_cards(host: Host, facts: HostFacts) -> list[Device]:
    """The cards and instances that `gpus:` of the host allows and that are free, lowest label first."""
    there = facts.devices
    free = [gpu for gpu in there if not gpu.busy]
    if host.gpus == "auto":
        return free
    if host.gpus_by and (isinstance(host.gpus, int) or any(not _named(want, facts) for want in host.gpus)):
        # A job that sees only its own cards counts them from 0, whatever their numbers are on the host.
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
    """What an entry of `gpus:` means there: a card in MIG mode is all of its instances."""
    for gpu in facts.gpus:
        if want in (gpu.index, gpu.uuid):
            return gpu.devices
    return tuple(device for device in facts.devices if want in (device.label, device.uuid))


def _count_there(facts: HostFacts) -> str:
    if not facts.gpus and facts.gpu_note:
        return f"no cards can be seen: {facts.gpu_note}"
    there = facts.devices
    return f"{plural(len(there), 'card')} {'is' if len(there) == 1 else 'are'} there"


def too_few_for(job: str, count: int, cards: Cards, seats: Sequence[Seat]) -> PlanError:
    """The sentence for `count` tasks of a job that do not all find their cards on these hosts."""
    free = sum(len(seat.cards) for seat in seats)
    there = _by_host((seat.host.name, _describe_cards(seat)) for seat in seats)
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
    workers: int, leading: Sequence[str], seats: Sequence[Seat], per_worker: Cards, places: int
) -> PlanError:
    """The sentence for `workers`, and chiefs that are placed as workers, for which `places` are too few."""
    tasks = workers + len(leading)
    who = plural(workers, "worker") if workers else ""
    who = " and ".join(filter(None, [*(f"the {job}" for job in leading), who]))
    ways = [f"ask for {plural(places - len(leading), 'worker')} at most"] if places > len(leading) else []
    if not per_worker:
        slots = _by_host((seat.host.name, str(seat.host.slots)) for seat in seats)
        message = (
            f"need {plural(tasks, 'slot')} ({who}), {places} {'is' if places == 1 else 'are'} given: {slots}"
        )
        return PlanError(message + _by_the_job(seats), _one_of(*ways, _more_slots(seats)))
    if per_worker == "all":
        cards = _by_host((seat.host.name, _describe_cards(seat)) for seat in seats)
        message = f"need {plural(tasks, 'host')} with a free GPU ({who}, each with all GPUs of its host), "
        message += f"{places} {'has' if places == 1 else 'have'} one: {cards}"
        return PlanError(message, _one_of(*ways, "say how many cards one gets: --gpus-per-worker 1"))
    need, free = tasks * per_worker, sum(len(seat.cards) for seat in seats)
    cards = _by_host((seat.host.name, _describe_cards(seat)) for seat in seats)
    each = f"{who} x {per_worker}"
    message = f"need {plural(need, 'GPU')} ({each}), {free} {'is' if free == 1 else 'are'} free: {cards}"
    if free >= need:
        message += f"; they hold {plural(places, 'worker')}, since the cards of one are on one host"
        if any(len({card.name for card in seat.cards}) > 1 for seat in seats):
            message += " and of one model (--mix-models)"
        if any(seat.host.slots is not None for seat in seats):
            by = next((seat.host.slots_by for seat in seats if seat.host.slots_by), "`slots:`")
            message += f" and {by} limits them"
    if (instances := [seat.host.name for seat in seats if seat.needs_mig]) and per_worker == 1:
        ways.append(f"take the MIG instances of {fold(instances)} with --mig")
    lower = "lower" if per_worker > 1 else "place workers without cards:"
    lower += " --gpus-per-worker" if per_worker > 1 else " --gpus-per-worker 0"
    return PlanError(message, _one_of(*ways, lower))


def _by_the_job(seats: Sequence[Seat]) -> str:
    by = dict.fromkeys(seat.host.slots_by for seat in seats if seat.host.slots_by)
    return f" ({', '.join(by)}: a worker for each task of the job)" if by else ""


def _more_slots(seats: Sequence[Seat]) -> str:
    by = next((seat.host.slots_by for seat in seats if seat.host.slots_by), "")
    if by.startswith("SLURM"):
        return "have the job ask for more tasks: --ntasks-per-node"
    return "have the job ask for more processes: mpiprocs, ppn" if by else "raise `slots:`"


def _one_of(*ways: str) -> str:
    """`Ask for less, or take more.`"""
    *most, last = ways
    sentence = ", or ".join(filter(None, [", ".join(most), last]))
    return f"{sentence[0].upper()}{sentence[1:]}."


def _describe_cards(seat: Seat) -> str:
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
    why += [f"{cards} for {job}" for job, cards in seat.given.items()]
    if seat.host.gpus != "auto":
        listed = seat.host.gpus if isinstance(seat.host.gpus, int) else list(seat.host.gpus)
        why.append(seat.host.gpus_by or f"`gpus: {listed}`")
    if seat.host.slots is not None:
        why.append(seat.host.slots_by or f"`slots: {seat.host.slots}`")
    count = str(len(seat.cards)) if len(seat.cards) == len(there) else f"{len(seat.cards)} of {len(there)}"
    return f"{count} ({'; '.join(why)})" if why else count


def _by_host(facts: Iterable[tuple[str, str]]) -> str:
    """`gpu[1-3] 4, gpu4 none`: hosts with equal facts folded."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, fact in facts:
        names[fact].append(name)
    return ", ".join(f"{fold(group)} {fact}" for fact, group in names.items())


def mixed(cards: Sequence[tuple[str, Device]], workers: int, counted: bool) -> PlanError | None:
    """The sentence when these workers' cards, each with its host, are of several models; None: they are of one."""
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
