"""The fixture of the fault suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import Trial
from tests.support.bed import Bed, FarLauncher
from tests.support.nvml import build


@pytest.fixture(scope="session")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated NVML, compiled once."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def trial(bed: Bed, far: FarLauncher, gpus: Path, request: pytest.FixtureRequest) -> Trial:
    """A run to be, on a bed of its own."""
    marker = request.node.get_closest_marker("fault")
    name = marker.args[0] if marker else request.node.name
    return Trial(bed, far, gpus, name, wire=getattr(request, "param", "ssh"))
