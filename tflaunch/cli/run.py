"""`tflaunch run`: from the command line to a request, which tflaunch.launch.launch carries out."""

from __future__ import annotations

import dataclasses
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import typer

from tflaunch.cli.fetch import patterns_of, wish_of
from tflaunch.cli.job_options import (
    AGAIN,
    CLUSTER,
    END,
    LEASE_S,
    OUTPUTS,
    PROGRAM,
    ROLES,
    Chief,
    CodeDir,
    Container,
    ContainerEngine,
    DryRun,
    Env,
    EnvFile,
    EnvOfJob,
    Exclude,
    FetchMax,
    FetchTo,
    FollowLinks,
    GpuModel,
    GpusOfJob,
    GpusPerWorker,
    HostsOfJob,
    Include,
    Job,
    JobCommand,
    JobHosts,
    KeepMode,
    Lease,
    MaxCode,
    Mig,
    MinGpuMemory,
    MixModels,
    Module,
    MostRestarts,
    Mount,
    NoDialCheck,
    NoSync,
    Overwrite,
    Place,
    PlaceChoice,
    Ps,
    PsHosts,
    Quiet,
    RequireAll,
    RequirementsFile,
    RestartWindow,
    ShareGpus,
    Ship,
    ShowFiles,
    ShowHost,
    StartupTimeout,
    SystemSite,
    TensorboardPort,
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
from tflaunch.cli.values import time_of
from tflaunch.planning.frameworks import OF_THEIR_OWN, roles_for
from tflaunch.protocol.errors import TflaunchError, UsageError
from tflaunch.protocol.job import CHIEF, EVALUATOR, FLAGS, PS, WORKER, JobSpec, Role, TaskId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.cli.words import Line
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.program import Program
    from tflaunch.console.code_page import CodeReporter
    from tflaunch.hosts import Hostfile
    from tflaunch.lifecycle.states import Restarts
    from tflaunch.protocol.job import RestartOn, RestartPolicy


JOBS = (PS, WORKER, CHIEF)


class TrainerCommand(JobCommand):
    """A verb with a trainer: tells HOSTS from it by what they are, and what is the trainer's own from options."""

    instead: ClassVar[Mapping[str, str]] = {}  # of options that other verbs have

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As typer's, less what it cannot know: HOSTS may be left out, and what is for the trainer follows `--`.

        Raises UsageError with the corrected command.
        """
        if ctx.resilient_parsing:  # for completion
            return super().parse_args(ctx, args)
        from tflaunch.cli.words import Line, chosen

        line = Line.read(self.params, self.optional_values, args)
        if any(word.texts[0] in ("--help", "-h") for word in line.words):
            return super().parse_args(ctx, ["--help"])
        verb = ctx.info_name or ""
        for option in line.unknown:
            self.refuse(verb, option, line)
        rest = super().parse_args(ctx, line.options)
        hosts, script, arguments = chosen(verb, line, ctx.params.get("module"))
        ctx.params.update(hosts=hosts, script=script, arguments=arguments)
        return rest

    def refuse(self, verb: str, option: str, line: Line) -> None:
        """Raise UsageError for an option that this verb lacks, if it was most likely meant for it."""
        from tflaunch.cli.mistakes import no_such_option
        from tflaunch.cli.words import moved, with_hosts

        if error := with_hosts(verb, line, option):
            raise error
        name = option.partition("=")[0]
        if instead := self.instead.get(name):
            raise UsageError(f"tflaunch {verb} has no option {name}", instead)
        known = [each for param in self.params for each in param.opts if each.startswith("--")]
        error = no_such_option(name, known, "", f"tflaunch {verb}")
        if error.hint:
            own = moved(verb, line)
            error.hint += f"\nif it is the trainer's own, it goes behind --: {own}" if own else ""
            raise error


class RunCommand(TrainerCommand):
    """`run`, whose trainer may be a job file."""

    optional_values: ClassVar = {**JobCommand.optional_values, "--evaluator": (r"[0-9]+", "1")}

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As of any trainer, and what the file says."""
        rest = super().parse_args(ctx, args)
        _take_job_file(ctx)
        return rest


def _take_job_file(ctx: typer.Context) -> None:
    """Where TRAINER is a job file, what it says is taken for what the command line does not say.

    What is wrong with it is reported by `run`, which knows how.
    """
    from tflaunch.cli.words import kind_of

    script = ctx.params.get("script")
    if script is None or not (script.endswith((".yaml", ".yml")) or kind_of(script) == "job"):
        return
    from tflaunch.inputs import job_file

    try:
        ctx.obj = file = job_file.load(script)
    except TflaunchError as error:
        ctx.obj = error
        return
    ctx.params.update(script=file.program, module=file.module)
    for name, value in file.options.items():
        if getattr(ctx.get_parameter_source(name), "name", "") == "DEFAULT":
            default = ctx.params[name]
            ctx.params[name] = type(default)(value) if isinstance(default, Enum) else value
    for name, values in file.lists.items():
        if name == "restart" and file.options.get("restarts") and not ctx.params["restarts"]:
            continue  # --restarts 0 is the last word
        ctx.params[name] = [*values, *(ctx.params.get(name) or ())]


class DoneChoice(str, Enum):
    """Values of --done."""

    chief = "chief"
    workers = "workers"
    all = "all"
    never = "never"


class FrameworkChoice(str, Enum):
    """Values of --framework."""

    auto = "auto"
    tensorflow = "tensorflow"
    jax = "jax"
    torch = "torch"


class RestartOnChoice(str, Enum):
    """Values of --restart-on."""

    any = "any"
    retryable = "retryable"


def run(
    ctx: typer.Context,
    hosts: JobHosts = None,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="TRAINER.py",
            help="The program (or -m PKG.MOD), or a job file: job.yaml. Python runs by the hosts' `python:`, whatever "
            "its first line says; a .sh or an executable runs by its first line (#!).",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- ARGS", help="The trainer's own arguments, byte for byte.", show_default=False
        ),
    ] = None,
    *,
    module: Module = None,
    ps: Ps = None,
    workers: Workers = None,
    chief: Chief = False,
    evaluator: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="[N]",
            help="An evaluator, or N: beside the cluster, not in it.",
            show_default=False,
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    job: Job = None,
    job_hosts: HostsOfJob = None,
    job_gpus: GpusOfJob = None,
    job_env: EnvOfJob = None,
    job_args: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB=ARGS", help="Behind the trainer's own arguments: 'data=-n 8'.", rich_help_panel=ROLES
        ),
    ] = None,
    job_end: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB=END",
            help="decides: their success is the run's; stopped: when the work is done; sidecar: so, and their "
            "failure ends nothing [workers and chief decide]",
            show_default=False,
            rich_help_panel=ROLES,
        ),
    ] = None,
    job_grace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB=TIME",
            help="For them to end by themselves when the work is done [evaluator 60s; others --ps-grace]",
            show_default=False,
            rich_help_panel=ROLES,
        ),
    ] = None,
    ps_hosts: PsHosts = None,
    worker_hosts: WorkerHosts = None,
    place: Place = PlaceChoice.spread,
    gpus_per_worker: GpusPerWorker = None,
    gpu_model: GpuModel = "",
    min_gpu_memory: MinGpuMemory = "",
    mix_models: MixModels = False,
    mig: Mig = None,
    include: Include = None,
    exclude: Exclude = None,
    share_gpus: ShareGpus = False,
    wait: Wait = None,
    flag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=OTHER",
            help="Rename a cluster flag: task_index=task_id. NAME= drops it.",
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    framework: Annotated[
        FrameworkChoice,
        typer.Option(
            help="By whose words it starts. auto: as the program's text says, in doubt by all; torch, jax: no ps and "
            "no cluster flags unless asked for.",
            rich_help_panel=PROGRAM,
        ),
    ] = FrameworkChoice.auto,
    flags: Annotated[
        bool | None,
        typer.Option(
            "--flags/--no-flags",
            help="Pass the cluster flags, or only TF_CONFIG [by the program's text]",
            show_default=False,
            rich_help_panel=PROGRAM,
        ),
    ] = None,
    env: Env = None,
    env_file: EnvFile = None,
    done: Annotated[
        DoneChoice, typer.Option(help="Whose success ends the run.", rich_help_panel=END)
    ] = DoneChoice.workers,
    code_dir: CodeDir = None,
    ship: Ship = None,
    follow_links: FollowLinks = False,
    max_code: MaxCode = "",
    show_files: ShowFiles = False,
    no_sync: NoSync = False,
    requirements: RequirementsFile = None,
    system_site_packages: SystemSite = False,
    container: Container = "",
    container_engine: ContainerEngine = "",
    mount: Mount = None,
    no_dial_check: NoDialCheck = False,
    require_all: RequireAll = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    quiet: Quiet = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK", help="Show the output of worker/0 only; repeatable.", rich_help_panel=OUTPUT
        ),
    ] = None,
    show_host: ShowHost = False,
    json: Json = False,
    grace: Grace = 10.0,
    ps_grace: Annotated[
        float,
        typer.Option(
            parser=time_of(),
            metavar="TIME",
            help="For ps to end by themselves when the work is done.",
            rich_help_panel=END,
        ),
    ] = 3.0,
    timeout: Annotated[
        float,
        typer.Option(
            parser=time_of(), metavar="TIME", help="End the run after so long.", rich_help_panel=END
        ),
    ] = 0.0,
    startup_timeout: StartupTimeout = 0.0,
    stall_timeout: Annotated[
        float,
        typer.Option(
            parser=time_of(),
            metavar="TIME",
            help="End it when no task has written anything for so long.",
            rich_help_panel=END,
        ),
    ] = 0.0,
    lease: Lease = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Start it and leave: it goes on by itself.", rich_help_panel=END),
    ] = False,
    fetch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Bring outputs here at the end, as in .gitignore: 'checkpoints/**'; repeatable.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    fetch_to: FetchTo = None,
    fetch_max: FetchMax = "",
    keep_mode: KeepMode = False,
    overwrite: Overwrite = False,
    tensorboard: Annotated[
        str | None,
        typer.Option(
            metavar="LOGDIR",
            help="Show this directory of the chief's host in TensorBoard while they run.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    tensorboard_port: TensorboardPort = 0,
    restarts: MostRestarts = 0,
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
            help="Hosts that are kept for when another one is lost, or not there (with --restarts).",
            rich_help_panel=AGAIN,
        ),
    ] = "",
    restart_window: RestartWindow = 3600.0,
    restart_on: Annotated[
        RestartOnChoice,
        typer.Option(help="retryable: only exit codes from 128 on, and signals.", rich_help_panel=AGAIN),
    ] = RestartOnChoice.any,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
    connection: ConnectionOption = "",
) -> None:
    """Start TRAINER.py as ps, worker and other tasks on HOSTS, show what they print, stop when the work is done.

    A job file in its place, job.yaml, may say all of it; options win over what it says.

    Exit code: 0; the code of the task that failed first (128 + n for signal n); 130 after Ctrl-C; 2 command
    line or hostfile; 65 the job does not fit; 69 no connection; 70 a host cannot start its tasks; 73 no record;
    74 not all outputs were fetched; 76 a host was lost, or not all could be stopped; 124 a time limit was reached.
    """
    from tflaunch.code.job_fitting import fitted
    from tflaunch.inputs.job_file import JobFile
    from tflaunch.launch.launch import dry, launch
    from tflaunch.launch.request import Request
    from tflaunch.runs.run_ids import new_run_id

    with reporting(
        "stopped; nothing was started, nothing is left",
        json=json,
        quiet=quiet,
        only=[_task_id(text) for text in only or ()],
        show_host=show_host,
    ) as show:
        if isinstance(ctx.obj, TflaunchError):
            raise ctx.obj
        file = ctx.obj if isinstance(ctx.obj, JobFile) else JobFile(Path.cwd(), script, module)
        gpus = gpu_choice(
            model=gpu_model,
            min_memory=min_gpu_memory,
            include=include,
            exclude=exclude,
            mig=mig,
            share=share_gpus,
            per_worker=gpus_per_worker,
        )
        check_wait(wait, dry_run)
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
        if detach and tensorboard is not None:
            raise UsageError(
                f"--detach --tensorboard {tensorboard}: nobody is here to look at it",
                "leave --tensorboard out; later: tflaunch tensorboard RUN LOGDIR",
            )
        if detach and fetch:
            raise UsageError(
                f"--detach --fetch {fetch[0]}: nobody is there at the end to bring it to",
                "leave --fetch out; later: tflaunch fetch RUN PATTERN",
            )
        roles = roles_of(
            file.roles,
            counts={PS: ps, WORKER: workers, CHIEF: 1 if chief else None, EVALUATOR: evaluator},
            hosts={PS: ps_hosts, WORKER: worker_hosts},
            gpus_per_worker=gpus_per_worker,
            jobs=job or (),
            job_hosts=job_hosts or (),
            job_gpus=job_gpus or (),
            job_env=job_env or (),
            job_args=job_args or (),
            job_end=job_end or (),
            job_grace=job_grace or (),
        )
        roles = roles_for(framework.value, roles)
        if framework.value in OF_THEIR_OWN and not flag and flags is None:
            flags = False
        wish = wish_of(
            patterns_of(fetch or ()), to=fetch_to, overwrite=overwrite, keep_mode=keep_mode, most=fetch_max
        )
        hostfile = load_hosts(hosts, connection, show.reporter)
        check_hosts(hostfile, gpus, roles)
        if no_sync:
            hostfile = on_every_host(file.directory, hostfile)
        packages = packages_of(requirements, system_site_packages, container, hostfile)
        program, stem, bundle, found = program_to_run(
            module,
            script,
            file.directory,
            hostfile,
            code_dir=code_dir,
            ship=ship or (),
            follow_links=follow_links,
            max_code=max_code,
            show_files=show_files,
            no_sync=no_sync,
            env_files=env_file or (),
            reporter=show.reporter,
            dry_run=dry_run,
        )
        variables, masked = env_and_files(env, env_file)
        spec = JobSpec(
            program,
            roles=roles,
            flags=None if flags is False else _flags(flag or [], roles),
            framework=framework.value,
        )
        if found is not None and all(host.workdir is None for host in hostfile.hosts):  # else another may run
            spec = fitted(spec, found, anyway=bool(flags or flag))
        request = Request(
            run_id=new_run_id(stem),
            job=dataclasses.replace(
                spec,
                args=(*file.args, *(arguments or ())),
                place=place.value,
                env=variables,
                masked=masked,
                requirements=packages,
                container=container,
                container_engine=container_engine,
                mounts=mounts_of(mount, container, hostfile),
                done=done.value,
                mix_models=mix_models,
            ),
            hostfile=hostfile,
            gpus=gpus,
            bundle=bundle,
            command=command_line(),
            ssh_config=str(ssh_config.absolute()) if ssh_config else None,
            lease_s=lease or LEASE_S[detach],
            connect_s=connect_timeout,
            grace_s=grace,
            drain_s=ps_grace,
            detach=detach,
            spares=spares,
            restarts=_restarts(restarts, restart or [], restart_window, restart_on.value, spec.roles),
            dial_check=not no_dial_check,
            limits_s={"timeout_s": timeout, "startup_s": startup_timeout, "stall_s": stall_timeout},
            tensorboard=tensorboard,
            tensorboard_port=tensorboard_port,
            fetch=wish if fetch else None,
            require_all=require_all,
            yes=yes,
            wait_s=wait,
        )
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config)
        for note in to_hosts.notes:
            show.reporter.warn(note)
        try:
            show.exit_code = (dry if dry_run else launch)(request, to_hosts, show.reporter)
        finally:
            to_hosts.close()


