"""`tflaunch ps`: the runs on all hosts."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tflaunch.cli.options import (
    OUTPUT,
    AcceptNew,
    ConnectTimeout,
    Patient,
    SshConfig,
    connector,
    reporting,
)
from tflaunch.cli.where import hosts_of_all
from tflaunch.protocol.errors import ConnectErrors, UsageError

LIST_TIMEOUT_S = 30.0


def ps(
    hosts: Annotated[
        str | None,
        typer.Argument(metavar="HOSTS", help="Where [the default hostfile, and this machine's records]"),
    ] = None,
    *,
    hosts_too: Annotated[
        str | None, typer.Option("--hosts", "-H", metavar="HOSTS", help="The same, as other verbs have it.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that have ended.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only ids.", rich_help_panel=OUTPUT)] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Everything, as one JSON document.", rich_help_panel=OUTPUT)
    ] = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 15.0,
    ssh_config: SshConfig = None,
) -> None:
    """Show your runs that are alive, on all hosts: those of any launcher on any machine, as the hosts tell.

    Exit code: 0; 2 command line or hostfile; 69 a host could not be asked (the others are shown).
    """
    from tflaunch.console.failure_page import unreachable_data
    from tflaunch.console.runs_page import run_lines
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.runs.record_list import list_runs
    from tflaunch.runs.states import run_data
    from tflaunch.runs.visits import Visits

    with reporting("stopped before all hosts had answered", json=json) as show:
        if quiet and json:
            raise UsageError("--quiet and --json are two forms of one thing", "leave --quiet out")
        if hosts and hosts_too:
            raise UsageError(f"ps {hosts} --hosts {hosts_too}: where?", "leave one of them out")
        hostfile, known_config = hosts_of_all(hosts or hosts_too, "ps", everything=everything)
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config or known_config)
        patient = Patient(show.reporter, json)
        visits = Visits(to_hosts, patient)
        try:
            with visits.interrupts():
                visits.open(hostfile.hosts, connect_timeout)
                found = visits.runs(LIST_TIMEOUT_S, everything=everything, records=list_runs())
        finally:
            visits.close()
            to_hosts.close()
            patient.settle()
        screen, now = Screen(), time.time()
        with reader_may_leave():
            if json:
                runs = [run_data(run) for run in found.runs]
                told = {"time": now, "runs": runs, "others": found.others}
                screen.write_json({**told, "unreachable": unreachable_data(found.failures)})
            elif quiet:
                screen.write_rows(run.run_id for run in found.runs)
            else:
                screen.show(run_lines(found, screen, now))
                if not found.runs and len(found.failures) < len(hostfile.hosts):
                    show.reporter.note("no run is alive on these hosts")
                if found.others:
                    show.reporter.note(f"{found.others} more that have ended: tflaunch ps -a")
        if found.failures:
            if not json:
                show.reporter.failures(ConnectErrors(found.failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code
