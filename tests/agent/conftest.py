"""Fixtures of the tests with the agent over pipes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import Host
from tests.support.lab import PATH
from tests.support.nvml import Fleet


@pytest.fixture
def lab() -> Iterator[Path]:
    """A directory of root's that all can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as directory:  # a guard may still write there
        os.chmod(directory, 0o755)  # noqa: S103, PTH101
        yield Path(directory)


@pytest.fixture
def leases(lab: Path) -> Path:
    """The directory of leases, as root's first run would make it."""
    path = lab / "leases"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def gpus(library: Path, leases: Path, tmp_path: Path) -> Iterator[Host]:
    """A host with the GPUs GPU-a and GPU-b, of which the kernel shows no files."""
    fleet = Fleet(library, tmp_path / "fleet", "gpu uuid=GPU-a mem=1024", "gpu uuid=GPU-b mem=1024")
    host = Host(tmp_path)
    host.env |= {**fleet.env, "TFLAUNCH_LEASES": str(leases), "PATH": PATH}
    yield host
    host.close()
