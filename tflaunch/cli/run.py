"""`tflaunch run`: from the command line to a request, which tflaunch.launch carries out."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import typer

from tflaunch.cli.options import (
    OUTPUT,
    AcceptNew,
    ConnectTimeout,
    Grace,
    Json,
    SshConfig,
    connector,
    load_hosts,
    reporting,
)
from tflaunch.cli.values import Command
from tflaunch.errors import UsageError
from tflaunch.job import FLAGS, JobSpec, TaskId
from tflaunch.times import seconds

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile
    from tflaunch.job import RestartOn, RestartPolicy
    from tflaunch.sources import Bundle
    from tflaunch.supervise import Restarts


CLUSTER, GPUS, PROGRAM, END, AGAIN = "Cluster", "GPUs", "Program", "The end", "When a task fails"
JOBS = ("ps", "worker", "chief")
FOR_EVER = "forever"  # the TIME of --wait that is left out
LEASE_S = {False: 60.0, True: 600.0}  # by whether it is detached


class RunCommand(Command):
    """`run`, whose most likely slip is an option of the trainer's in front of `--`."""

    optional_values: ClassVar = {
        "--mig": (r"\d+[cg](\..*)?", ""),  # 1g.10gb, 1c.3g.20gb; no program's name
        "--wait": (r"[0-9][0-9.]*[a-z]*", FOR_EVER),
    }

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As typer's, with a next step in the error."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption" and hasattr(error, "message"):
                error.message += ". The trainer's own options go behind --"
            raise


class PlaceChoice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


class DoneChoice(str, Enum):
    """Values of --done."""

    chief = "chief"
    workers = "workers"
    all = "all"
    never = "never"


class RestartOnChoice(str, Enum):
    """Values of --restart-on."""

    any = "any"
    retryable = "retryable"


