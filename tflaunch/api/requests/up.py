"""Make the request of servers from the options of `up`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import tflaunch
from tflaunch.api.requests.configured import gpu_limit, gpus_selected_by, with_choices
from tflaunch.api.requests.job_parts import (
    LEASE_S,
    check_hosts,
    check_wait,
    gpu_choice,
    network_of,
    with_environment,
)
from tflaunch.api.requests.roles import on_slots, roles_of
from tflaunch.api.requests.which_hosts import check_detached, load_hosts
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import EVALUATOR, JobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.options.of_up import UpOptions
    from tflaunch.launch.request import Request
    from tflaunch.protocol.job import Role

PROGRAM = "tf_server.py"


def request_of(options: UpOptions, reporter: Reporter, *, command: tuple[str, ...]) -> Request:
    """Make the request from the options; raises TflaunchError for what is wrong with them.  command: for the record."""
    from tflaunch.code.bundle import bundle
    from tflaunch.launch.request import Request
    from tflaunch.lifecycle.states import Restarts
    from tflaunch.runs.run_ids import new_run_id
    from tflaunch.runs.run_names import check_name

    check_wait(options.gpus.wait, options.start.dry_run)
    roles = roles_of({}, options.cluster, options.roles, options.gpus.gpus_per_worker)
    if EVALUATOR in roles:
        raise UsageError(
            f"--job {EVALUATOR}: an evaluator is not part of the cluster, and has no server", "leave it out"
        )
    detach = not options.servers.foreground
    hostfile = load_hosts(options.where.hosts, options.connection.connection, reporter)
    check_detached(hostfile, detach, "add --foreground")
    roles = on_slots(roles, hostfile)
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
        command=command,
        ssh_config=options.connection.config_path,
        lease_s=options.end.lease or LEASE_S[detach],
        handed_lease_s=options.end.lease or LEASE_S[True],
        connect_s=options.connection.connect_timeout,
        grace_s=options.end.grace,
        detach=detach,
        restarts=Restarts(options.restarts.restarts, options.restarts.restart_window),
        dial_check=options.start.dialled,
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
        selects_gpus=gpus_selected_by(options.gpus),
        bind=options.gpus.bind.value,
        memory_policy=options.gpus.memory_policy.value,
        network=network_of(options.cluster),
    )
    return with_choices(with_environment(job, options.tasks, hostfile))


def _without_workdir(hostfile: Hostfile) -> Hostfile:
    """Drop the `workdir:` of all hosts: the servers run no code of the user's."""
    hosts = tuple(dataclasses.replace(host, workdir=None) for host in hostfile.hosts)
    return dataclasses.replace(hostfile, hosts=hosts)
