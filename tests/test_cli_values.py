"""What is said of a wrong value on the command line."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tflaunch.cli.values import Command


class Choice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


app = typer.Typer(rich_markup_mode=None)


@app.command(cls=Command)
def verb(
    *,
    workers: Annotated[int, typer.Option(min=0, max=9)] = 0,
    grace: Annotated[float, typer.Option(min=0.5)] = 1.0,
    place: Choice = Choice.spread,
) -> None:
    """Options of every kind that tflaunch has."""
    typer.echo(f"{workers} {grace} {place.value}")


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
    assert CliRunner().invoke(app, ["--workers=3", "--grace=2", "--place=pack"]).output == "3 2.0 pack\n"
