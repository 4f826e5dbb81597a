"""Every command of README.md and docs/ is run, on the lab of the pages, and what a page shows as its output is compared."""

from __future__ import annotations

import re

import pytest

from tests.docs import plays, shapes
from tests.docs.pages import Command, commands, documents
from tests.docs.world import World


def _commands() -> dict[str, list[Command]]:
    """The commands by their text: what stands on two pages is run once."""
    found: dict[str, list[Command]] = {}
    for page in documents():
        for command in commands(page):
            found.setdefault(plays.uncommented(command.text), []).append(command)
    return found


ALL = _commands()
HERE = {text: found for text, found in ALL.items() if plays.matching(plays.NOT_RUN, text) is None}


@pytest.mark.parametrize("text", HERE, ids=lambda text: text.splitlines()[0][:90])
def test_the_command_does_what_the_page_says(text: str, world: World) -> None:
    where = ", ".join(command.where for command in HERE[text])
    first = plays.matching(plays.FIRST, text)
    run = first(world) if callable(first) else ""
    said = plays.matching(plays.UNTIL, text)
    typed = world.type(plays.as_typed(text, str(run)), until_said=str(said) if said else None)
    allowed = plays.matching(plays.CODES, text) or (0,)
    assert typed.code in allowed, f"{where}: {text}\nexit code {typed.code}\n{typed.all}"  # type: ignore[operator]
    assert "Traceback" not in typed.all, f"{where}: {text}\n{typed.all}"
    for command in HERE[text]:
        lacking = shapes.missing(command.prints, typed.all)
        assert not lacking, f"{command.where}: nothing like this was printed:\n{lacking}\nbut:\n{typed.all}"
    if re.search(r"--detach|\btflaunch up\b", text):
        world.quiet()


def test_what_is_not_run_has_a_reason() -> None:
    assert all(len(reason.split()) > 2 for _, reason in plays.NOT_RUN)
    assert len(HERE) > len(ALL) / 2
