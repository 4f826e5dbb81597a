"""`tflaunch gpus`: shows the GPUs of all hosts, and who uses them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tflaunch.cli.command import Command
from tflaunch.cli.connecting import connected
from tflaunch.cli.option_groups import OUTPUT, ConnectionOptions, Hosts
from tflaunch.cli.options import Part, option
from tflaunch.cli.reporting import reporting
from tflaunch.cli.values import TIME_WORD, time_parser
from tflaunch.cli.which_hosts import load_hosts
from tflaunch.inputs.times import seconds
from tflaunch.protocol.errors import ConnectErrors, UsageError

if TYPE_CHECKING:
    from tflaunch.console.gpus_output import Form
    from tflaunch.hosts import Hostfile

EVERY = "2s"  # the interval of --watch without a TIME


class GpusCommand(Command):
    """The class of the command `gpus`; the TIME of --watch may be left out."""

    optional_values = dict.fromkeys(("--watch", "-w"), (TIME_WORD, EVERY))


class SortChoice(str, Enum):
    """Values of --sort."""

    host = "host"
    memory = "memory"
    utilization = "utilization"
    temperature = "temperature"


@dataclass(repr=False, eq=False)
class ListOptions:
    """Which GPUs to show, and in which order."""

    panel = "Which GPUs"

    free: bool = option(False, help="Only GPUs that nobody uses.")
    model: str = option("", metavar="TEXT", help="Only GPUs with this in their name: h100")
    min_free: str = option("", metavar="SIZE", help="Only GPUs with at least this much free memory: 40GiB")
    host: str = option("", metavar="PATTERN", help="Only these hosts: names, ranges, globs, label=value.")
    sort: SortChoice = option(
        SortChoice.host, help="Most free memory, least utilization or highest temperature first."
    )


@dataclass(repr=False, eq=False)
class FormOptions:
    """The form of the output."""

    panel = OUTPUT

    topology: bool = option(False, help="How the GPUs are connected: NVLink, PCIe.")
    json: bool = option(
        False, help="Print everything as one JSON document; with --watch: a line for each refresh."
    )
    csv: bool = option(False, help="Print one line per GPU.")
    oneline: bool = option(False, help="For scripts, with --free: gpu01:0,2 gpu02:1")


def gpus(
    hosts: Hosts = None,
    *,
    which: ListOptions,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            "-w",
            parser=time_parser(0.1),
            metavar="[TIME]",
            help="Go on asking: graphs of use and memory since the start (no history is kept), keys (? lists them).",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            parser=time_parser(0.1),
            metavar="TIME",
            help=f"With --watch: ask every TIME instead of every {EVERY}.",
        ),
    ] = None,
    form: FormOptions,
    timeout: Annotated[
        float,
        typer.Option(parser=time_parser(1), metavar="TIME", help="Time for one host to connect and answer."),
    ] = 15.0,
    connection: Annotated[ConnectionOptions, Part(without=("connect_timeout",))],
) -> None:
    """Show the GPUs of all hosts: their state, who uses them since when, which are free.

    Nothing is installed on the hosts.  GPUs in MIG mode are shown with their instances (3.1: instance 1 of GPU 3).

    Exit code: 0; 2 command line or hostfile; 69 a host could not be asked (the others are shown).
    """
    from tflaunch.console.gpus_output import GpusOutput
    from tflaunch.inputs.sizes import size
    from tflaunch.survey.gpus import Wanted
    from tflaunch.survey.survey import Survey

    with reporting("stopped before all hosts had answered", json=form.json) as show:
        every_s = _every_s(watch, interval)
        chosen_form = _form(form, watching=watch is not None)
        wanted = Wanted(which.free, which.model, size(which.min_free) if which.min_free else 0)
        hostfile = _chosen(load_hosts(hosts, connection.connection), which.host)
        # Leave some time for the answer, so that a dead host fails with the error of its connection.
        connection.connect_timeout = 0.8 * timeout
        with connected(hostfile.hosts, connection, show.reporter) as connector:
            survey = Survey(connector, hostfile.hosts, timeout, topology=form.topology or form.json)
            output = GpusOutput(survey, wanted, which.sort.value, chosen_form)
            try:
                with survey.interrupts():
                    if every_s is not None:
                        output.again_and_again(every_s)
                    elif unreachable := output.once():
                        if form.csv or form.oneline:
                            show.reporter.failures(ConnectErrors(unreachable, len(hostfile.hosts)))
                        show.exit_code = ConnectErrors.exit_code
            except BrokenPipeError:  # `| head` has what it wanted
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            finally:
                survey.close()


def _every_s(watch: float | None, interval: float | None) -> float | None:
    if interval is None:
        return watch
    if watch is None:
        raise UsageError("--interval is the time between two looks of --watch", "add --watch")
    if watch not in (seconds(EVERY), interval):
        raise UsageError(
            "--watch and --interval name two times", "name the time once: --watch --interval TIME"
        )
    return interval


def _form(options: FormOptions, *, watching: bool) -> Form:
    forms = {
        "json": options.json,
        "csv": options.csv,
        "oneline": options.oneline,
        "topology": options.topology,
    }
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
