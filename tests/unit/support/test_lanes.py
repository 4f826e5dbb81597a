"""Tests that share a cluster stay in one worker (tests/support/lanes.py): played with pytest itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import lanes

ROOT = Path(lanes.__file__).parents[2]
CONFTEST = """
import pytest
from tests.support import lanes

def pytest_configure(config):
    config.addinivalue_line("markers", lanes.MARK)

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = lanes.ordered(items, lanes.workers())
"""
PLAIN = """
import time, pytest
@pytest.mark.parametrize("number", range(100))
def test_it(number):
    time.sleep(0.01)
"""
SHARED = PLAIN.replace("@pytest", "pytestmark = pytest.mark.own_cluster\n\n@pytest", 1).replace(
    "range(100)", "range(5)"
)


def test_each_cluster_is_in_one_worker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("a", "c", "e", "f"):
        (tmp_path / f"test_{name}.py").write_text(PLAIN)
    for name in ("b", "d"):
        (tmp_path / f"test_{name}.py").write_text(SHARED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "4", "--dist", "worksteal", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "410 passed" in done.stdout, done.stdout + done.stderr
    ran = re.findall(r"\[(gw\d)\].*PASSED test_(\w)\.py", done.stdout)
    assert len({worker for worker, _ in ran}) == 4
    for module in "bd":
        assert len({worker for worker, name in ran if name == module}) == 1
    assert len({worker for worker, name in ran if name in "bd"}) == 2


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_none_is_lost(request: pytest.FixtureRequest, workers: int) -> None:
    items = request.session.items
    found = lanes.ordered(items, workers)
    assert len(found) == len(items)
    assert set(found) == set(items)
