"""Who holds which GPUs, of all users of these hosts; pure.

A GPU is held by the run that has its lease, and by each process of another user, or without a lease, that computes on
it.  A process of a lease's own user counts as the run's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tflaunch.hosts import fold
from tflaunch.planning.inventory import GpuOrInstance, in_use
from tflaunch.survey.gpu_overview import Machine, Overview, short_command


@dataclass(frozen=True)
class Hold:
    """One GPU or MIG instance, held by one run or one process."""

    user: str  # "": the host does not show it
    host: str
    gpu: str  # its label on the host
    uuid: str
    run: str  # "" for a process that is no run's
    pid: int  # 0 for a run
    command: str  # of the process: the program and its script, without their arguments
    since: float | None  # epoch seconds, by the host's clock
    age_s: float | None
    memory_bytes: int | None  # None: the driver does not say


@dataclass(frozen=True)
class UserHolds:
    """All that one user holds."""

    user: str
    holds: tuple[Hold, ...]

    @property
    def gpus(self) -> int:
        """How many GPUs and MIG instances these are, each counted once."""
        return len({(hold.host, hold.gpu) for hold in self.holds})

    @property
    def hosts(self) -> list[str]:
        """The hosts that they are on."""
        return list(dict.fromkeys(hold.host for hold in self.holds))


def users(overview: Overview) -> list[UserHolds]:
    """Who holds GPUs, who holds most first; the user "" at the end."""
    found: dict[str, list[Hold]] = {}
    for machine in overview.machines:
        for device in machine.gpus_or_instances:
            for hold in _holds(machine, device):
                found.setdefault(hold.user, []).append(hold)
    held = [UserHolds(user, tuple(holds)) for user, holds in found.items()]
    return sorted(held, key=lambda each: (not each.user, -each.gpus, each.user))


def unseen(overview: Overview) -> list[str]:
    """What the hosts did not show: a sentence each."""
    hidden: dict[str, list[str]] = {}
    nameless: dict[str, list[str]] = {}
    for machine in overview.machines:
        for device in machine.gpus_or_instances:
            label = f"{machine.names[0]}:{device.label}"
            computing = [each for each in device.processes if each.kind == "compute"]
            if any(not each.user for each in computing):
                nameless.setdefault(machine.names[0], []).append(label)
            elif not computing and device.lease is None and in_use(device):
                hidden.setdefault(machine.names[0], []).append(label)
    sentences = []
    if nameless:
        sentences.append(
            f"{', '.join(_all(nameless))}: a process whose user {fold(nameless)} does not show (a container, or /proc "
            "hides other users' processes): ask as root"
        )
    if hidden:
        sentences.append(f"{', '.join(_all(hidden))}: in use by a process that {fold(hidden)} does not show")
    return sentences


def _all(found: dict[str, list[str]]) -> Iterable[str]:
    return (label for labels in found.values() for label in labels)


def _holds(machine: Machine, device: GpuOrInstance) -> Iterable[Hold]:
    clock, lease = machine.facts.clock, device.lease

    def hold(user: str, since: float | None, **more: Any) -> Hold:
        age_s = None if not since else max(0.0, clock - since)
        about = {"run": "", "pid": 0, "command": "", "memory_bytes": None, **more}
        return Hold(
            user, machine.names[0], device.label, device.uuid, since=since or None, age_s=age_s, **about
        )

    computing = [each for each in device.processes if each.kind == "compute"]
    if lease is not None:
        yield hold(
            lease.user, lease.since, run=lease.run, pid=lease.pid, memory_bytes=device.memory_used_bytes
        )
    for each in computing:
        if lease is None or each.user != lease.user:
            words = short_command(each.command).split()
            command = " ".join([word for word in words if not word.startswith("-")][:2])
            yield hold(each.user, each.started, pid=each.pid, command=command, memory_bytes=each.memory_bytes)
    if lease is None and not computing and in_use(device):
        yield hold("", None, memory_bytes=device.memory_used_bytes)


def data(overview: Overview, now: float) -> dict[str, Any]:
    """The same, for `--json`."""
    return {
        "time": now,
        "users": [
            {
                "user": each.user,
                "gpus": each.gpus,
                "hosts": each.hosts,
                "holds": [dataclasses.asdict(hold) for hold in each.holds],
            }
            for each in users(overview)
        ],
        "unseen": unseen(overview),
        "unreachable": {host: error.data_for(host) for host, error in overview.unreachable.items()},
    }
