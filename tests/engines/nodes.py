"""The nodes of a cluster in a bed, for the tests of each engine that has one there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import bed as beds
from tests.support.bed import Bed


@contextlib.contextmanager
def nodes(
    factory: pytest.TempPathFactory, name: str, count: int, library: Path, cards: int, *share: str
) -> Iterator[tuple[Bed, Path]]:
    """A bed of so many hosts with so many cards each, none with an sshd, and a directory for their cluster.

    They see the home directories of the tests, and what `share` names.
    """
    if reason := beds.missing():
        pytest.skip(reason)
    directory = factory.mktemp(name)
    bed = Bed(directory / "bed")
    try:
        for host in bed.up(count, share=[str(factory.getbasetemp()), *share]):
            host.give_gpus(library, *(f"gpu uuid=GPU-{host.name}-{index}" for index in range(cards)))
            host.kill_sshd(sessions=True)
        yield bed, directory / "cluster"
    finally:
        bed.close()
