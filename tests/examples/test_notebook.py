"""The notebook in examples/, as Jupyter executes it: real TensorFlow."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import ROOT
from tests.support.frameworks import NO_KERAS
from tests.support.launcher import Launcher

NOTEBOOK = ROOT / "examples/notebook.ipynb"


def test_the_notebook_runs(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in launcher.env(JUPYTER_RUNTIME_DIR=str(tmp_path / "jupyter"), **NO_KERAS).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], (
        "outputs are not kept in the repository"
    )
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute()
    said = [
        "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert "ps/0 on " in said[1]
    assert " succeeded in " in said[2]
    assert said[3] == "worker=: there is no such option\ndid you mean workers=?\n"
    launcher.wait_until_nothing_is_left()
