"""Which Python tasks on this machine run by."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tflaunch.inputs import local_python as module
from tflaunch.inputs.local_python import local_python


def python_in(directory: Path, name: str) -> str:
    path = directory / "bin" / name
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_active_environment_then_path_then_tflaunchs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BY_NAME", ())
    venv, conda = python_in(tmp_path / "venv", "python3"), python_in(tmp_path / "conda", "python")
    on_path = python_in(tmp_path / "usr", "python3")
    environ = {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": f"/none:{tmp_path / 'usr' / 'bin'}",
    }
    for variable, path, source in (
        ("VIRTUAL_ENV", venv, "the active environment"),
        ("CONDA_PREFIX", conda, "the active conda environment"),
        ("PATH", on_path, "the first python3 on PATH"),
    ):
        assert local_python(environ) == (path, source)
        environ[variable] = "/none"
    assert local_python(environ) == (sys.executable, "tflaunch's own")


def test_an_environment_with_a_framework_beside_tflaunch_is_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BY_NAME", ("no_such_framework", "typer"))
    assert importlib.util.find_spec("typer")
    environ = {"PATH": str(Path(python_in(tmp_path / "usr", "python3")).parent)}
    assert local_python(environ).path == sys.executable
    environ |= {"CONDA_PREFIX": str(tmp_path / "usr"), "CONDA_DEFAULT_ENV": "base"}  # in every shell
    assert local_python(environ).path == sys.executable
    environ["CONDA_DEFAULT_ENV"] = "tf"
    assert local_python(environ).source == "the active conda environment"
    environ["VIRTUAL_ENV"] = str(tmp_path / "usr")
    assert local_python(environ).source == "the active environment"
