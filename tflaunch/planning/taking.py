"""What a run takes of its hosts where the user gave no number of workers, and when tflaunch asks first; pure.

tflaunch asks when the plan takes more than one machine, more than MOST_GPUS GPUs, or the last free GPU of a host that
other users use: a process of theirs computes on one of its GPUs, or a run of theirs has one or waits for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tflaunch.hosts import Hostfile, fold
from tflaunch.planning.inventory import HostFacts, Inventory
from tflaunch.protocol.job import WORKER
from tflaunch.text.numbers import counted

MOST_GPUS = 8


@dataclass(frozen=True)
class Share:
    """A task or trial on one host, and the UUIDs of the GPUs that it takes."""

    host: str
    job: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Taking:
    """All that a run would take."""

    tasks: Mapping[str, int]  # of each job
    gpus: int
    there: int  # all GPUs of those hosts, free or busy
    hosts: tuple[str, ...]
    machines: int  # hosts of `connection: local` are one
    full: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # host whose last free GPU is taken -> its other users
    instances: bool = False  # the GPUs taken are MIG instances

    @property
    def much(self) -> bool:
        """Whether tflaunch asks the user first."""
        return self.machines > 1 or self.gpus > MOST_GPUS or bool(self.full)

    def exceeds(self, agreed: Taking | None) -> bool:
        """Whether tflaunch asks again, although the user has agreed to take `agreed`."""
        if not self.much:
            return False
        return agreed is None or (
            self.gpus > agreed.gpus
            or self.machines > agreed.machines
            or any(count > agreed.tasks.get(job, 0) for job, count in self.tasks.items())
            or not self.full.keys() <= agreed.full.keys()
        )

    def __str__(self) -> str:
        where = f"{len(self.hosts)} hosts" if len(self.hosts) > 1 else self.hosts[0]
        noun = "MIG instances" if self.instances else "GPUs" if self.there > 1 else "GPU"
        of_gpus = f"{self.gpus} of {self.there} {noun} of " if self.gpus else ""
        text = f"{tasks_counted(self.tasks)} on {of_gpus}{where}"
        users = list(dict.fromkeys(user for each in self.full.values() for user in each))
        return text + (f" (none stays free on {fold(self.full)}, which {_and(users)} uses)" if users else "")


def taking(
    shares: Iterable[Share],
    hostfile: Hostfile,
    inventory: Inventory,
    run_id: str,
    mine: Callable[[str], str],
) -> Taking:
    """Sum the shares up; `mine(host)` is the user's own name on that host, called only where it matters."""
    shares = list(shares)
    names = {share.host for share in shares}
    hosts = [host for host in hostfile.hosts if host.name in names]
    gpus: dict[str, set[str]] = {}
    for share in shares:
        gpus.setdefault(share.host, set()).update(share.gpus)
    full = {}
    for host in hosts:
        facts = inventory[host.name]
        stays = any(
            not device.busy and device.uuid not in gpus[host.name] for device in facts.gpus_or_instances
        )
        if gpus[host.name] and not stays and (users := others_on(facts, run_id, mine(host.name))):
            full[host.name] = users
    devices = [device for host in hosts for device in inventory[host.name].gpus_or_instances]
    taken = set().union(*gpus.values())
    return Taking(
        Counter(share.job for share in shares),
        len(taken),
        len(devices),
        tuple(host.name for host in hosts),
        len({"" if host.connection == "local" else host.name for host in hosts}),
        full,
        any("." in device.label for device in devices if device.uuid in taken),
    )


def others_on(facts: HostFacts, run_id: str, me: str) -> tuple[str, ...]:
    """The other users of a host's GPUs: they compute on one, have one leased to a run, or wait for one.

    A desktop does not count.  A user whose name the host hides is `somebody`.
    """
    users: dict[str, None] = {}
    for device in facts.gpus_or_instances:
        claims = [
            claim for claim in (device.lease, device.promised) if claim is not None and claim.run != run_id
        ]
        computing = [each.user for each in device.processes if each.kind == "compute"]
        users |= dict.fromkeys([*(claim.user for claim in claims), *computing])
    users |= dict.fromkeys(ticket.user for ticket in facts.queue if ticket.run != run_id)
    return tuple(user or "somebody" for user in users if user != me)


def tasks_counted(tasks: Mapping[str, int]) -> str:
    """`17 workers, 4 ps and 1 chief`: the workers first."""
    names = sorted(tasks, key=lambda job: (job not in (WORKER, "trial"), -tasks[job]))
    return _and([_of(tasks[name], name) for name in names])


def _of(count: int, job: str) -> str:
    if job == "trial":
        return f"{counted(count, 'trial')} at a time"
    return f"{count} {job}" if count == 1 or job != WORKER else f"{count} {job}s"


def _and(parts: list[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
