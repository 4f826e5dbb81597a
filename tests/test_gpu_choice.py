"""Which cards a run may take, and which go together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tflaunch.errors import UsageError
from tflaunch.gpu_choice import GpuChoice, choose, take_nearest
from tflaunch.hosts import Host, Hostfile
from tflaunch.inventory import Gpu, GpuProcess, HostFacts, Lease

HOSTFILE = Hostfile("test", (Host("a"), Host("b")))
USED = GpuProcess(1, "ada", "train", "compute", None, None)


def card(index: int, name: str = "NVIDIA H100", gib: float = 80, **fields: object) -> Gpu:
    return Gpu(index, f"GPU-{index}", name, int(gib * 2**30), 0, compute_mode="default", **fields)  # type: ignore[arg-type]


def free(*cards: Gpu, host: str = "a", **choice: object) -> list[int]:
    """The indices that are free on that host after the choice."""
    facts = HostFacts(host, host, "boot", (), "3.11", 8, 2**34, (), tuple(cards))
    chosen = choose({host: facts}, GpuChoice(**choice), HOSTFILE)  # type: ignore[arg-type]
    return [gpu.index for gpu in chosen[host].gpus if not gpu.busy]


def test_no_choice_changes_nothing() -> None:
    assert free(card(0), card(1, busy="in use")) == [0]


def test_model_and_memory() -> None:
    cards = (card(0), card(1, "NVIDIA A100-SXM4-40GB", 39.6), card(2, "Tesla T4", 15))
    assert free(*cards, model="a100") == [1]
    assert free(*cards, min_memory_bytes=40 * 2**30) == [0, 1]
    assert free(*cards, min_memory_bytes=41 * 2**30) == [0]


def test_include_and_exclude() -> None:
    cards = (card(0), card(1), card(2))
    assert free(*cards, exclude=("a:0,2",)) == [1]
    assert free(*cards, exclude=("b",)) == [0, 1, 2]
    assert free(*cards, exclude=("*:1", "a:0")) == [2]
    assert free(*cards, include=("a:1",)) == [1]
    assert free(*cards, include=("b",)) == []
    assert free(*cards, include=("a",), exclude=("a:1",)) == [0, 2]


@pytest.mark.parametrize("pattern", ["a:", "a:x", "a:0-2", "a:0,", "c", "c:0"])
def test_a_pattern_that_fits_nothing(pattern: str) -> None:
    with pytest.raises(UsageError):
        free(card(0), exclude=(pattern,))


def test_shared_cards_are_those_that_others_compute_on() -> None:
    busy = replace(card(0), busy="in use by ada", processes=(USED,))
    leased = replace(card(1), busy="leased", lease=Lease("ada", "run", 0.0))
    lost = replace(card(2), busy="broken", error="lost")
    exclusive = replace(card(3), busy="in use by ada", compute_mode="exclusive_process")
    assert free(busy, leased, lost, exclusive) == []
    assert free(busy, leased, lost, exclusive, share=True) == [0]


def linked(*pairs: tuple[int, int], count: int = 4, link: str = "NV4") -> list[Gpu]:
    """Cards of which those pairs are joined by `link`, all others by SYS."""
    near = {(a, b) for pair in pairs for a, b in (pair, pair[::-1])}
    return [
        card(i, links={j: link if (i, j) in near else "SYS" for j in range(count) if j != i})
        for i in range(count)
    ]


def test_cards_that_are_joined_go_together() -> None:
    first, rest = take_nearest(linked((0, 3), (1, 2)), 2)
    assert [gpu.index for gpu in first] == [0, 3]
    second, rest = take_nearest(rest, 2)
    assert ([gpu.index for gpu in second], rest) == ([1, 2], [])
    group, _ = take_nearest(linked(*pairwise((1, 2, 3)), (1, 3), link="PIX"), 3)
    assert [gpu.index for gpu in group] == [1, 2, 3]


def test_more_links_are_nearer() -> None:
    cards = linked((0, 1), link="NV2")
    cards[2] = replace(cards[2], links={**cards[2].links, 3: "NV12"})
    cards[3] = replace(cards[3], links={**cards[3].links, 2: "NV12"})
    assert [gpu.index for gpu in take_nearest(cards, 2)[0]] == [2, 3]


@pytest.mark.parametrize("count", [0, 1, 2, 4, 9])
def test_equal_cards_go_by_index(count: int) -> None:
    cards = linked()
    taken, rest = take_nearest(cards, count)
    assert [*taken, *rest] == cards
    assert len(taken) == min(count, 4)
