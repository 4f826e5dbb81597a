"""`tflaunch ps`: lists the runs on all hosts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.api.requests.which_hosts import hosts_of_all
from tflaunch.cli.arguments import JsonDocument
from tflaunch.cli.options import parser
from tflaunch.cli.reporting import Patient, Show, reporting
from tflaunch.cli.verb_connections import visiting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import OUTPUT, SshOptions
from tflaunch.inputs.options.values import parse_user
from tflaunch.protocol.errors import ConnectErrors, UsageError

if TYPE_CHECKING:
    from tflaunch.runs.listing import Listing


def ps(
    hosts: Annotated[
        str | None,
        typer.Argument(
            metavar="HOSTS",
            help="The hosts to look on [those of the default hostfile and of this machine's records]",
        ),
    ] = None,
    *,
    hosts_too: Annotated[
        str | None, typer.Option("--hosts", "-H", metavar="HOSTS", help="The same, as in other commands.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also runs that have ended.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the ids.", rich_help_panel=OUTPUT)
    ] = False,
    user: Annotated[
        str | None,
        typer.Option(
            parser=parser(parse_user),
            metavar="NAME",
            help="The runs of this user; root's log-in on the hosts alone may ask.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: JsonDocument = False,
    ssh: Annotated[SshOptions, Part(default={"connect_timeout": 15.0})],
) -> None:
    """List your runs that are alive on the hosts, whichever machine started them."""
    from tflaunch.runs.record_list import list_runs

    with reporting("stopped before all hosts had answered", json=json) as show:
        if quiet and json:
            raise UsageError("--quiet and --json are two forms of one thing", "leave --quiet out")
        if hosts and hosts_too:
            raise UsageError(
                f"ps {hosts} --hosts {hosts_too}: where?",
                f"leave one of them out; several hosts are one word: tflaunch ps {hosts_too},{hosts}",
            )
        hostfile, known_config = hosts_of_all(hosts or hosts_too, "ps", everything=everything)
        patient = Patient(show.reporter, json)
        try:
            with (
                visiting(
                    hostfile.hosts, ssh, patient, known_config=known_config, as_user=user or ""
                ) as visits,
                visits.interrupts(),
            ):
                visits.open(hostfile.hosts, ssh.connect_timeout)
                found = visits.runs(
                    everything=everything,
                    running_tails=True,
                    records=() if user else list_runs(),
                    tidy=not user,
                )
        finally:
            patient.settle()
        _print(found, show, json=json, quiet=quiet, hosts=len(hostfile.hosts))
        for sentence in found.tidied:
            show.reporter.note(sentence)
        if found.failures:
            if not json:
                show.reporter.failures(ConnectErrors(found.failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code


def _print(found: Listing, show: Show, *, json: bool, quiet: bool, hosts: int) -> None:
    """Print the runs as the options ask; `hosts` is how many hosts were asked."""
    from tflaunch.console.runs_page import run_lines
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.documents.failed_hosts import unreachable_data
    from tflaunch.runs.run_states import run_data

    screen, now = Screen(), time.time()
    with reader_may_leave():
        if json:
            document = {"time": now, "runs": [run_data(run) for run in found.runs], "others": found.others}
            screen.write_json({**document, "unreachable": unreachable_data(found.failures)})
        elif quiet:
            screen.write_rows(run.run_id for run in found.runs)
        else:
            screen.show(run_lines(found, screen, now))
            if not found.runs and len(found.failures) < hosts:
                show.reporter.note("no run is alive on these hosts")
            if found.others:
                show.reporter.note(f"{found.others} more that have ended: tflaunch ps -a")
