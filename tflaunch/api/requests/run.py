"""Make the request of a run from its options."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tflaunch.api.requests.configured import gpu_limit, gpus_selected_by, with_choices
from tflaunch.api.requests.job_parts import (
    LEASE_S,
    TrainerCode,
    check_hosts,
    check_wait,
    gpu_choice,
    network_of,
    trainer_code,
    with_environment,
    with_workdirs,
)
from tflaunch.api.requests.roles import on_slots, roles_of
from tflaunch.api.requests.what_to_fetch import wish_at_end
from tflaunch.api.requests.which_hosts import check_detached, load_hosts
from tflaunch.frameworks.table import named
from tflaunch.planning.ranks import roles_for
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import CHIEF, EVALUATOR, FLAGS, PS, TASK_FLAG, WORKER, JobSpec, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.job_file import JobFile
    from tflaunch.inputs.options.groups import EndOptions
    from tflaunch.inputs.options.job_groups import RestartOptions
    from tflaunch.inputs.options.of_run import RunOptions
    from tflaunch.launch.request import Request
    from tflaunch.lifecycle.states import Restarts
    from tflaunch.protocol.job import Done, RestartPolicy


JOBS = (PS, WORKER, CHIEF)


def request_of(
    options: RunOptions,
    file: JobFile | None,
    reporter: Reporter,
    *,
    command: tuple[str, ...],
    hostfile: Hostfile | None = None,
) -> Request:
    """Make the request from the options and the job file; raises TflaunchError for what is wrong with them.

    command: for the record.  hostfile: these hosts, instead of those that the options name.
    """
    from tflaunch.inputs.job_file import JobFile
    from tflaunch.launch.request import Request
    from tflaunch.runs.run_ids import new_run_id
    from tflaunch.runs.run_names import check_name

    file = file or JobFile(Path.cwd(), options.what.script, options.program.module)
    end, start, connection = options.end, options.start, options.connection
    gpus = gpu_choice(options.gpus)
    check_wait(options.gpus.wait, start.dry_run)
    _check_combination(options)
    roles = roles_for(
        named(options.program.framework.value),
        roles_of(file.roles, options.cluster, options.roles, options.gpus.gpus_per_worker),
    )
    wish = wish_at_end(options.results, options.results.fetch)
    hostfile = hostfile or load_hosts(options.what.hosts, connection.connection, reporter)
    check_detached(
        hostfile, end.detach, "leave --detach out; to leave the terminal: nohup, tmux, systemd-run"
    )
    roles = on_slots(roles, hostfile)
    check_hosts(hostfile, gpus, roles)
    if options.program.no_sync:
        hostfile = with_workdirs(file.directory, hostfile)
    job = with_environment(_job(options, roles, file), options.tasks, hostfile)
    code = trainer_code(
        options.program,
        options.what.script,
        file.directory,
        hostfile,
        env_files=options.tasks.env_file,
        reporter=reporter,
        dry_run=start.dry_run,
        of_roles={name: role.program for name, role in roles.items() if role.program},
    )
    job = with_choices(_with_program(job, code, hostfile, options))
    return Request(
        run_id=new_run_id((start.name and check_name(start.name)) or code.stem),
        job=job,
        hostfile=hostfile,
        gpus=gpus,
        bundle=code.bundle,
        role_programs=code.read_by_python,
        command=command,
        ssh_config=connection.config_path,
        lease_s=end.lease or LEASE_S[end.detach],
        handed_lease_s=end.lease or LEASE_S[True],
        connect_s=connection.connect_timeout,
        grace_s=end.grace,
        drain_s=end.ps_grace,
        detach=end.detach,
        spares=options.restarts.spares,
        restarts=_restarts(options.restarts, job.roles),
        dial_check=start.dialled,
        watch=options.watch.settings,
        limits_s={
            "timeout_s": end.timeout,
            "warn_s": end.warn_before,
            "startup_s": end.startup_timeout,
            "stall_s": end.stall_timeout,
            "idle_s": end.stop_idle,
        },
        tensorboard=options.results.tensorboard,
        tensorboard_port=options.results.tensorboard_port,
        fetch=wish,
        require_all=start.require_all,
        yes=start.yes,
        wait_s=options.gpus.wait,
        gpu_limit=gpu_limit(),
    )


def _check_combination(options: RunOptions) -> None:
    """Raise UsageError for options that exclude each other."""
    detach, spares = options.end.detach, options.restarts.spares
    if spares and not options.restarts.restarts:
        raise UsageError(
            f"--spares {spares} without --restarts",
            "add --restarts 3: only then another host takes over",
        )
    _check_warning(options.end)
    if detach and options.results.tensorboard is not None:
        raise UsageError(
            f"--detach --tensorboard {options.results.tensorboard}: this command does not stay to show it",
            "leave --tensorboard out; later: tflaunch tensorboard RUN LOGDIR",
        )
    if detach and options.end.on_end:
        raise UsageError(
            f"--detach --on-end {options.end.on_end}: this command does not stay to call it at the end",
            "leave --on-end out (--on-end '' where a configuration has it); later: tflaunch attach RUN; COMMAND",
        )
    if detach and options.results.fetch:
        raise UsageError(
            f"--detach --fetch {options.results.fetch[0]}: this command does not stay to fetch it at the end",
            "leave --fetch out; later: tflaunch fetch RUN PATTERN",
        )


def _check_warning(end: EndOptions) -> None:
    """Raise UsageError for a warning that would come before no end, or before the start."""
    from tflaunch.text.times import written

    said = f"--warn-before {written(end.warn_before)}"
    if end.warn_before and not end.timeout:
        raise UsageError(
            f"{said} without --timeout: there is no time limit to warn of",
            "add --timeout 12h, or leave --warn-before out (--warn-before 0 where a configuration has it)",
        )
    if end.timeout and end.warn_before >= end.timeout:
        raise UsageError(
            f"{said} is not shorter than --timeout {written(end.timeout)}",
            "make --warn-before as long as the tasks need to save, and --timeout longer",
        )


def _job(options: RunOptions, roles: Mapping[str, Role], file: JobFile) -> JobSpec:
    """Return the job without its program."""
    framework = options.program.framework.value
    flags = options.program.flags
    if named(framework).by_rank and not options.program.flag and flags is None:
        flags = False
    done = cast("Done", options.end.done.value.replace("auto", "workers"))
    return JobSpec(
        (),
        args=tuple(options.what.arguments),
        file_args=file.args,
        roles=roles,
        place=options.cluster.place.value,
        framework=framework,
        flags=None if flags is False else _flags(options.program.flag, roles),
        flag_style=options.program.flag_style.value,
        empty_flags=not options.program.no_empty_flags,
        done=done,
        mix_models=options.gpus.mix_models,
        selects_gpus=gpus_selected_by(options.gpus),
        bind=options.gpus.bind.value,
        memory_policy=options.gpus.memory_policy.value,
        network=network_of(options.cluster),
    )


def _with_program(job: JobSpec, code: TrainerCode, hostfile: Hostfile, options: RunOptions) -> JobSpec:
    """Return the job with its program, started as the program's source asks for, where that is known."""
    from tflaunch.code.job_fitting import fitted, with_program

    job = dataclasses.replace(job, program=code.argv)
    for name, role in job.roles.items():
        if role.program:
            job = with_program(job, name, code.of_roles[name])
    elsewhere = any(host.workdir is not None for host in hostfile.hosts)  # where the source may differ
    if code.program is None or elsewhere:
        return job
    program = options.program
    said = program.flags or program.flag or program.flag_style.value != "equals"
    return fitted(
        job,
        code.program,
        anyway=bool(said),
        done_said=options.end.done.value != "auto",
        counted=any(host.slots is not None for host in hostfile.hosts),
    )


