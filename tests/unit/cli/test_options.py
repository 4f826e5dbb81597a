"""Groups of options as dataclasses: what typer makes of them, and what the verb gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tflaunch.cli.options import flatten
from tflaunch.inputs.options.declared import Part, argument, option


@dataclass
class Place:
    """A group of options."""

    panel = "Where"

    hosts: str | None = argument(None, metavar="HOSTS")
    only: tuple[str, ...] = option((), "--only", "-o", help="Only these.")
    dry_run: bool = option(False, help="Start nothing.")
    most: int = option(7, min=1, help="At most.")


@dataclass
class Whole:
    """A group of groups."""

    place: Annotated[Place, Part(without=("most",), help={"dry_run": "Print the plan."})]


def said(function: object, *words: str) -> str:
    """What the verb prints."""
    app = typer.Typer(rich_markup_mode=None)
    app.command()(flatten(function))  # type: ignore[arg-type]
    return CliRunner().invoke(app, words).output


def whole(options: Whole, *, more: Annotated[int, typer.Option()] = 1) -> None:
    """A verb that takes groups of groups, and an option of its own."""
    print(options.place, more)


def part(place: Annotated[Place, Part("only", "most", default={"most": 9})]) -> None:
    """A verb that takes a part of a group."""
    print(place)


def test_a_verb_gets_its_groups_filled() -> None:
    assert said(whole) == "Place(hosts=None, only=(), dry_run=False, most=7) 1\n"
    words = ("a", "--only=b", "-o", "c", "--dry-run", "--more=2")
    assert said(whole, *words) == "Place(hosts='a', only=('b', 'c'), dry_run=True, most=7) 2\n"
    assert said(part, "--only=b") == "Place(hosts=None, only=('b',), dry_run=False, most=9)\n"


def test_a_verb_has_only_the_options_of_its_part_and_their_texts() -> None:
    help_of_whole, help_of_part = said(whole, "--help"), said(part, "--help")
    assert "A verb that takes groups of groups" in help_of_whole
    assert "Print the plan." in help_of_whole
    assert "--no-dry-run" not in help_of_whole
    assert "--most" not in help_of_whole
    assert "--most" in help_of_part
    assert "HOSTS" not in help_of_part
    assert "No such option" in said(part, "--dry-run")


def test_a_part_names_only_options_that_the_group_has() -> None:
    def verb(place: Annotated[Place, Part(without=("least",))]) -> None:
        raise AssertionError(place)

    with pytest.raises(TypeError, match="Place has no option least"):
        flatten(verb)
