"""`tflaunch detach`: has the launcher of a run hand it over to its hosts, and end."""

from __future__ import annotations

from typing import Annotated

from tflaunch.api.requests.which_hosts import hosts_of_newest, hosts_of_run
from tflaunch.cli.arguments import Run
from tflaunch.cli.reporting import Patient, reporting
from tflaunch.cli.verb_connections import visiting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import OutputOptions, ReachOptions
from tflaunch.protocol.errors import ConnectErrors


def detach(
    run: Run = None,
    *,
    output: Annotated[OutputOptions, Part("json")],
    reach: ReachOptions,
) -> None:
    """Have a run that its launcher looks after go on without it: the launcher ends, the run does not.

    A coordinator on one of the hosts takes its place, as if the run had been started with --detach. Works from any
    terminal and any machine that reaches the hosts, while the launcher is connected to them.

    Without RUN: the only run alive.
    """
    from tflaunch.runs.detaching import detach_run
    from tflaunch.runs.run_ids import check_run_id
    from tflaunch.runs.run_states import failures_of, pick_run, why_picked

    named = run is not None
    with reporting(
        "stopped waiting; see whether the run has a launcher: tflaunch status", json=output.json
    ) as show:
        if run is not None:
            run, hostfile, known_config = hosts_of_run(check_run_id(run), reach.hosts)
        else:
            hostfile, known_config = hosts_of_newest(reach.hosts, "detach")
        patient = Patient(show.reporter, output.json)
        with (
            visiting(hostfile.hosts, reach, patient, known_config=known_config) as visits,
            visits.interrupts(),
        ):
            failures = visits.open(hostfile.hosts, reach.connect_timeout)
            if failures and len(failures) == len(hostfile.hosts):
                raise ConnectErrors(failures, len(hostfile.hosts))
            listed = visits.runs(everything=True, only=run or "")
            state = pick_run(run, listed.runs, hostfile)
            patient.settle()
            if not named:
                show.reporter.note(why_picked(state))
            detach_run(state, visits.sessions)
        if unreached := failures_of(state, failures):
            show.reporter.failures(ConnectErrors(unreached, len(hostfile.hosts)))
        already = " already" if state.detached else ""
        show.reporter.say(
            f"{state.run_id} goes on without its launcher{already}; watch it: tflaunch attach {state.run_id}"
        )