def program_to_run(
    module: str | None,
    script: str | None,
    directory: Path,
    hostfile: Hostfile,
    *,
    code_dir: Path | None,
    ship: Sequence[str],
    follow_links: bool,
    max_code: str,
    show_files: bool,
    no_sync: bool,
    env_files: Sequence[Path],
    reporter: CodeReporter,
    dry_run: bool,
) -> tuple[tuple[str, ...], str, Bundle | None, Program | None]:
    """(what follows the interpreter, a name for the run, the code to ship, where its text is); tells what stays here.

    The last two are None where the code is on all hosts already.  Raises UsageError.
    """
    from tflaunch.code.bundle import LIMIT_BYTES, code_of
    from tflaunch.code.program import find_program, program_there
    from tflaunch.console.code_page import own_code, tell
    from tflaunch.inputs.sizes import size

    most = size(max_code, "an amount of data for --max-code") if max_code else LIMIT_BYTES
    if show_files and not dry_run:
        raise UsageError(
            "--show-files without --dry-run", "add --dry-run: it shows the files, and starts nothing"
        )
    target = module or script
    if target is None:
        raise UsageError(
            "nothing to run: neither TRAINER.py nor -m PKG.MOD", "tflaunch run hosts.yaml trainer.py"
        )
    if all(host.workdir is not None for host in hostfile.hosts):  # the code is there: on no host is it ours
        if ship or show_files:
            option = f"--ship {ship[0]}" if ship else "--show-files"
            raise UsageError(f"{option}: the code is on the hosts, nothing is shipped", "leave it out")
        if not no_sync:
            reporter.note(own_code(hostfile))
        argv = ("-m", target) if module is not None else program_there(target)
        return argv, target.rpartition(".")[2] if module is not None else Path(target).stem, None, None
    found = find_program(target, module is not None, directory, code_dir)
    bundle = code_of(found, ship, follow_links, most)
    tell(found, bundle, env_files, reporter, dry_run=dry_run, show_files=show_files)
    if text := own_code(hostfile):
        reporter.note(text)
    return found.argv, Path(found.file).stem, bundle, found


