"""In which order the tests go to the workers: those that share a cluster stay in one worker, from its first minute.

A worker of xdist (`--dist worksteal`) gets a slice of all tests at first, in their order; when it has none left, it
takes some from the end of another's queue.  A cluster of Spark, Kubernetes, Slurm or YARN takes long to start, and much
memory: if its tests are taken by others, each of them starts one more.  So they go to the beginning of two slices,
which are taken last, and two clusters are up at a time.
"""

from __future__ import annotations

import os
from itertools import groupby

import pytest

MARK = "own_cluster"
LANES = 2


def ordered(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in the order in which so many workers should get them."""
    together = [item for item in items if item.get_closest_marker(MARK)]
    others = [item for item in items if not item.get_closest_marker(MARK)]
    if workers < LANES or not together:
        return items
    lanes: list[list[pytest.Item]] = [[] for _ in range(LANES)]
    modules = [list(group) for _, group in groupby(together, key=lambda item: item.path)]
    for module in sorted(modules, key=len, reverse=True):
        min(lanes, key=len).extend(module)
    slice_of = len(items) // workers  # what the first worker gets; the others get as much, or one more
    first, second = lanes
    rest = max(0, slice_of - len(first))
    return [*first, *others[:rest], *second, *others[rest:]]


def workers() -> int:
    """How many there are; 1 without xdist."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
