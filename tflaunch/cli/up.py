"""`tflaunch up`: starts TensorFlow servers that run no program of the user's, and says how clients find them."""

from __future__ import annotations

import dataclasses
import json as jsons
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tflaunch
from tflaunch.cli.configured import gpu_limit, with_choices
from tflaunch.cli.connecting import connected
from tflaunch.cli.job_option_groups import (
    ClusterOptions,
    GpuOptions,
    JobHosts,
    RestartOptions,
    RoleOptions,
    StartOptions,
    TaskOptions,
)
from tflaunch.cli.job_parts import (
    LEASE_S,
    check_hosts,
    check_wait,
    command_line,
    gpu_choice,
    with_environment,
)
from tflaunch.cli.option_groups import OUTPUT, ConnectionOptions, EndOptions, OutputOptions, WatchOptions
from tflaunch.cli.options import Part, option
from tflaunch.cli.reporting import reporting
from tflaunch.cli.roles import roles_of
from tflaunch.cli.which_hosts import load_hosts
from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.job import EVALUATOR, JobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.console.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.launch.request import Request
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.protocol.job import Role

PROGRAM = "tf_server.py"
OPEN = (
    "TensorFlow's servers ask for no password, and listen on every interface of their hosts: everyone who reaches "
    "these ports can use them; keep them on a private network"
)


@dataclass(repr=False, eq=False)
class ServerOptions:
    """The options that only `up` has."""

    spec: Path | None = option(
        None, metavar="FILE", help="Write the cluster spec to this file, as JSON.", rich_help_panel=OUTPUT
    )
    foreground: bool = option(
        False,
        help="Stay, show what the servers print, and stop them at Ctrl-C.",
        rich_help_panel=EndOptions.panel,
    )


@dataclass(repr=False, eq=False)
class UpOptions:
    """All options and arguments of `up`."""

    where: JobHosts
    cluster: Annotated[ClusterOptions, Part(without=("evaluator",))]
    gpus: GpuOptions
    start: StartOptions
    tasks: TaskOptions
    servers: ServerOptions
    output: Annotated[OutputOptions, Part(without=("only", "raw"))]
    end: Annotated[EndOptions, Part("grace", "startup_timeout", "lease", default={"startup_timeout": 300.0})]
    watch: Annotated[WatchOptions, Part("threshold", "no_stacks")]
    roles: Annotated[RoleOptions, Part("job", "job_hosts", "job_gpus", "job_env")]
    restarts: Annotated[RestartOptions, Part("restarts", "restart_window", default={"restarts": 3})]
    connection: ConnectionOptions


def up(options: UpOptions) -> None:
    """Start TensorFlow servers on HOSTS, with no program of yours; they run until tflaunch stop.

    Ends when all servers listen, and prints how clients find them: the targets for a session, the flags of the
    classic trainers, and the cluster spec.  A server that dies later starts again at the same address.
    """
    from tflaunch.launch.launch import dry
    from tflaunch.launch.servers import serve

    output, servers = options.output, options.servers
    with reporting(
        "stopped; nothing is left",
        json=output.json,
        quiet=output.quiet or not servers.foreground,
        show_host=output.show_host,
        one_document=options.start.dry_run,
    ) as show:
        if servers.spec is not None:
            _check_writable(servers.spec)
        check_wait(options.gpus.wait, options.start.dry_run)
        roles = roles_of({}, options.cluster, options.roles, options.gpus.gpus_per_worker)
        if EVALUATOR in roles:
            raise UsageError(
                f"--job {EVALUATOR}: an evaluator is not part of the cluster, and has no server",
                "leave it out",
            )
        request = _request(options, roles, show.reporter)
        with connected(request.hostfile.hosts, options.connection, show.reporter) as connector:
            if options.start.dry_run:
                show.exit_code = dry(request, connector, show.reporter)
            else:
                announce = partial(_announce, servers.spec, show.reporter)
                show.exit_code = serve(request, announce, connector, show.reporter)


def _announce(spec: Path | None, reporter: Reporter, plan: ClusterPlan) -> None:
    """Say how clients find the servers, which all listen now."""
    if spec is not None:
        _write(spec, plan.cluster)
    reporter.servers(plan)
    reporter.warn(OPEN)


def _request(options: UpOptions, roles: Mapping[str, Role], reporter: Reporter) -> Request:
    """Make the request from the command line; raises TflaunchError for what is wrong with it."""
    from tflaunch.code.bundle import bundle
    from tflaunch.launch.request import Request
    from tflaunch.lifecycle.states import Restarts
    from tflaunch.runs.run_ids import new_run_id
    from tflaunch.runs.run_names import check_name

    detach = not options.servers.foreground
    hostfile = load_hosts(options.where.hosts, options.connection.connection, reporter)
    gpus = gpu_choice(options.gpus)
    check_hosts(hostfile, gpus, roles)

    return Request(
        run_id=new_run_id((options.start.name and check_name(options.start.name)) or "servers"),
        job=_job(options, roles, hostfile),
        hostfile=_without_workdir(hostfile),
        gpus=gpus,
        bundle=dataclasses.replace(
            bundle(Path(tflaunch.__file__).parent / "in_task" / "server", keep=PROGRAM),
            directory="",  # the user need not see it
        ),
        command=command_line(),
        ssh_config=options.connection.config_path,
        lease_s=options.end.lease or LEASE_S[detach],
        handed_lease_s=options.end.lease or LEASE_S[True],
        connect_s=options.connection.connect_timeout,
        grace_s=options.end.grace,
        detach=detach,
        restarts=Restarts(options.restarts.restarts, options.restarts.restart_window),
        dial_check=not options.start.no_dial_check,
        watch=options.watch.settings,
        limits_s={"startup_s": options.end.startup_timeout},
        require_all=options.start.require_all,
        yes=options.start.yes,
        wait_s=options.gpus.wait,
        gpu_limit=gpu_limit(),
    )


def _job(options: UpOptions, roles: Mapping[str, Role], hostfile: Hostfile) -> JobSpec:
    """Return the job: servers as its tasks; raises UsageError, EnvFileError."""
    job = JobSpec(
        program=(PROGRAM,),
        roles=roles,
        place=options.cluster.place.value,
        flags=None,
        framework="tensorflow",
        done="never",
        mix_models=options.gpus.mix_models,
    )
    return with_choices(with_environment(job, options.tasks, hostfile))


def _without_workdir(hostfile: Hostfile) -> Hostfile:
    """Drop the `workdir:` of all hosts: the servers run no code of the user's."""
    hosts = tuple(dataclasses.replace(host, workdir=None) for host in hostfile.hosts)
    return dataclasses.replace(hostfile, hosts=hosts)


def _check_writable(spec: Path) -> None:
    """Raise UsageError now, not when all servers run, if the file cannot be written."""
    if spec.is_dir() or not spec.parent.is_dir():
        what = "a directory" if spec.is_dir() else f"there is no directory {spec.parent}"
        raise UsageError(f"--spec {spec}: {what}", "name a file to be written")
    if not os.access(spec.parent, os.W_OK):
        raise UsageError(f"--spec {spec}: {spec.parent} is not writable", "name another file")


def _write(spec: Path, cluster: Mapping[str, Sequence[str]]) -> None:
    """Write the cluster spec, whole or not at all: a client may wait for the file to appear."""
    partial = spec.with_name(f".{spec.name}.{os.getpid()}")
    try:
        partial.write_text(jsons.dumps(cluster, indent=2) + "\n")
        partial.replace(spec)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RecordError(
            f"--spec {spec}: {error.strerror}; the servers are stopped", "name another file"
        ) from None
