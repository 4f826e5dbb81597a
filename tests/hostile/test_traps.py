"""Another user of a machine sets traps where he may write: nothing of ours is read as a run, changed or removed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.trap_places import PLACES

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
LOOP_S = 1.0


@pytest.fixture
def lab() -> Iterator[Path]:
    """A directory that all can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103, PTH101
        path = Path(directory) / "lab"
        path.mkdir()
        yield path


def played(lab: Path, *words: object) -> int:
    env = {**os.environ, "TFLAUNCH_LEASES": str(lab / "leases"), "TFLAUNCH_STATE": str(lab / "state")}
    command = [sys.executable, "-m", "tests.support.trap_places", *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("place", PLACES)
def test_whatever_he_exchanges_between_two_system_calls(lab: Path, place: str) -> None:
    assert played(lab, place, lab) > 50


@pytest.mark.parametrize("place", PLACES)
def test_whatever_he_exchanges_all_the_time(lab: Path, place: str) -> None:
    assert played(lab, place, lab, LOOP_S) > 0
