"""`tflaunch help`: the help of a verb, as its --help shows it."""

from __future__ import annotations

from typing import Annotated

import typer

from tflaunch.cli import completion


def help(
    command: Annotated[
        str | None,
        typer.Argument(
            metavar="COMMAND",
            help="A command of tflaunch [all commands]",
            show_default=False,
            autocompletion=completion.verbs,
        ),
    ] = None,
) -> None:
    """Show the help of a command: its options, examples and exit codes."""
    from tflaunch.cli import VERBS, application
    from tflaunch.cli.mistakes import unknown_verb

    if command is not None and command not in VERBS:
        raise unknown_verb(command, ["--help"], list(VERBS))
    words = ["--help"] if command is None else [command, "--help"]
    application(words[:-1])(words, prog_name="tflaunch", standalone_mode=False)
