"""The lab of the pages, one for each process of pytest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.world import World
from tests.support import bed as beds


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[World]:
    """The lab; everything in it ends with the session."""
    if reason := beds.missing():
        pytest.skip(reason)
    world = World(tmp_path_factory.mktemp("world"), library)
    yield world
    world.close()