def on_every_host(directory: Path, hostfile: Hostfile) -> Hostfile:
    """Hosts that have the code already: in their workdir, else in the directory of that path."""
    hosts = tuple(
        dataclasses.replace(host, workdir=host.workdir or str(directory)) for host in hostfile.hosts
    )
    return dataclasses.replace(hostfile, hosts=hosts)


def _restarts(
    most: int, policies: list[str], window_s: float, on: RestartOn, roles: Mapping[str, Role]
) -> Restarts:
    from tflaunch.lifecycle.states import Restarts

    default: RestartPolicy = "cluster" if roles.get(PS, Role()).count == 0 else "task"
    by_job: dict[str, RestartPolicy] = {}
    jobs = [*JOBS, *(name for name in roles if name not in JOBS)]
    for text in [each.strip() for option in policies for each in option.split(",")]:
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
    if policies and not most:
        raise UsageError(
            f"--restart {policies[0]} without --restarts: nothing starts again", "add --restarts 3"
        )
    if default != "never":
        by_job.setdefault(EVALUATOR, "task")  # its failure is of no concern to the cluster
    return Restarts(most, window_s, by_job, default, on)


def _flags(renamed: list[str], roles: Mapping[str, Role]) -> dict[str, str]:
    flags = dict(FLAGS)
    known = [*FLAGS, *(f"{name}_hosts" for name in roles if f"{name}_hosts" not in FLAGS)]
    for each in renamed:
        name, equals, other = each.partition("=")
        if name not in known or not equals:
            raise UsageError(f"--flag {each}: not NAME=OTHER", f"NAME is one of {', '.join(known)}")
        flags[name] = other
    return flags


def _task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise UsageError(f"--only {text}: {error}") from None
