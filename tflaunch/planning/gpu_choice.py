"""Which GPUs and MIG instances a run may take, and which of them lie near each other; pure, before the plan.

A GPU that an option leaves out counts as busy, with that option as the reason: plan and messages need no other case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tflaunch.hosts import Hostfile, match
from tflaunch.planning.inventory import NO_INSTANCE, Gpu, GpuOrInstance, HostFacts, Inventory, MigInstance
from tflaunch.protocol.errors import PlanError, UsageError

# How near two GPUs are, best first; NVLinks (`NV4` is four of them) are nearer than any of these.
_NEAR = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}
_NVLINK = 10
_HOSTS_SHOWN = 4
_SOLD_AS = 0.98  # a GPU sold with 80 GiB shows up to 2 % less: the driver keeps some
_LABEL = r"(0|[1-9]\d*)(\.\d)?"


class LeftOut(str):
    """Why an option leaves a GPU or MIG instance out."""

    option: str  # as the user gave it: `--gpu-model V100`
    in_use: str  # what keeps it busy besides; "": without the option it would be free

    def __new__(cls, reason: str, option: str = "", in_use: str = "") -> LeftOut:
        """`reason` is what `busy` of the GPU then says."""
        made = super().__new__(cls, reason)
        made.option, made.in_use = option, in_use
        return made


NEEDS_MIG = LeftOut("in MIG mode (--mig)")  # a MIG instance, which only --mig or the hostfile takes


@dataclass(frozen=True)
class GpuChoice:
    """The GPU options of the command line; `include` and `exclude` are `HOSTS` or `HOSTS:0,2,3.1`."""

    model: str = ""  # part of the model's name, in any case
    min_memory_bytes: int = 0  # of the whole GPU or MIG instance
    mig: str | None = None  # only MIG instances with this in their name ("": any)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    share: bool = False  # also GPUs that others compute on; never leased, promised or broken ones


def check(choice: GpuChoice, hostfile: Hostfile) -> None:
    """Raises UsageError for a pattern of hosts that matches none, before any host is asked."""
    _selected("--include", choice.include, hostfile)
    _selected("--exclude", choice.exclude, hostfile)


def excluded_hosts(choice: GpuChoice, hostfile: Hostfile) -> set[str]:
    """The hosts that --exclude names whole, without numbers of GPUs."""
    return {host for host, gpus in _selected("--exclude", choice.exclude, hostfile).items() if gpus is None}


def not_included(choice: GpuChoice, hostfile: Hostfile) -> set[str]:
    """The hosts that --include, where it is given, does not name."""
    if not choice.include:
        return set()
    return {host.name for host in hostfile.hosts} - _selected("--include", choice.include, hostfile).keys()


def choose(inventory: Inventory, choice: GpuChoice, hostfile: Hostfile) -> dict[str, HostFacts]:
    """The inventory in which GPUs that the options leave out are busy.

    Without `mig`, instances are taken only where `gpus:` of the hostfile names them.  Raises UsageError for a pattern
    without a host, PlanError for one whose GPU is on none of its hosts.
    """
    included = _selected("--include", choice.include, hostfile)
    excluded = _selected("--exclude", choice.exclude, hostfile)
    for option, patterns in (("--include", choice.include), ("--exclude", choice.exclude)):
        for pattern in patterns:
            _check_there(option, pattern, inventory, hostfile)
    named = {host.name: host.gpus if isinstance(host.gpus, tuple) else () for host in hostfile.hosts}

    def unwanted(host: str, gpu: Gpu, device: GpuOrInstance) -> tuple[str, str]:
        """Why the options leave it out, and the option; what --mig alone would mend comes last."""
        instance = isinstance(device, MigInstance)
        if instance and (choice.mig or "").lower() not in device.name.lower():
            return f"no {choice.mig} (--mig)", f"--mig {choice.mig}"
        if not instance and choice.mig is not None and not gpu.mig_mode:
            return "not in MIG mode (--mig)", "--mig"
        if choice.model and choice.model.lower() not in f"{device.name} {gpu.name}".lower():
            return f"no {choice.model} (--gpu-model)", f"--gpu-model {choice.model}"
        if device.memory_total_bytes < choice.min_memory_bytes * _SOLD_AS:
            return f"less than {choice.min_memory_bytes / 2**30:g} GiB (--min-gpu-memory)", "--min-gpu-memory"
        if choice.include and not _names(included, host, gpu, device):
            return "not in --include", "--include"
        if _names(excluded, host, gpu, device):
            return "in --exclude", "--exclude"
        if instance and choice.mig is None and not {device.label, device.uuid} & set(named[host]):
            return NEEDS_MIG, "--mig"
        return "", ""

    def why_busy(host: str, gpu: Gpu, device: GpuOrInstance) -> str:
        closed = gpu.error or not device.uuid or gpu.compute_mode != "default" or device.busy == NO_INSTANCE
        claimed = device.lease or device.lease_error or device.promised
        in_use = "" if choice.share and not (closed or claimed) else device.busy
        reason, option = unwanted(host, gpu, device)
        return LeftOut(reason, option, in_use) if reason else in_use

    def seen(host: str, gpu: Gpu) -> Gpu:
        instances = tuple(replace(each, busy=why_busy(host, gpu, each)) for each in gpu.mig)
        return replace(gpu, busy=gpu.busy if gpu.mig else why_busy(host, gpu, gpu), mig=instances)

    return {
        host: replace(facts, gpus=tuple(seen(host, gpu) for gpu in facts.gpus))
        for host, facts in inventory.items()
    }


def _selected(
    option: str, patterns: Sequence[str], hostfile: Hostfile
) -> Mapping[str, frozenset[str] | None]:
    """Host to the labels of the GPUs and MIG instances that the patterns name there, None for all."""
    found: dict[str, frozenset[str] | None] = {}
    for pattern in patterns:
        hosts, colon, labels = pattern.partition(":")
        if colon and not re.fullmatch(rf"{_LABEL}(,{_LABEL})*", labels):
            raise UsageError(
                f"{option} {pattern}: not HOST or HOST:0,2,3.1", "the numbers are those of tflaunch gpus"
            )
        for host in match(hosts, hostfile):
            before = found.get(host.name, frozenset())
            these = frozenset(labels.split(",")) if colon else None
            found[host.name] = None if before is None or these is None else before | these
    return found


def _check_there(option: str, pattern: str, inventory: Inventory, hostfile: Hostfile) -> None:
    """Raise PlanError if a GPU that the pattern names is on none of its hosts that have answered."""
    hosts, _, labels = pattern.partition(":")
    there = [inventory[host.name] for host in match(hosts, hostfile) if host.name in inventory]
    have = {label for facts in there for gpu in facts.gpus for label in _labels(gpu)}
    if missing := [label for label in labels.split(",") if label and label not in have] if there else []:
        shown = ", ".join(f"{facts.host} has {_listed(facts)}" for facts in there[:_HOSTS_SHOWN])
        more = f", and {len(there) - _HOSTS_SHOWN} more hosts" if len(there) > _HOSTS_SHOWN else ""
        raise PlanError(
            f"{option} {pattern}: there is no GPU {', '.join(missing)}: {shown}{more}",
            "Name GPUs that are there; tflaunch gpus lists them.",
        )


def _labels(gpu: Gpu) -> list[str]:
    return [gpu.label, *(instance.label for instance in gpu.mig)]


def _listed(facts: HostFacts) -> str:
    """`0-3`, `0, 2, 3.0, 3.1`, or why there are none."""
    labels = [device.label for device in facts.gpus_or_instances]
    if not labels:
        return f"none ({facts.gpu_note})" if facts.gpu_note else "none"
    if len(labels) > 2 and labels == [str(index) for index in range(len(labels))]:
        return f"0-{len(labels) - 1}"
    return ", ".join(labels)


def _names(selected: Mapping[str, frozenset[str] | None], host: str, gpu: Gpu, device: GpuOrInstance) -> bool:
    """Whether `selected` names this device; the label of a GPU stands for all of its MIG instances."""
    labels = selected.get(host, frozenset())
    return labels is None or gpu.label in labels or device.label in labels


def take_nearest(
    gpus: Sequence[GpuOrInstance], count: int
) -> tuple[tuple[GpuOrInstance, ...], list[GpuOrInstance]]:
    """Return (the `count` GPUs that are nearest to each other, the rest), each in the order of `gpus`.

    They are of one model where one model has that many.
    """
    if count <= 1 or count >= len(gpus):
        return tuple(gpus[:count]), list(gpus[count:])
    models = Counter(gpu.name for gpu in gpus)
    enough = [gpu for gpu in gpus if models[gpu.name] >= count]
    best: tuple[int, list[GpuOrInstance]] = (-1, [])
    for first in enough or gpus:  # a group grows from each GPU by the one that is nearest to all in it
        pool = [gpu for gpu in enough if gpu.name == first.name] or gpus
        group, total = [first], 0
        while len(group) < count:
            left = [gpu for gpu in pool if gpu not in group]
            gains = [sum(_nearness(gpu, other) for other in group) for gpu in left]
            total += max(gains)
            group.append(left[gains.index(max(gains))])
        if total > best[0]:
            best = (total, group)
    taken = sorted(best[1], key=lambda gpu: gpu.index)
    return tuple(taken), [gpu for gpu in gpus if gpu not in taken]


def _nearness(one: GpuOrInstance, other: GpuOrInstance) -> int:
    link = one.links.get(other.index, "") if isinstance(one, Gpu) else ""
    return _NVLINK + int(link[2:]) if link.startswith("NV") else _NEAR.get(link, 0)
