"""The Python that tasks on this machine run by, where the hostfile names none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tflaunch.frameworks.table import BY_NAME

_ACTIVE = {"VIRTUAL_ENV": "the active environment", "CONDA_PREFIX": "the active conda environment"}


class LocalPython(NamedTuple):
    """An interpreter, and where it comes from, for people."""

    path: str
    source: str


def local_python(environ: Mapping[str, str] = os.environ) -> LocalPython:
    """Return the Python of the active environment, else the first on PATH, else tflaunch's own.

    A tflaunch that pipx or uv has installed has an environment to itself.  If a framework is installed beside it, that
    environment is for training, and comes before PATH, and before conda's base, which is active in every shell.
    """
    own_trains = any(importlib.util.find_spec(name) for name in BY_NAME)
    for variable, source in _ACTIVE.items():
        if variable == "CONDA_PREFIX" and own_trains and environ.get("CONDA_DEFAULT_ENV") == "base":
            continue
        if directory := environ.get(variable):
            for name in ("python3", "python"):
                path = Path(directory, "bin", name)
                if os.access(path, os.X_OK):
                    return LocalPython(str(path), source)
    if own_trains:
        return LocalPython(sys.executable, "tflaunch's own, with a framework beside it")
    if found := shutil.which("python3", path=environ.get("PATH")):
        return LocalPython(found, "the first python3 on PATH")
    return LocalPython(sys.executable, "tflaunch's own")
