"""`tflaunch gpus`: the cards of all hosts, and who uses them."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tflaunch.cli.options import (
    OUTPUT,
    AcceptNew,
    ConnectionOption,
    SshConfig,
    connector,
    load_hosts,
    reporting,
)
from tflaunch.cli.values import TIME_WORD, Command, time_of
from tflaunch.protocol.errors import ConnectErrors, UsageError

if TYPE_CHECKING:
    from tflaunch.console.gpus_output import Form
    from tflaunch.hosts import Hostfile

CARDS = "Which cards"
EVERY = "2s"  # --watch alone


class GpusCommand(Command):
    """`gpus`, whose --watch may stand alone or before a time."""

    optional_values = dict.fromkeys(("--watch", "-w"), (TIME_WORD, EVERY))


class SortChoice(str, Enum):
    """Values of --sort."""

    host = "host"
    memory = "memory"
    utilization = "utilization"
    temperature = "temperature"


def gpus(
    hosts: Annotated[
        str | None,
        typer.Argument(
            metavar="HOSTS",
            help="A hostfile, or host1,host2, or slurm: [$TFLAUNCH_HOSTS, ./hosts.yaml, "
            "~/.config/tflaunch/hosts.yaml]",
            show_default=False,
        ),
    ] = None,
    *,
    free: Annotated[
        bool, typer.Option("--free", help="Only those nobody uses.", rich_help_panel=CARDS)
    ] = False,
    model: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Only those with this in their name: h100", rich_help_panel=CARDS),
    ] = "",
    min_free: Annotated[
        str, typer.Option(metavar="SIZE", help="With so much memory free: 40GiB", rich_help_panel=CARDS)
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            metavar="PATTERN", help="Hosts to ask: names, ranges, globs, label=value.", rich_help_panel=CARDS
        ),
    ] = "",
    sort: Annotated[
        SortChoice,
        typer.Option(
            help="Most free memory, least utilization or highest temperature first.", rich_help_panel=CARDS
        ),
    ] = SortChoice.host,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            "-w",
            parser=time_of(0.1),
            metavar="[TIME]",
            help=f"Look again, so often [{EVERY}]; Ctrl-C ends it.",
        ),
    ] = None,
    topology: Annotated[
        bool,
        typer.Option("--topology", help="How cards are connected: NVLink, PCIe.", rich_help_panel=OUTPUT),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Everything, as one JSON document; watching: one a line.", rich_help_panel=OUTPUT
        ),
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="A line for each card.", rich_help_panel=OUTPUT)] = False,
    oneline: Annotated[
        bool,
        typer.Option("--oneline", help="For scripts, with --free: gpu01:0,2 gpu02:1", rich_help_panel=OUTPUT),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(parser=time_of(1), metavar="TIME", help="For one host to connect and answer."),
    ] = 15.0,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    connection: ConnectionOption = "",
) -> None:
    """Show the cards of all hosts: how they are, who uses them since when, which are free.

    Nothing is installed on the hosts; cards in MIG mode are shown with their instances (3.1: instance 1 of card 3).

    Exit code: 0; 2 command line or hostfile; 69 a host could not be asked (the others are shown).
    """
    from tflaunch.console.gpus_output import CardsOutput
    from tflaunch.inputs.sizes import size
    from tflaunch.survey.gpus import Wanted
    from tflaunch.survey.survey import Survey

    with reporting("stopped before all hosts had answered", json=json) as show:
        forms = {"json": json, "csv": csv, "oneline": oneline, "topology": topology}
        form = _form(forms, watching=watch is not None)
        wanted = Wanted(free, model, size(min_free) if min_free else 0)
        hostfile = _chosen(load_hosts(hosts, connection), host)
        # What is left after connecting is for the answer, so that a dead host says what is wrong with it.
        to_hosts = connector(hostfile.hosts, accept_new, 0.8 * timeout, ssh_config)
        for note in to_hosts.notes:
            show.reporter.warn(note)
        survey = Survey(to_hosts, hostfile.hosts, timeout, topology=topology or json)
        output = CardsOutput(survey, wanted, sort.value, form)
        try:
            with survey.interrupts():
                if watch is not None:
                    output.again_and_again(watch)
                elif unreachable := output.once():
                    if csv or oneline:
                        show.reporter.failures(ConnectErrors(unreachable, len(hostfile.hosts)))
                    show.exit_code = ConnectErrors.exit_code
        except BrokenPipeError:  # `| head` has what it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            survey.close()
            to_hosts.close()


def _form(forms: dict[str, bool], *, watching: bool) -> Form:
    asked = [name for name, given in forms.items() if given]
    if len(asked) > 1:
        raise UsageError(
            f"--{asked[0]} and --{asked[1]} are two forms of one thing", f"leave --{asked[1]} out"
        )
    if watching and asked and asked != ["json"]:
        raise UsageError(f"--watch shows the table, or --json, not --{asked[0]}", f"leave --{asked[0]} out")
    return cast("Form", asked[0] if asked else "")


def _chosen(hostfile: Hostfile, pattern: str) -> Hostfile:
    from tflaunch.hosts import Hostfile, match

    return Hostfile(hostfile.source, tuple(match(pattern, hostfile))) if pattern else hostfile
