"""Every command of README.md and docs/ is run on the lab, and what a page shows as its output is compared."""

from __future__ import annotations

import re

import pytest

from tests.docs import plays, shapes
from tests.docs.pages import Block, Command, blocks, commands, documents, files, outputs
from tests.docs.world import FILES, World
from tests.support import ROOT


def _commands() -> dict[tuple[str, str], list[Command]]:
    """The commands by their text, and by their page if they name its files: what stands on two pages is run once."""
    found: dict[tuple[str, str], list[Command]] = {}
    for page in documents():
        own = [name for name in files(page) if name not in FILES]
        for command in commands(page):
            text = plays.uncommented(command.text)
            page_of = command.page if any(name in text for name in own) else ""
            found.setdefault((text, page_of), []).append(command)
    return found


ALL = _commands()
HERE = {key: found for key, found in ALL.items() if plays.matching(plays.NOT_RUN, key[0]) is None}


def _id(key: tuple[str, str]) -> str:
    return key[0].splitlines()[0][:90]


@pytest.mark.parametrize("key", HERE, ids=_id)
def test_the_command_does_what_the_page_says(key: tuple[str, str], world: World) -> None:
    text, shown = key[0], HERE[key]
    where = ", ".join(command.where for command in shown)
    world.write(files(ROOT / shown[0].page))
    first = plays.matching(plays.FIRST, text)
    run = first(world) if callable(first) else ""
    said = plays.matching(plays.UNTIL, text)
    typed = world.type(plays.as_typed(text, str(run)), until_said=str(said) if said else None)
    allowed = plays.matching(plays.CODES, text) or (0,)
    assert typed.code in allowed, f"{where}: {text}\nexit code {typed.code}\n{typed.all}"  # type: ignore[operator]
    assert "Traceback" not in typed.all, f"{where}: {text}\n{typed.all}"
    for command in shown:
        lacking = shapes.missing(command.prints, typed.out) and shapes.missing(command.prints, typed.all)
        assert not lacking, f"{command.where}: nothing like this was printed:\n{lacking}\nbut:\n{typed.all}"
    if first is World.busy or re.search(r"--detach|\btflaunch up\b", text):
        world.quiet()


CELLS = [
    block
    for page in documents()
    for block in blocks(page)
    if block.language == "python"
    and "losses" in block.text  # those of docs/python.md: tests/runs/test_api.py
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.where)
def test_the_program_does_what_the_page_says(cell: Block, world: World) -> None:
    """A cell of a notebook is a program like any other; the page shows behind it what it prints."""
    (world.proj / "cell.py").write_text(cell.text)
    typed = world.must("python3 cell.py")
    after = [block for block in outputs(ROOT / cell.page) if block.line > cell.line]
    assert not shapes.missing(after[0].lines, typed.out), typed.all


def test_what_is_not_run_has_a_reason() -> None:
    assert all(len(reason.split()) > 2 for _, reason in plays.NOT_RUN)
    assert len(HERE) > len(ALL) / 2
