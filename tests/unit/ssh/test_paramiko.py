"""What tflaunch uses of paramiko that is private there, in the newest version that pyproject.toml allows."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import paramiko
import tomllib

from tflaunch.ssh import command_wire, transport

ROOT = Path(__file__).parents[3]


def private(source: str) -> set[str]:
    """The private names in it: attributes, and what a class has of its own."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return {name for name in found if re.match(r"_[a-z]", name)}


def test_the_private_names_that_are_used_are_there() -> None:
    used = private(inspect.getsource(transport.TunedTransport))
    assert used - set(dir(paramiko.Transport)) == {"_aead", "_take_offer"}  # ours
    assert "_send_user_message" in private(inspect.getsource(command_wire)) & set(dir(paramiko.Transport))


def test_the_newest_major_versions_that_are_allowed_are_those_that_are_tested() -> None:
    """A new one is allowed once this passes with it: raise the bound, then scripts/lock."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = dict(re.findall(r"^(\w+)>=[\d.]+,<(\d+)$", "\n".join(needed), re.MULTILINE))
    locked = dict(re.findall(r"^(\w+)==(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {"paramiko", "fabric"} <= allowed.keys()
    assert {name: int(locked[name]) for name in allowed} == {
        name: int(most) - 1 for name, most in allowed.items()
    }
