"""Which cards a run may take, and which of them go together: pure, before the plan.

A card that is not wanted is a busy card whose reason says so, so that plan and messages need know no more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tflaunch.errors import UsageError
from tflaunch.hosts import Hostfile, match
from tflaunch.inventory import Gpu, HostFacts, Inventory

# How near two cards are, best first; `NV4`, so many NVLinks, is nearer than any of them.
_NEAR = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}
_NVLINK = 10
_SOLD_AS = 0.98  # a card that is sold with 80 GiB shows up to 2 % less: the driver keeps some


@dataclass(frozen=True)
class GpuChoice:
    """What the command line says of cards; `include` and `exclude` are `HOSTS` or `HOSTS:INDICES`."""

    model: str = ""  # part of the name, in any case
    min_memory_bytes: int = 0  # of the whole card
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    share: bool = False  # also cards that others compute on; never leased or broken ones


def choose(inventory: Inventory, choice: GpuChoice, hostfile: Hostfile) -> dict[str, HostFacts]:
    """The inventory as the plan shall see it; raises UsageError for a pattern that fits nothing."""
    included = _selected("--include", choice.include, hostfile)
    excluded = _selected("--exclude", choice.exclude, hostfile)

    def unwanted(host: str, gpu: Gpu) -> str:
        if choice.model and choice.model.lower() not in gpu.name.lower():
            return f"no {choice.model} (--gpu-model)"
        if gpu.memory_total_bytes < choice.min_memory_bytes * _SOLD_AS:
            return f"less than {choice.min_memory_bytes / 2**30:g} GiB (--min-gpu-memory)"
        if choice.include and not _names(included, host, gpu.index):
            return "not in --include"
        return "in --exclude" if _names(excluded, host, gpu.index) else ""

    def seen(host: str, gpu: Gpu) -> Gpu:
        if reason := unwanted(host, gpu):
            return replace(gpu, busy=reason)
        takes = not (
            gpu.error or gpu.lease or gpu.lease_error or gpu.mig_mode or gpu.compute_mode != "default"
        )
        return replace(gpu, busy="") if choice.share and gpu.busy and takes else gpu

    return {
        host: replace(facts, gpus=tuple(seen(host, gpu) for gpu in facts.gpus))
        for host, facts in inventory.items()
    }


def _selected(
    option: str, patterns: Sequence[str], hostfile: Hostfile
) -> Mapping[str, frozenset[int] | None]:
    """Host to the indices that are meant there, None for all."""
    found: dict[str, frozenset[int] | None] = {}
    for pattern in patterns:
        hosts, colon, indices = pattern.partition(":")
        if colon and not re.fullmatch(r"\d+(,\d+)*", indices):
            raise UsageError(
                f"{option} {pattern}: not HOST or HOST:0,2", "indices are those of tflaunch gpus"
            )
        for host in match(hosts, hostfile):
            before = found.get(host.name, frozenset())
            these = frozenset(map(int, indices.split(","))) if colon else None
            found[host.name] = None if before is None or these is None else before | these
    return found


def _names(selected: Mapping[str, frozenset[int] | None], host: str, index: int) -> bool:
    indices = selected.get(host, frozenset())
    return indices is None or index in indices


def take_nearest(cards: Sequence[Gpu], count: int) -> tuple[tuple[Gpu, ...], list[Gpu]]:
    """(`count` cards that are best connected with each other, the rest); equal ones go by index."""
    if count <= 1 or count >= len(cards):
        return tuple(cards[:count]), list(cards[count:])
    best: tuple[int, list[Gpu]] = (-1, [])
    for first in cards:  # a group grows from each card by the one that is nearest to all in it
        group, total = [first], 0
        while len(group) < count:
            left = [card for card in cards if card not in group]
            gains = [sum(_nearness(card, other) for other in group) for card in left]
            total += max(gains)
            group.append(left[gains.index(max(gains))])
        if total > best[0]:
            best = (total, group)
    taken = sorted(best[1], key=lambda card: card.index)
    return tuple(taken), [card for card in cards if card not in taken]


def _nearness(one: Gpu, other: Gpu) -> int:
    link = one.links.get(other.index, "")
    return _NVLINK + int(link[2:]) if link.startswith("NV") else _NEAR.get(link, 0)
