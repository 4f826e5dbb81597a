"""What several tests of pages need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the reference, made in a process of its own, as Sphinx has them made."""
    folder = tmp_path_factory.mktemp("docs") / "reference"
    program = "import pathlib, sys, generator; generator.write(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, folder], cwd=DOCS, check=True)
    return folder
