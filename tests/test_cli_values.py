"""Values on the command line: wrong ones, and such as were left out."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from tflaunch.cli.values import Command


class Choice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


app = typer.Typer(rich_markup_mode=None)


class Patient(Command):
    """A verb with an option whose value may be left out."""

    optional_values: ClassVar = {"--wait": (r"[0-9]+", "60")}


@app.command(cls=Patient)
def verb(
    *,
    workers: Annotated[int, typer.Option(min=0, max=9)] = 0,
    grace: Annotated[float, typer.Option(min=0.5)] = 1.0,
    place: Choice = Choice.spread,
    wait: Annotated[float | None, typer.Option()] = None,
    words: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """Options of every kind that tflaunch has."""
    typer.echo(f"{workers} {grace} {place.value} {wait} {words or []}")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--workers=many", "'--workers': 'many' is not a whole number"),
        ("--workers=1.5", "'--workers': '1.5' is not a whole number"),
        ("--workers=-1", "'--workers': '-1' is less than 0"),
        ("--workers=10", "'--workers': '10' is more than 9"),
        ("--grace=soon", "'--grace': 'soon' is not a number"),
        ("--grace=0", "'--grace': '0' is less than 0.5"),
        ("--place=wide", "'--place': 'wide' is not one of 'spread', 'pack'."),
    ],
)
def test_a_wrong_value_is_told_with_what_is_accepted(option: str, said: str) -> None:
    done = CliRunner().invoke(app, [option])
    assert done.exit_code == 2
    assert done.output.splitlines()[-1] == f"Error: Invalid value for {said}"


def test_a_right_value_is_taken() -> None:
    assert (
        CliRunner().invoke(app, ["--workers=3", "--grace=2", "--place=pack"]).output == "3 2.0 pack None []\n"
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--wait", "9", "a"], "9.0 ['a']"),
        (["--wait=9", "8"], "9.0 ['8']"),
        (["--wait", "a"], "60.0 ['a']"),
        (["a", "--wait"], "60.0 ['a']"),
        (["--wait", "--workers=0"], "60.0 []"),
        (["a", "--", "--wait", "b"], "None ['a', '--wait', 'b']"),
    ],
)
def test_a_value_that_may_be_left_out(args: list[str], told: str) -> None:
    assert CliRunner().invoke(app, args).output == f"0 1.0 spread {told}\n"
