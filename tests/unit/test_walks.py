"""The walks of docs/architecture.md: each step names code that exists, and imports lead from step to step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_house import FILES, imports, names_of

PAGE = Path(__file__).resolve().parents[2] / "docs/architecture.md"
STEP = re.compile(r"^\d+\. (⇢ )?(.*(?:\n {3,}.*)*)", re.MULTILINE)
CODE = re.compile(r"`((?:[a-z_]+\.)+\w+(?:\.\w+)*)`")


def walks() -> dict[str, str]:
    text = PAGE.read_text("utf-8").partition("\n## Eight walks\n")[2].partition("\n## ")[0]
    _, *rest = re.split(r"^### ", text, flags=re.MULTILINE)
    return dict(each.split("\n", 1) for each in rest)


def module_of(code: str) -> str:
    """The module of `room.file.function`, or of a file alone; fails where there is no such code."""
    parts = ["tflaunch", *code.split(".")]
    for end in range(len(parts), 1, -1):
        name = ".".join(parts[:end])
        if name in FILES:
            inside = ".".join(parts[end:])
            assert not inside or inside in names_of(FILES[name]), f"{name} has no {inside}"
            return name
    raise AssertionError(f"there is no file of {code}")


def test_there_are_eight() -> None:
    assert len(walks()) == 8


@pytest.mark.parametrize("walk", walks())
def test_each_step_is_there_and_imports_lead_to_it(walk: str) -> None:
    steps = STEP.findall(walks()[walk])
    assert len(steps) > 5
    seen: set[str] = set()
    for jump, text in steps:
        first, *others = [module_of(code) for code in CODE.findall(text)]
        known = not seen or first in seen or any(first in imports()[name] for name in seen)
        assert known != bool(jump), f"{first} is {'' if known else 'not '}imported by a step above"
        seen |= {first, *others}
