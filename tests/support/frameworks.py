"""Where PyTorch and JAX are, for the tests that run them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support import ROOT

EXAMPLES = ROOT / "examples"
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
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


def needs(package: str) -> pytest.MarkDecorator:
    there = list(ROOT.glob(f".venv-frameworks/lib/python*/site-packages/{package}/__init__.py"))
    return pytest.mark.skipif(
        not there, reason=f"{package} is not in .venv-frameworks, which scripts/test makes"
    )


def given(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name in TORCH | JAX | {"GLOO_SOCKET_IFNAME"}}
