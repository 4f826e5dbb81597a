"""Arguments and options that several verbs have by themselves, as typer needs them."""

# No `from __future__ import annotations`: typer needs the annotations, and to evaluate text takes longer.

from typing import Annotated

import typer

from tflaunch.cli import completion
from tflaunch.inputs.options.groups import OUTPUT

Hosts = Annotated[
    str | None,
    typer.Argument(
        metavar="HOSTS",
        help="A hostfile, or host1,host2, or slurm: [$TFLAUNCH_HOSTS, ./hosts.yaml, ~/.config/tflaunch/hosts.yaml]",
        show_default=False,
    ),
]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="The run's id, its name, or its first letters [the only run alive, else the newest]",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
LivingRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="The run's id, its name, or its first letters [the only run alive]",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
RecordedRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="The run's id, or its first letters, as this machine has it on record [the newest]",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
JsonDocument = Annotated[
    bool, typer.Option("--json", help="Print everything as one JSON document.", rich_help_panel=OUTPUT)
]