def run(
    hosts: Annotated[
        str,
        typer.Argument(
            metavar="HOSTS", help="A hostfile, or host1:2,host2, or slurm: or pbs:", show_default=False
        ),
    ],
    script: Annotated[
        str | None,
        typer.Argument(metavar="TRAINER.py", help="The program (or -m PKG.MOD).", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- ARGS", help="The trainer's own arguments, byte for byte.", show_default=False
        ),
    ] = None,
    *,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            "-m",
            metavar="PKG.MOD",
            help="Run a module, as python -m does.",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    ps: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="ps tasks [one per 4 workers]",
            show_default=False,
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="worker tasks [one per free GPU, or host]",
            show_default=False,
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    chief: Annotated[
        bool, typer.Option("--chief", help="One chief task more.", rich_help_panel=CLUSTER)
    ] = False,
    ps_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Hosts for ps: names, ranges, globs, label=value.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    worker_hosts: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Hosts for workers.", rich_help_panel=CLUSTER)
    ] = None,
    place: Annotated[
        PlaceChoice, typer.Option(help="Over all hosts, or on as few as can be.", rich_help_panel=CLUSTER)
    ] = PlaceChoice.spread,
    gpus_per_worker: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="GPUs of a worker [1 where there are any]", rich_help_panel=GPUS
        ),
    ] = None,
    gpu_model: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Only cards with this in their name: H100.", rich_help_panel=GPUS),
    ] = "",
    min_gpu_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Only cards with that much: 40GiB.", rich_help_panel=GPUS)
    ] = "",
    mig: Annotated[
        str | None,
        typer.Option(
            metavar="[PROFILE]",
            help="MIG instances (of that profile: 1g.10gb), no whole cards.",
            rich_help_panel=GPUS,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST[:0,2]", help="Only these cards; repeatable.", rich_help_panel=GPUS),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST[:0,2]", help="Not these cards; repeatable.", rich_help_panel=GPUS),
    ] = None,
    share_gpus: Annotated[
        bool,
        typer.Option("--share-gpus", help="Also cards that others compute on.", rich_help_panel=GPUS),
    ] = False,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="[TIME]",
            help="Queue for cards in use, so long: 30s, 10m, 2h, 1d [for ever].",
            rich_help_panel=GPUS,
        ),
    ] = None,
    flag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=OTHER",
            help="Rename a cluster flag: task_index=task_id. NAME= drops it.",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    no_flags: Annotated[
        bool,
        typer.Option("--no-flags", help="Only TF_CONFIG tells a task who it is.", rich_help_panel=PROGRAM),
    ] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME[=VALUE]",
            help="For the tasks; without a value, yours.",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    done: Annotated[
        DoneChoice, typer.Option(help="Whose success ends the run.", rich_help_panel=END)
    ] = DoneChoice.workers,
    code_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Ship this directory, not just the script's own.", rich_help_panel=PROGRAM
        ),
    ] = None,
    no_sync: Annotated[
        bool,
        typer.Option(
            "--no-sync",
            help="Ship nothing: the code is on the hosts, at this path or in workdir.",
            rich_help_panel=PROGRAM,
        ),
    ] = False,
    no_dial_check: Annotated[
        bool,
        typer.Option(
            "--no-dial-check",
            help="Start even if hosts cannot reach each other.",
            rich_help_panel=CLUSTER,
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and start nothing.", rich_help_panel=CLUSTER)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no output of the tasks.", rich_help_panel=OUTPUT)
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK", help="Show the output of worker/0 only; repeatable.", rich_help_panel=OUTPUT
        ),
    ] = None,
    show_host: Annotated[
        bool, typer.Option("--show-host", help="Name the host in each line.", rich_help_panel=OUTPUT)
    ] = False,
    json: Json = False,
    grace: Grace = 10.0,
    ps_grace: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="S",
            help="Seconds for ps to end by themselves when the work is done.",
            rich_help_panel=END,
        ),
    ] = 3.0,
    timeout: Annotated[
        float,
        typer.Option(min=0, metavar="S", help="End the run after so long.", rich_help_panel=END),
    ] = 0.0,
    startup_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="S",
            help="End it when a task has not opened its port by then.",
            rich_help_panel=END,
        ),
    ] = 0.0,
    stall_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="S",
            help="End it when no task has written anything for so long.",
            rich_help_panel=END,
        ),
    ] = 0.0,
    lease: Annotated[
        float | None,
        typer.Option(
            min=5,
            metavar="S",
            help="Hosts end the run when nobody who decides was heard of for so long [60; detached 600]",
            show_default=False,
            rich_help_panel=END,
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Start it and leave: it goes on by itself.", rich_help_panel=END),
    ] = False,
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Start what fails again, N times in --restart-window.",
            rich_help_panel=AGAIN,
        ),
    ] = 0,
    restart: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[JOB=]POLICY",
            help="What starts again: task, cluster or never; ps=task,worker=cluster by job [task where there are ps, "
            "else cluster]",
            show_default=False,
            rich_help_panel=AGAIN,
        ),
    ] = None,
    spares: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="Hosts that are kept for when another one is lost (with --restarts).",
            rich_help_panel=AGAIN,
        ),
    ] = "",
    restart_window: Annotated[
        str, typer.Option(metavar="TIME", help="The time in which --restarts counts.", rich_help_panel=AGAIN)
    ] = "1h",
    restart_on: Annotated[
        RestartOnChoice,
        typer.Option(help="retryable: only exit codes from 128 on, and signals.", rich_help_panel=AGAIN),
    ] = RestartOnChoice.any,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """Start TRAINER.py as ps and worker tasks on HOSTS, show what they print, stop when the work is done.

    Exit code: 0; the code of the task that failed first (128 + n for signal n); 130 after Ctrl-C; 2 command
    line or hostfile; 65 the job does not fit; 69 no connection; 70 a host cannot start its tasks; 73 no record;
    76 a host was lost, or not all could be stopped; 124 a time limit was reached.
    """
    from tflaunch.cards import size
    from tflaunch.gpu_choice import GpuChoice
    from tflaunch.launch import Request, dry, launch
    from tflaunch.runs import new_run_id

    words = list(arguments or ())
    if module is not None and script is not None:
        words.insert(0, script)  # with -m, all that follows HOSTS is the program's own
    with reporting(
        "stopped; nothing was started, nothing is left",
        json=json,
        quiet=quiet,
        only=[_task_id(text) for text in only or ()],
        show_host=show_host,
    ) as show:
        if mig is not None and gpus_per_worker is not None and gpus_per_worker > 1:
            raise UsageError(
                f"--mig --gpus-per-worker {gpus_per_worker}: a process can use one MIG instance only",
                "leave --gpus-per-worker out; --workers says how many instances the run uses",
            )
        if dry_run and wait is not None:
            raise UsageError(
                "--dry-run --wait: what starts nothing waits for nothing", "leave one of them out"
            )
        if spares and (detach or not restarts):
            raise UsageError(
                f"--spares {spares} "
                + (
                    "--detach: a detached run does not move to other hosts"
                    if detach
                    else "without --restarts"
                ),
                "leave --spares out" if detach else "add --restarts 3: only then another host takes over",
            )
        hostfile = load_hosts(hosts)
        if no_sync:
            hostfile = _here_on_every_host(hostfile)
        program, stem, bundle = _program(module, script, code_dir, hostfile)
        for left_out in bundle.skipped if bundle else ():
            show.reporter.warn(f"not shipped: {left_out}")
        request = Request(
            run_id=new_run_id(stem),
            job=JobSpec(
                program=program,
                args=tuple(words),
                ps=ps,
                workers=workers,
                chief=chief,
                ps_hosts=ps_hosts,
                worker_hosts=worker_hosts,
                place=place.value,
                gpus_per_worker=gpus_per_worker,
                flags=None if no_flags else _flags(flag or []),
                env=_environment(env or []),
                done=done.value,
            ),
            hostfile=hostfile,
            gpus=GpuChoice(
                model=gpu_model,
                min_memory_bytes=size(min_gpu_memory) if min_gpu_memory else 0,
                include=tuple(include or ()),
                exclude=tuple(exclude or ()),
                mig=mig,
                share=share_gpus,
            ),
            bundle=bundle,
            command=tuple(sys.argv),
            ssh_config=str(ssh_config.absolute()) if ssh_config else None,
            lease_s=lease or LEASE_S[detach],
            connect_s=connect_timeout,
            grace_s=grace,
            drain_s=ps_grace,
            detach=detach,
            spares=spares,
            restarts=_restarts(restarts, restart or [], restart_window, restart_on.value, ps),
            dial_check=not no_dial_check,
            limits_s={"timeout_s": timeout, "startup_s": startup_timeout, "stall_s": stall_timeout},
            wait_s=None if wait is None else math.inf if wait == FOR_EVER else seconds(wait),
        )
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config)
        for note in to_hosts.notes:
            show.reporter.warn(note)
        try:
            show.exit_code = (dry if dry_run else launch)(request, to_hosts, show.reporter)
        finally:
            to_hosts.close()


