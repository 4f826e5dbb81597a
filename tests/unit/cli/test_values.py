"""Values on the command line: wrong ones, and such as were left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tflaunch.cli.command import Verb
from tflaunch.cli.options import flatten, parser
from tflaunch.inputs.options.declared import option
from tflaunch.inputs.options.values import TimeParser


class Choice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


app = typer.Typer(rich_markup_mode=None)


@dataclass(repr=False, eq=False)
class WaitOptions:
    """An option whose value may be left out."""

    wait: float | None = option(None, alone=(r"[0-9]+", "60"))


def verb(
    *,
    workers: Annotated[int, typer.Option(min=0, max=9)] = 0,
    grace: Annotated[float, typer.Option(metavar="TIME", parser=parser(TimeParser(0.5)))] = 600.0,
    limit: Annotated[float, typer.Option(metavar="TIME", parser=parser(TimeParser()))] = 0.0,
    place: Choice = Choice.spread,
    waiting: WaitOptions,
    words: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """Options of every kind that tflaunch has."""
    typer.echo(f"{workers} {grace} {limit} {place.value} {waiting.wait} {words or []}")


app.command(cls=Verb)(flatten(verb))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--workers=many", "'--workers': 'many' is not a whole number"),
        ("--workers=1.5", "'--workers': '1.5' is not a whole number"),
        ("--workers=-1", "'--workers': '-1' is less than 0"),
        ("--workers=10", "'--workers': '10' is more than 9"),
        ("--grace=soon", "'--grace': 'soon' is not a time: 90 (seconds), 90s, 15m, 12h or 2d"),
        ("--grace=-1", "'--grace': '-1' is not a time: 90 (seconds), 90s, 15m, 12h or 2d"),
        ("--grace=0", "'--grace': '0' is less than 0.5s"),
        ("--place=wide", "'--place': 'wide' is not one of 'spread', 'pack'."),
    ],
)
def test_a_wrong_value_is_told_with_what_is_accepted(option: str, said: str) -> None:
    done = CliRunner().invoke(app, [option])
    assert done.exit_code == 2
    assert done.output.splitlines()[-1] == f"Error: Invalid value for {said}"


@pytest.mark.parametrize(("written", "meant"), [("2", 2.0), ("1.5h", 5400.0), ("2d", 172800.0)])
def test_a_right_value_is_taken(written: str, meant: float) -> None:
    done = CliRunner().invoke(app, ["--workers=3", f"--grace={written}", "--place=pack"])
    assert done.output == f"3 {meant} 0.0 pack None []\n"


def test_the_help_tells_what_a_time_is_and_shows_one_that_is_left_out_as_it_is_written() -> None:
    told = CliRunner().invoke(app, ["--help"]).output
    assert "A TIME is 90 (seconds), 90s, 15m, 12h or 2d." in told
    assert " ".join(told.split()).count("--grace TIME [10m]") == 1
    assert "[0s]" not in told  # no limit


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
    assert CliRunner().invoke(app, args).output == f"0 600.0 0.0 spread {told}\n"
