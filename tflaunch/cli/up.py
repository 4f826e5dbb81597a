"""`tflaunch up`: a run of bare TensorFlow servers, and how clients find them."""

from __future__ import annotations

import dataclasses
import json as jsons
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import tflaunch
from tflaunch.cli.job_options import (
    END,
    LEASE_S,
    Chief,
    Container,
    ContainerEngine,
    DryRun,
    Env,
    EnvFile,
    EnvOfJob,
    Exclude,
    GpuModel,
    GpusOfJob,
    GpusPerWorker,
    HostsOfJob,
    Include,
    Job,
    JobHosts,
    Lease,
    Mig,
    MinGpuMemory,
    MixModels,
    MostRestarts,
    Mount,
    NoDialCheck,
    Place,
    PlaceChoice,
    Ps,
    PsHosts,
    Quiet,
    RequireAll,
    RequirementsFile,
    RestartWindow,
    ShareGpus,
    ShowHost,
    StartupTimeout,
    SystemSite,
    Wait,
    WorkerHosts,
    Workers,
    Yes,
    check_hosts,
    check_wait,
    env_and_files,
    gpu_choice,
    mounts_of,
    packages_of,
)
from tflaunch.cli.options import (
    OUTPUT,
    AcceptNew,
    ConnectionOption,
    ConnectTimeout,
    Grace,
    Json,
    SshConfig,
    command_line,
    connector,
    load_hosts,
    reporting,
)
from tflaunch.cli.roles import roles_of
from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.job import CHIEF, EVALUATOR, PS, WORKER, JobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.planning.plan import ClusterPlan

PROGRAM = "tf_server.py"
OPEN = (
    "TensorFlow's servers ask nobody for a password, and listen on every interface of their hosts: whoever reaches "
    "these ports can use them; keep them on a private network"
)