def _program(
    module: str | None, script: str | None, code_dir: Path | None, hostfile: Hostfile
) -> tuple[tuple[str, ...], str, Bundle | None]:
    """(what follows the interpreter, a name for the run, the code to ship)."""
    from tflaunch.sources import bundle, find_program

    target = module or script
    if target is None:
        raise UsageError(
            "nothing to run: neither TRAINER.py nor -m PKG.MOD", "tflaunch run hosts.yaml trainer.py"
        )
    if all(host.workdir is not None for host in hostfile.hosts):  # the code is there: on no host is it ours
        argv = ("-m", target) if module is not None else (target,)
        return argv, target.rpartition(".")[2] if module is not None else Path(target).stem, None
    found = find_program(target, module is not None, Path.cwd(), code_dir)
    return found.argv, Path(found.file).stem, bundle(found.directory, keep=found.file)


def _here_on_every_host(hostfile: Hostfile) -> Hostfile:
    """Hosts that have the code already: in their workdir, else in the directory of that path."""
    here = str(Path.cwd())
    hosts = tuple(dataclasses.replace(host, workdir=host.workdir or here) for host in hostfile.hosts)
    return dataclasses.replace(hostfile, hosts=hosts)


def _restarts(most: int, policies: list[str], window: str, on: RestartOn, ps: int | None) -> Restarts:
    from tflaunch.supervise import Restarts

    default: RestartPolicy = "cluster" if ps == 0 else "task"
    by_job: dict[str, RestartPolicy] = {}
    for text in [each.strip() for option in policies for each in option.split(",")]:
        job, equals, policy = text.rpartition("=")
        if policy not in ("task", "cluster", "never") or (equals and job not in JOBS):
            raise UsageError(
                f"--restart {text}: not POLICY or JOB=POLICY",
                f"a policy is task, cluster or never; a job is {', '.join(JOBS)}",
            )
        if equals:
            by_job[job] = cast("RestartPolicy", policy)
        else:
            default = cast("RestartPolicy", policy)
    if policies and not most:
        raise UsageError(
            f"--restart {policies[0]} without --restarts: nothing starts again", "add --restarts 3"
        )
    return Restarts(most, seconds(window), by_job, default, on)


def _flags(renamed: list[str]) -> dict[str, str]:
    flags = dict(FLAGS)
    for each in renamed:
        name, equals, other = each.partition("=")
        if name not in FLAGS or not equals:
            raise UsageError(f"--flag {each}: not NAME=OTHER", f"NAME is one of {', '.join(FLAGS)}")
        flags[name] = other
    return flags


def _environment(wanted: list[str]) -> dict[str, str]:
    env = {}
    for each in wanted:
        name, equals, value = each.partition("=")
        if not name or (not equals and name not in os.environ):
            raise UsageError(
                f"--env {each}: {name or 'a name'} is not set here", f"give it a value: --env {name}=VALUE"
            )
        env[name] = value if equals else os.environ[name]
    return env


def _task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise UsageError(f"--only {text}: {error}") from None
