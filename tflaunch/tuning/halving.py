"""Which layouts each round tries: all, then the faster half of them with twice as many steps, until two are left; pure.

This is successive halving (Jamieson and Talwalkar, 2016), with steps as the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
HOPELESS = 0.5  # of the slowest rate that goes on: a try that is slower need not go on to its last step


@dataclass(frozen=True)
class Round:
    """How many layouts it tries, and how many steps of each are measured."""

    layouts: int
    steps: int


def rounds(layouts: int, steps: int) -> tuple[Round, ...]:
    """The rounds for so many layouts; the last one measures `steps`."""
    sizes = [layouts]
    while sizes[-1] > 2:
        sizes.append((sizes[-1] + 1) // 2)
    last = len(sizes) - 1
    return tuple(Round(size, max(1, steps >> (last - number))) for number, size in enumerate(sizes))


def fastest(rates: Mapping[T, float | None], most: int) -> list[T]:
    """The `most` fastest, the fastest first; those without a rate are left out."""
    known = {each: rate for each, rate in rates.items() if rate is not None}
    return sorted(known, key=lambda each: -known[each])[:most]


def is_hopeless(rate: float, others: Sequence[float], kept: int) -> bool:
    """Whether a layout with that rate is far from the `kept` fastest of this round, by the `others` measured so far."""
    return len(others) >= kept > 0 and rate < HOPELESS * sorted(others, reverse=True)[kept - 1]
