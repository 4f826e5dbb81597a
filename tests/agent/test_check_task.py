"""The program that `tflaunch check` has a task's Python run, under every Python that is here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.agent_over_pipes import interpreters
from tests.support.checks import fake_tensorflow
from tflaunch.in_task import check_task


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: "-".join(Path(path).parts[-3:-2]))
@pytest.mark.parametrize(("body", "error"), [("", ""), ("import nowhere", "ModuleNotFoundError: No module")])
def test_every_python_can_tell(tmp_path: Path, python: str, body: str, error: str) -> None:
    path = fake_tensorflow(tmp_path, body=body)
    told = subprocess.run(
        [python, "-c", Path(check_task.__file__).read_text(), "tensorflow"],
        env={"PYTHONPATH": str(path), "http_proxy": "http://nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(told.stdout.rpartition(check_task.MARK)[2])
    assert report["error"].startswith(error)
    assert bool(report["error"]) == bool(error)
    assert report["proxies"] == ["http_proxy"]
    assert set(report["limits"]) == {"nofile", "nproc", "memlock", "core"}
    if not error:
        assert report["versions"]["tensorflow"] == "2.21.0"
        assert report["tensorflow"]["build"]["cuda_version"] == "12.5.1"
