"""`tflaunch status`: shows all about one run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from tflaunch.api.requests.which_hosts import hosts_of_newest, hosts_of_run
from tflaunch.cli.arguments import JsonDocument, Run
from tflaunch.cli.reporting import Patient, reporting
from tflaunch.cli.verb_connections import visiting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import ReachOptions
from tflaunch.protocol.errors import ConnectErrors, RecordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.protocol.errors import ConnectError
    from tflaunch.runs.listing import Listing
    from tflaunch.runs.run_states import RunState
    from tflaunch.runs.visits import Visits

TAIL_BYTES = 8192


def status(
    run: Run = None,
    *,
    json: JsonDocument = False,
    reach: Annotated[ReachOptions, Part(default={"connect_timeout": 15.0})],
) -> None:
    """Show all about one run: what failed first, each task with its state, port, GPUs and log, and each host.

    Without RUN: the only run alive, else the newest.
    """
    from tflaunch.runs.run_ids import check_run_id
    from tflaunch.runs.run_states import failures_of, pick_run, why_picked

    named = run is not None
    with reporting("stopped before all hosts had answered", json=json) as show:
        if run is not None:
            run, hostfile, known_config = hosts_of_run(check_run_id(run), reach.hosts)
        else:
            hostfile, known_config = hosts_of_newest(reach.hosts, "status")
        patient = Patient(show.reporter, json)
        try:
            with (
                visiting(hostfile.hosts, reach, patient, known_config=known_config) as visits,
                visits.interrupts(),
            ):
                visits.open(hostfile.hosts, reach.connect_timeout)
                run, found = _ask(run, visits)
        finally:
            patient.settle()
        try:
            one = pick_run(run, found.runs, hostfile)
        except UsageError:
            if found.failures:  # the run may be on those hosts
                raise ConnectErrors(found.failures, len(hostfile.hosts)) from None
            raise
        failures = failures_of(one, found.failures)
        if not named and not json:
            show.reporter.note(why_picked(one))
            show.reporter.settle()  # else the page below could come first
        _print(one, failures, json=json)
        if failures:
            if not json:
                show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code


def _ask(run: str | None, visits: Visits) -> tuple[str | None, Listing]:
    """Return (run, or the one that is meant if it is None; what the hosts say of it); raises Stopped."""
    from tflaunch.runs.record_list import list_runs
    from tflaunch.runs.run_states import pick_run

    if run is None:
        found = visits.runs(everything=True, records=list_runs())
        try:
            run = pick_run(None, found.runs).run_id
        except UsageError:  # the caller says why
            return None, found
    found = visits.runs(  # also from hosts on which the run has ended
        everything=True,
        only=run,
        tail_bytes=TAIL_BYTES,
        running_tails=True,
        records=[info for info in list_runs() if info.run_id.startswith(run)],
    )
    return run, found


def _print(run: RunState, failures: Mapping[str, ConnectError], *, json: bool) -> None:
    from tflaunch.console.runs_page import hint_of, status_lines
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.documents.failed_hosts import unreachable_data
    from tflaunch.runs.run_states import run_data

    screen, now = Screen(), time.time()
    with reader_may_leave():
        if json:
            document = {"time": now, **run_data(run), "held_by": _holder(run)}
            document["hint"] = hint_of(run.first_failure, run.tasks)
            document["unreachable"] = unreachable_data(failures)
            screen.write_json(document)
        else:
            screen.show(status_lines(run, _holder(run), screen, now))


def _holder(run: RunState) -> str:
    """Return what keeps the run alive, for people."""
    from tflaunch.runs.record import Record

    if not run.alive:
        return ""
    if run.detached:
        return "detached: it goes on without a launcher"
    try:
        record = Record.open(run.run_id)
        if record.running():
            return f"its launcher is pid {record.about.get('pid')} on this machine"
    except (UsageError, RecordError):
        pass  # another machine started it
    return (
        f"its launcher ({run.launcher or 'on another machine'}) keeps it alive; if that is gone, the run ends with its "
        "lease"
    )
