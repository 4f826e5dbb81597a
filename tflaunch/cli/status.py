"""`tflaunch status`: one run whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli.options import OUTPUT, AcceptNew, ConnectTimeout, Patient, SshConfig, connector, reporting
from tflaunch.cli.ps import LIST_TIMEOUT_S
from tflaunch.cli.where import hosts_of_all, hosts_of_run
from tflaunch.protocol.errors import ConnectErrors, RecordError, UsageError

if TYPE_CHECKING:
    from tflaunch.runs.states import RunState

TAIL_BYTES = 8192


def status(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="The run's id, or how it begins [the only one]", show_default=False
        ),
    ] = None,
    *,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", "-H", metavar="HOSTS", help="Where to look [this machine's record]"),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Everything, as one JSON document.", rich_help_panel=OUTPUT)
    ] = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 15.0,
    ssh_config: SshConfig = None,
) -> None:
    """Show one run whole: what failed first, each task with its state, port, GPUs and log, and each host.

    Without RUN: the only one that is alive.

    Exit code: 0; 2 which run?; 69 a host could not be asked (what the others tell is shown).
    """
    from tflaunch.console.failure_page import unreachable_data
    from tflaunch.console.runs_page import hint_of, status_lines
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.runs.record_list import list_runs
    from tflaunch.runs.run_ids import check_run_id
    from tflaunch.runs.states import failures_of, pick_run, run_data
    from tflaunch.runs.visits import Visits

    with reporting("stopped before all hosts had answered", json=json) as show:
        if run is not None:
            run, hostfile, known_config = hosts_of_run(check_run_id(run), hosts)
        else:
            hostfile, known_config = hosts_of_all(hosts, "status", everything=False)
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config or known_config)
        patient = Patient(show.reporter, json)
        visits = Visits(to_hosts, patient)
        try:
            with visits.interrupts():
                visits.open(hostfile.hosts, connect_timeout)
                if run is None:
                    found = visits.runs(LIST_TIMEOUT_S, records=list_runs())
                    if len(found.runs) == 1:
                        [run] = (each.run_id for each in found.runs)
                if run is not None:  # whole: also what of it has ended on some hosts
                    found = visits.runs(
                        LIST_TIMEOUT_S,
                        everything=True,
                        only=run,
                        tail_bytes=TAIL_BYTES,
                        records=[info for info in list_runs() if info.run_id.startswith(run)],
                    )
        finally:
            visits.close()
            to_hosts.close()
            patient.settle()
        try:
            one = pick_run(run, found.runs)
        except UsageError:
            if found.failures:  # it may be on those
                raise ConnectErrors(found.failures, len(hostfile.hosts)) from None
            raise
        failures = failures_of(one, found.failures)
        screen, now = Screen(), time.time()
        with reader_may_leave():
            if json:
                told = {"time": now, **run_data(one), "held_by": _holder(one)}
                told["hint"] = hint_of(one.first_failure)
                told["unreachable"] = unreachable_data(failures)
                screen.write_json(told)
            else:
                screen.show(status_lines(one, _holder(one), screen, now))
        if failures:
            if not json:
                show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code


def _holder(run: RunState) -> str:
    """What keeps it alive."""
    from tflaunch.runs.record import Record

    if not run.alive:
        return ""
    if run.detached:
        return "detached: it needs no launcher"
    try:
        record = Record.open(run.run_id)
        if record.running():
            return f"its launcher is pid {record.about.get('pid')} on this machine"
    except (UsageError, RecordError):
        pass  # it was started elsewhere
    return f"held by its launcher, {run.launcher or 'elsewhere'}, or until its lease ends"