def up(
    hosts: JobHosts = None,
    *,
    ps: Ps = None,
    workers: Workers = None,
    chief: Chief = False,
    job: Job = None,
    job_hosts: HostsOfJob = None,
    job_gpus: GpusOfJob = None,
    job_env: EnvOfJob = None,
    ps_hosts: PsHosts = None,
    worker_hosts: WorkerHosts = None,
    place: Place = PlaceChoice.spread,
    no_dial_check: NoDialCheck = False,
    require_all: RequireAll = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    gpus_per_worker: GpusPerWorker = None,
    gpu_model: GpuModel = "",
    min_gpu_memory: MinGpuMemory = "",
    mix_models: MixModels = False,
    mig: Mig = None,
    include: Include = None,
    exclude: Exclude = None,
    share_gpus: ShareGpus = False,
    wait: Wait = None,
    env: Env = None,
    env_file: EnvFile = None,
    requirements: RequirementsFile = None,
    system_site_packages: SystemSite = False,
    container: Container = "",
    container_engine: ContainerEngine = "",
    mount: Mount = None,
    spec: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the cluster spec there, as JSON.", rich_help_panel=OUTPUT),
    ] = None,
    quiet: Quiet = False,
    show_host: ShowHost = False,
    json: Json = False,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground", help="Stay, show their output, and stop them at Ctrl-C.", rich_help_panel=END
        ),
    ] = False,
    grace: Grace = 10.0,
    startup_timeout: StartupTimeout = 300.0,
    lease: Lease = None,
    restarts: MostRestarts = 3,
    restart_window: RestartWindow = 3600.0,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
    connection: ConnectionOption = "",
) -> None:
    """Start TensorFlow servers on HOSTS, with no program of yours: they stand until tflaunch stop.

    Ends when all of them listen, and prints how clients find them: the targets to build a session on, the flags of
    the classic trainers, and the cluster spec.  A server that dies later starts again at the same address.

    Exit code: 0 they stand; else nothing of them is left: the code of the server that failed first; 124 not all
    listened in time; 130 after Ctrl-C; 2 command line or hostfile; 65 they do not fit; 69 no connection; 70 a host
    cannot start them; 73 no spec file, no record; 76 a host was lost, or not all could be stopped.
    """
    from tflaunch.code.bundle import bundle
    from tflaunch.launch.launch import Request, dry, launch
    from tflaunch.lifecycle.states import Restarts
    from tflaunch.runs.record import new_run_id

    with reporting(
        "stopped; nothing is left", json=json, quiet=quiet or not foreground, show_host=show_host
    ) as show:
        if spec is not None:
            _check_writable(spec)
        check_wait(wait, dry_run)
        roles = roles_of(
            {},
            counts={PS: ps, WORKER: workers, CHIEF: 1 if chief else None},
            hosts={PS: ps_hosts, WORKER: worker_hosts},
            gpus_per_worker=gpus_per_worker,
            jobs=job or (),
            job_hosts=job_hosts or (),
            job_gpus=job_gpus or (),
            job_env=job_env or (),
        )
        if EVALUATOR in roles:
            raise UsageError(
                f"--job {EVALUATOR}: an evaluator is beside the cluster, and no server stands for it",
                "leave it out",
            )
        # The servers run no code of the user's, so it does not matter where that is.
        hostfile = load_hosts(hosts, connection, show.reporter)
        gpus = gpu_choice(
            model=gpu_model,
            min_memory=min_gpu_memory,
            include=include,
            exclude=exclude,
            mig=mig,
            share=share_gpus,
            per_worker=gpus_per_worker,
        )
        check_hosts(hostfile, gpus, roles)
        bare = tuple(dataclasses.replace(host, workdir=None) for host in hostfile.hosts)

        def announce(plan: ClusterPlan) -> None:
            if spec is not None:
                _write(spec, plan.cluster)
            show.reporter.servers(plan)
            show.reporter.warn(OPEN)

        variables, masked = env_and_files(env, env_file)
        request = Request(
            run_id=new_run_id("servers"),
            job=JobSpec(
                program=(PROGRAM,),
                roles=roles,
                place=place.value,
                flags=None,
                env=variables,
                masked=masked,
                requirements=packages_of(requirements, system_site_packages, container, hostfile),
                container=container,
                container_engine=container_engine,
                mounts=mounts_of(mount, container, hostfile),
                framework="tensorflow",
                done="never",
                mix_models=mix_models,
            ),
            hostfile=dataclasses.replace(hostfile, hosts=bare),
            gpus=gpus,
            bundle=dataclasses.replace(
                bundle(Path(tflaunch.__file__).parent / "in_task" / "server", keep=PROGRAM),
                directory="",  # of no concern to the user
            ),
            command=command_line(),
            ssh_config=str(ssh_config.absolute()) if ssh_config else None,
            lease_s=lease or LEASE_S[not foreground],
            connect_s=connect_timeout,
            grace_s=grace,
            detach=not foreground,
            restarts=Restarts(restarts, restart_window),
            dial_check=not no_dial_check,
            limits_s={"startup_s": startup_timeout},
            require_all=require_all,
            yes=yes,
            wait_s=wait,
            announce=announce,
        )
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config)
        for note in to_hosts.notes:
            show.reporter.warn(note)
        try:
            show.exit_code = (dry if dry_run else launch)(request, to_hosts, show.reporter)
        finally:
            to_hosts.close()


def _check_writable(spec: Path) -> None:
    """Raises UsageError now for what would fail when all servers stand."""
    if spec.is_dir() or not spec.parent.is_dir():
        what = "a directory" if spec.is_dir() else f"there is no directory {spec.parent}"
        raise UsageError(f"--spec {spec}: {what}", "name a file to be written")
    if not os.access(spec.parent, os.W_OK):
        raise UsageError(f"--spec {spec}: {spec.parent} is not writable", "name another file")


def _write(spec: Path, cluster: Mapping[str, Sequence[str]]) -> None:
    """Whole or not at all: somebody may wait for the file to appear."""
    partial = spec.with_name(f".{spec.name}.{os.getpid()}")
    try:
        partial.write_text(jsons.dumps(cluster, indent=2) + "\n")
        partial.replace(spec)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RecordError(
            f"--spec {spec}: {error.strerror}; the servers are stopped", "name another file"
        ) from None