def _restarts(options: RestartOptions, roles: Mapping[str, Role]) -> Restarts:
    """Return what --restart, --restarts and so on ask for; raises UsageError."""
    from tflaunch.lifecycle.states import Restarts

    default: RestartPolicy = "cluster" if roles.get(PS, Role()).count == 0 else "task"
    by_job: dict[str, RestartPolicy] = {}
    jobs = [*JOBS, *(name for name in roles if name not in JOBS)]
    for text in [each.strip() for option in options.restart for each in option.split(",")]:
        job, equals, policy = text.rpartition("=")
        if policy not in ("task", "cluster", "never") or (equals and job not in jobs):
            raise UsageError(
                f"--restart {text}: not POLICY or JOB=POLICY",
                f"a policy is task, cluster or never; a job is {', '.join(jobs)}",
            )
        if equals:
            by_job[job] = cast("RestartPolicy", policy)
        else:
            default = cast("RestartPolicy", policy)
    if options.restart and not options.restarts:
        raise UsageError(
            f"--restart {options.restart[0]} without --restarts: nothing starts again", "add --restarts 3"
        )
    if default != "never":
        by_job.setdefault(EVALUATOR, "task")  # the cluster does not depend on it
    return Restarts(options.restarts, options.restart_window, by_job, default, options.restart_on.value)


def _flags(renamed: Sequence[str], roles: Mapping[str, Role]) -> dict[str, str]:
    """Return the cluster flags (TensorFlow's name -> the trainer's), renamed by --flag; raises UsageError."""
    flags = dict(FLAGS)
    known = [*FLAGS, TASK_FLAG, *(f"{name}_hosts" for name in roles if f"{name}_hosts" not in FLAGS)]
    for each in renamed:
        name, equals, other = each.partition("=")
        if name not in known or not equals:
            raise UsageError(f"--flag {each}: not NAME=OTHER", f"NAME is one of {', '.join(known)}")
        flags[name] = other
    return flags
