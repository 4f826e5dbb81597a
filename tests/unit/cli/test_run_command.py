"""The `tflaunch run` command that a search and a sweep print for what they have found."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from tflaunch.cli import application
from tflaunch.cli.run_command import run_command
from tflaunch.cli.tune import _of_the_run


def of(*words: str) -> str:
    """The command for what `tflaunch tune` with these words has found: one ps."""
    tune: Any = typer.main.get_command(application(["tune"]))
    context = tune.commands["tune"].make_context("tune", ["h", "t.py", *words])
    found = run_command(context, _of_the_run(), ("--ps", "1", "--env", "OMP_NUM_THREADS=4"))
    return " ".join(found).replace("tflaunch run h --ps 1 --env OMP_NUM_THREADS=4", "...")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--no-flags"], "... --no-flags t.py --"),
        (["--flags", "--no-sync"], "... --flags --no-sync t.py --"),
        (["--require-all", "--place=pack"], "... --require-all t.py --"),
        (["--env=A=hf_abcdef", "-eB", "-e", "C=x=1"], "... --env A --env B --env C t.py --"),
        (["--job-env=ps=A=hf_abcdef", "--job-env", "ps=B"], "... --job-env ps=A --job-env ps=B t.py --"),
        (
            ["--grace=2", "--env-file=a=b", "--framework", "torch"],
            "... --grace 2.0 --env-file a=b --framework torch t.py --",
        ),
    ],
)
def test_it_has_the_options_of_the_search_and_no_value_of_a_variable(words: list[str], shown: str) -> None:
    assert of(*words) == shown
