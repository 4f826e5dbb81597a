"""`tflaunch check`: what would go wrong, before it does."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tflaunch.cli.job_options import (
    Container,
    ContainerEngine,
    Env,
    EnvFile,
    Mount,
    RequirementsFile,
    SystemSite,
    env_and_files,
    mounts_of,
    packages_of,
)
from tflaunch.cli.options import (
    OUTPUT,
    AcceptNew,
    ConnectionOption,
    Patient,
    SshConfig,
    connector,
    load_hosts,
    reporting,
)
from tflaunch.cli.values import time_of

CONNECT_S = 15.0


def check(
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
    tensorflow: Annotated[
        bool,
        typer.Option("--tensorflow/--no-tensorflow", help="Import it on every host, as a task would."),
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(
            parser=time_of(1), metavar="TIME", help="For a host's `setup:`, and again for the import."
        ),
    ] = 120.0,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Everything, as one JSON document.", rich_help_panel=OUTPUT)
    ] = False,
    env: Env = None,
    env_file: EnvFile = None,
    requirements: RequirementsFile = None,
    system_site_packages: SystemSite = False,
    container: Container = "",
    container_engine: ContainerEngine = "",
    mount: Mount = None,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    connection: ConnectionOption = "",
) -> None:
    """Find what would make a run fail on these hosts, and tell what to do about it.

    Every host starts one task, as a run does: its `setup:`, its `python:`, in the same environment, with its free
    cards. It imports TensorFlow and ends. The hosts call each other on ports of the run. Nothing is kept there but
    what runs share: the image of a container, the environment of requirements.

    Exit code: 0 a run can start, warnings or not; 70 it would fail (with --strict: or there are warnings);
    69 a host could not be asked; 2 command line or hostfile.
    """
    from tflaunch.console.check_page import document, page
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.protocol.job import JobSpec
    from tflaunch.sessions.group import Stopped
    from tflaunch.survey.check_findings import Findings
    from tflaunch.survey.check_run import CheckRun

    with reporting("stopped; nothing is left on the hosts", json=json) as show:
        hostfile = load_hosts(hosts, connection, None if json else show.reporter)
        job = JobSpec(
            (),
            env=env_and_files(env, env_file)[0],
            requirements=packages_of(requirements, system_site_packages, container, hostfile),
            container=container,
            container_engine=container_engine,
            mounts=mounts_of(mount, container, hostfile),
            framework="tensorflow",
        )
        connect_s = min(CONNECT_S, timeout)
        to_hosts = connector(hostfile.hosts, accept_new, connect_s, ssh_config)
        for note in to_hosts.notes:
            show.reporter.warn(note)
        patient = Patient(show.reporter, json)
        check_run = CheckRun(
            hostfile,
            to_hosts,
            patient.phase,
            timeout_s=timeout,
            connect_s=connect_s,
            job=job,
            tensorflow=tensorflow,
        )
        try:
            with check_run.interrupts():
                findings = Findings(check_run.run())
        except Stopped as stopped:
            for host, why in stopped.unconfirmed.items():
                show.reporter.warn(f"{host}: something of this check may still be alive: {why}")
            raise
        finally:
            to_hosts.close()
        patient.settle()
        show.exit_code = findings.exit_code(strict)
        screen = Screen()
        with reader_may_leave():
            if json:
                screen.write_json(document(findings, time.time(), show.exit_code))
            else:
                screen.show(page(findings, screen))
