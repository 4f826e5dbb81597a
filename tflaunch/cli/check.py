"""`tflaunch check`: finds what would make a run fail, before it does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tflaunch.api.connecting import SILENT, reaching
from tflaunch.api.requests.job_parts import with_environment
from tflaunch.api.requests.which_hosts import load_hosts
from tflaunch.cli.arguments import Hosts, JsonDocument
from tflaunch.cli.reporting import Patient, reporting
from tflaunch.cli.verb_connections import way_to_ask
from tflaunch.inputs.options.job_groups import TaskOptions
from tflaunch.inputs.options.of_others import CheckOptions, QuickOptions

if TYPE_CHECKING:
    from tflaunch.survey.check_findings import Findings

CONNECT_S = 15.0


def check(
    hosts: Hosts = None,
    *,
    what: CheckOptions,
    json: JsonDocument = False,
    tasks: TaskOptions,
    connection: QuickOptions,
) -> None:
    """Find what would make a run fail on these hosts, and say what to do about it.

    Every host starts one task as a run would: after its `setup:`, by its `python:`, in the same environment, with its
    free GPUs.  The task imports TensorFlow and ends.  The hosts connect to each other on ports as a run would.  Only
    what runs share stays on the hosts: container images and environments made from requirements.
    """
    from tflaunch.planning.filling import check as check_placeholders
    from tflaunch.protocol.job import JobSpec
    from tflaunch.sessions.group import Stopped
    from tflaunch.survey.check_findings import Findings
    from tflaunch.survey.check_run import CheckRun, Extent

    with reporting("stopped; nothing is left on the hosts", json=json) as show:
        hostfile = load_hosts(hosts, connection.connection, None if json else show.reporter)
        job = with_environment(JobSpec((), framework="tensorflow"), tasks, hostfile)
        check_placeholders(job, hostfile)
        for note in () if json else job.notes:
            show.reporter.warn(note)
        connection.connect_timeout = min(CONNECT_S, what.timeout)
        of_waits = SILENT if json else show.reporter
        with reaching(hostfile, connection, of_waits, ask=way_to_ask()) as there:
            patient = Patient(show.reporter, json)
            check_run = CheckRun(
                there.hostfile,
                there.connector,
                patient.phase,
                timeout_s=what.timeout,
                connect_s=connection.connect_timeout,
                job=job,
                extent=Extent(
                    tensorflow=what.tensorflow,
                    bandwidth=what.bandwidth or what.all_pairs,
                    all_pairs=what.all_pairs,
                ),
            )
            try:
                with check_run.interrupts():
                    findings = Findings(check_run.run())
            except Stopped as stopped:
                for host, why in stopped.unconfirmed.items():
                    show.reporter.warn(f"{host}: a process of this check may still be alive: {why}")
                raise
        patient.settle()
        show.exit_code = findings.exit_code(what.strict)
        _print(findings, show.exit_code, json=json)


def _print(findings: Findings, exit_code: int, *, json: bool) -> None:
    from tflaunch.console.check_page import document, page
    from tflaunch.console.screen import Screen, reader_may_leave

    screen = Screen()
    with reader_may_leave():
        if json:
            screen.write_json(document(findings, time.time(), exit_code))
        else:
            screen.show(page(findings, screen))
