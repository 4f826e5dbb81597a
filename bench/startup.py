"""Start-up: what is felt before anything happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.beds import TFLAUNCH
from bench.measure import Figures, Table, interleave
from bench.plan import Plan


def startup(plan: Plan) -> Iterator[Table]:
    """All of it with the Python that tflaunch runs with."""
    python = sys.executable
    table = Table("Start-up", "python -c pass", ("wall s", "CPU s"))
    fabric = str(Path(python).with_name("fab"))
    complete = (
        "env",
        "_TFLAUNCH_COMPLETE=complete_bash",
        "COMP_WORDS=tflaunch run --",
        "COMP_CWORD=2",
        TFLAUNCH,
    )
    commands = {
        "python -c pass": (python, "-c", "pass"),
        "python -c 'import paramiko'": (python, "-c", "import paramiko"),
        "fabric --version": (fabric, "--version")
        if Path(fabric).exists()
        else (python, "-c", "from fabric.main import program; program.run('fab --version')"),
        "tflaunch --version": (TFLAUNCH, "--version"),
        "tflaunch --help": (TFLAUNCH, "--help"),
        "tflaunch run --help": (TFLAUNCH, "run", "--help"),
        "tflaunch, completion in bash": complete,
    }

    def method(words: Sequence[str]) -> Callable[[], Figures]:
        def measure() -> Figures:
            cost = plan.lab.run(*words)
            return {"wall s": cost.wall_s, "CPU s": cost.client_s}

        return measure

    methods = {name: method(words) for name, words in commands.items()}
    yield interleave(table, methods, plan.rounds, plan.tell)

    typer = "python -c 'import typer'"  # the help should cost at most twice as much
    table = Table("Help", typer, ("wall s", "CPU s"))
    helps = {name: methods[name] for name in ("tflaunch --version", "tflaunch --help", "tflaunch run --help")}
    methods = {typer: method((python, "-c", "import typer")), **helps}
    yield interleave(table, methods, plan.rounds, plan.tell)
