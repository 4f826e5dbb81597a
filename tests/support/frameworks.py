"""Where PyTorch, JAX and Horovod are, for the tests that run them."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import ROOT

EXAMPLES = ROOT / "examples"
# For programs without Keras: TensorFlow imports that of tf_keras then, which is not here: three seconds of processor
# time in place of four.
NO_KERAS = {"TF_USE_LEGACY_KERAS": "1"}
WITHOUT_KERAS = "--env=TF_USE_LEGACY_KERAS=1"
TORCH = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
}
JAX = {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"}


def python_with(package: str) -> Path | None:
    """The Python that has this framework: that of .venv-frameworks, else the system's with Debian's package."""
    if [*ROOT.glob(f".venv-frameworks/lib/python*/site-packages/{package}/__init__.py")]:
        return ROOT / ".venv-frameworks" / "bin" / "python"
    if Path(f"/usr/lib/python3/dist-packages/{package}/__init__.py").exists():
        return Path("/usr/bin/python3")
    return None


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        python_with(package) is None,
        reason=f"{package} is neither in .venv-frameworks nor a package of the system: scripts/test says why",
    )


def horovod_cache() -> Path:
    """Where `scripts/engines horovod` puts the Horovod for the TensorFlow that is here."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = "none"
    for package in ("tensorflow-cpu", "tensorflow"):
        try:
            name = importlib.metadata.version(package)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    return cache / "tflaunch-tests" / f"horovod-0.28.1-tf{name}-{sys.implementation.cache_tag}"


HOROVOD = horovod_cache()  # of the user who runs the tests: they have homes of their own
needs_horovod = pytest.mark.skipif(
    not (HOROVOD / "horovod").exists(),
    reason=f"no Horovod in {HOROVOD}: `scripts/engines horovod` builds it, in 2 to 6 minutes",
)


def given(env: Mapping[str, str]) -> dict[str, str]:
    theirs = TORCH | JAX | {"GLOO_SOCKET_IFNAME"}
    return {name: value for name, value in env.items() if name in theirs or name.startswith("HOROVOD_")}
