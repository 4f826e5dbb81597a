"""`tflaunch sweep`: from the command line to a request, which tflaunch.sweeps.run carries out."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from tflaunch.cli.fetch import patterns_of, wish_of
from tflaunch.cli.job_options import (
    END,
    GPUS,
    OUTPUTS,
    CodeDir,
    Container,
    ContainerEngine,
    Env,
    EnvFile,
    Exclude,
    FetchMax,
    FetchTo,
    FollowLinks,
    GpuModel,
    Include,
    JobHosts,
    KeepMode,
    MaxCode,
    Mig,
    MinGpuMemory,
    Module,
    Mount,
    NoSync,
    Overwrite,
    RequireAll,
    RequirementsFile,
    ShareGpus,
    Ship,
    ShowFiles,
    SystemSite,
    TensorboardPort,
    Wait,
    Yes,
    check_hosts,
    check_wait,
    env_and_files,
    gpu_choice,
    mounts_of,
    packages_of,
)
from tflaunch.cli.options import (
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
from tflaunch.cli.run import TrainerCommand, on_every_host, program_to_run
from tflaunch.cli.values import time_of
from tflaunch.cli.words import Line, command, kind_of
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import PS, WORKER, JobSpec, Role

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile
    from tflaunch.sweeps.trials import Params

TRIALS, METRIC, AGAIN = "Trials", "Results", "When something fails"


_NOT_ALONE = (
    "A sweep cannot be left alone, for this command gives out its trials. Run it in tmux or screen; after any end "
    "--resume NAME goes on"
)
_SILENT = "A sweep shows no output of its trials; tflaunch logs NAME trial/7 does, also while they run"
_ONE_PROCESS = "A trial is one process; tflaunch run starts clusters"
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?,?", re.IGNORECASE)


class SweepCommand(TrainerCommand):
    """`sweep`; what it says of a trainer's own options is what `run` says."""

    instead: ClassVar = {
        **dict.fromkeys(("--detach", "-d"), _NOT_ALONE),
        **dict.fromkeys(
            ("--restarts", "--restart", "--restart-on", "--restart-window"), "Here it is --retries N"
        ),
        **dict.fromkeys(("--startup-timeout", "--stall-timeout"), "Here --timeout TIME limits each trial"),
        **dict.fromkeys(("--quiet", "-q", "--only", "--show-host"), _SILENT),
        **dict.fromkeys(("--workers", "--ps", "--chief", "--evaluator", "--job"), _ONE_PROCESS),
        "--gpus-per-worker": "Here it is --gpus-per-trial N",
        "--spares": "The trials of a host that is lost run on the others",
    }

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """As of any trainer; raises UsageError for a parameter that stands behind another one."""
        if not ctx.resilient_parsing:
            _refuse_parameters_alone(ctx.info_name or "", Line.read(self.params, self.optional_values, args))
        return super().parse_args(ctx, args)


def _refuse_parameters_alone(verb: str, line: Line) -> None:
    """Raise UsageError for `--random lr=0.1..1 layers=1..6` and `--grid lr=0.1 0.2`, with what is meant."""
    option = ""
    values_of = ""  # the parameter of --grid that stands just in front
    alone: list[str] = []
    apart: list[str] = []
    words: list[str] = []
    for texts, kind in line.words:
        name = texts[0].partition("=")[0]
        if values_of and kind == "plain" and _NUMBER.fullmatch(texts[0]):
            apart += texts
            words[-1] = f"{words[-1].rstrip(',')},{texts[0]}"
            continue
        values_of = texts[-1].removeprefix("--grid=").partition("=")[0] if name == "--grid" else ""
        if name in ("--grid", "--random"):
            option = name
        elif option and kind == "plain" and re.fullmatch(r"[A-Za-z_][\w.-]*=.*", texts[0], re.DOTALL):
            alone += texts
            words.append(option)
            values_of = name if option == "--grid" else ""
        words += texts
    if alone:
        raise UsageError(
            f"{' '.join(alone)}: no {option} in front of it; each parameter has its own",
            command(verb, words, line.behind),
        )
    if apart:
        raise UsageError(
            f"{' '.join(apart)}: the values of --grid stand in one word, with commas between them",
            command(verb, words, line.behind),
        )


def sweep(
    ctx: typer.Context,
    hosts: JobHosts = None,
    script: Annotated[
        str | None,
        typer.Argument(metavar="TRAINER.py", help="The program (or -m PKG.MOD).", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- ARGS",
            help="Arguments of all trials; {lr} stands for the value of lr, which else follows as --lr=VALUE.",
            show_default=False,
        ),
    ] = None,
    *,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B,C",
            help="All combinations of these values; repeatable.",
            rich_help_panel=TRIALS,
        ),
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A..B[:log]",
            help="--trials values from a range, or NAME=A,B,C; repeatable.",
            rich_help_panel=TRIALS,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many, with --random.", rich_help_panel=TRIALS),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The same one draws the same trials [a new one]", rich_help_panel=TRIALS
        ),
    ] = None,
    trials_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A list of trials: .yaml, .json, .jsonl or .csv.", rich_help_panel=TRIALS
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The sweep's name; one that is known goes on [a new one]",
            rich_help_panel=TRIALS,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Go on with that sweep: what has not succeeded yet is run.",
            rich_help_panel=TRIALS,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the trials and how many run at a time, and start nothing.",
            rich_help_panel=TRIALS,
        ),
    ] = False,
    yes: Yes = False,
    gpus_per_trial: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="GPUs of a trial [1 where there are any]", rich_help_panel=GPUS
        ),
    ] = None,
    trials_per_gpu: Annotated[
        int, typer.Option(min=1, metavar="N", help="Trials that share a GPU.", rich_help_panel=GPUS)
    ] = 1,
    trials_per_host: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Trials at a time on a host [slots: of the hostfile; as many as it has cards, or 1]",
            rich_help_panel=GPUS,
        ),
    ] = None,
    gpu_model: GpuModel = "",
    min_gpu_memory: MinGpuMemory = "",
    mig: Mig = None,
    include: Include = None,
    exclude: Exclude = None,
    share_gpus: ShareGpus = False,
    wait: Wait = None,
    require_all: RequireAll = False,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="KEY|REGEX",
            help="The number that counts: last JSON line with KEY, or last match of the one group of REGEX.",
            rich_help_panel=METRIC,
        ),
    ] = None,
    maximize: Annotated[
        bool,
        typer.Option("--maximize/--minimize", help="Which is better.", rich_help_panel=METRIC),
    ] = False,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Try a trial that fails again, on another host if there is one.",
            rich_help_panel=AGAIN,
        ),
    ] = 0,
    module: Module = None,
    env: Env = None,
    env_file: EnvFile = None,
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
    grace: Grace = 10.0,
    timeout: Annotated[
        float,
        typer.Option(
            parser=time_of(),
            metavar="TIME",
            help="End a trial that takes longer: it has failed.",
            rich_help_panel=END,
        ),
    ] = 0.0,
    lease: Annotated[
        float,
        typer.Option(
            parser=time_of(5),
            metavar="TIME",
            help="Hosts end their trials when this command was not heard of for so long.",
            rich_help_panel=END,
        ),
    ] = 60.0,
    fetch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Bring what the trials have written here at the end, seen from each: 'checkpoints/**'; repeatable.",
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
            help="Show what the trials of the first one's host write in TensorBoard while they run.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None,
    tensorboard_port: TensorboardPort = 0,
    json: Json = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
    connection: ConnectionOption = "",
) -> None:
    """Run TRAINER.py once for each set of values, as many at a time as HOSTS have cards for, and compare.

    Each trial is a process of its own, which is told its values as --NAME=VALUE, in TFLAUNCH_PARAMS (JSON) and its
    number in TFLAUNCH_TRIAL.  Results are on record as they come.

    Exit code: 0 all have succeeded; the code of the trial that failed first (128 + n for signal n); 130 after Ctrl-C;
    2 command line or hostfile; 65 no host can take a trial; 69 no connection; 70 no trial can start; 73 no record;
    74 not all outputs were fetched; 76 all hosts were lost, or not all could be stopped; 124 a trial took longer than
    --timeout.
    """
    from tflaunch.console.sweep import open_reporter
    from tflaunch.launch.launch import Request
    from tflaunch.runs.run_ids import new_run_id
    from tflaunch.sweeps.results import Metric
    from tflaunch.sweeps.run import dry
    from tflaunch.sweeps.run import sweep as carry_out
    from tflaunch.sweeps.seats import SweepRequest

    reporter = open_reporter(json=json)
    with reporting("stopped; no trial was started, nothing is left", reporter) as show:
        if script is not None and (script.endswith((".yaml", ".yml")) or kind_of(script) == "job"):
            raise UsageError(
                f"{script}: a job file is for tflaunch run", "name the program; options say the rest"
            )
        if name is not None and resume is not None:
            raise UsageError("--name and --resume name the same thing", "leave one of them out")
        if trials_per_gpu > 1 and (gpus_per_trial is not None and gpus_per_trial != 1):
            raise UsageError(
                f"--gpus-per-trial {gpus_per_trial} --trials-per-gpu {trials_per_gpu}: either several cards for a "
                "trial, or several trials on a card",
                "leave one of them out",
            )
        if mig is not None and gpus_per_trial is not None and gpus_per_trial > 1:
            raise UsageError(
                f"--mig --gpus-per-trial {gpus_per_trial}: a process can use one MIG instance only",
                "leave --gpus-per-trial out",
            )
        if maximize and metric is None:
            raise UsageError("--maximize without --metric: of what?", "--metric accuracy")
        check_wait(wait, dry_run)
        measure = Metric.parse(metric, maximize) if metric is not None else None
        if not random and (trials is not None or seed is not None):
            raise UsageError(f"{'--trials' if trials is not None else '--seed'} is for --random")
        if name is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,31}[a-z0-9])?", name):
            raise UsageError(f"--name {name}: 1 to 33 of a-z, 0-9 and '-', no '-' at an end")
        chosen = _trials(grid or [], random or [], trials, trials_file)
        hostfile = load_hosts(hosts, connection, reporter)
        gpus = gpu_choice(
            model=gpu_model,
            min_memory=min_gpu_memory,
            include=include,
            exclude=exclude,
            mig=mig,
            share=share_gpus,
            per_worker=None,
        )
        check_hosts(hostfile, gpus, {})
        patterns_of(fetch or ())  # what is wrong is told as it was written
        patterns = patterns_of(_of_trials(fetch or [], hostfile))
        wish = wish_of(patterns, to=fetch_to, overwrite=overwrite, keep_mode=keep_mode, most=fetch_max)
        if no_sync:
            hostfile = on_every_host(Path.cwd(), hostfile)
        program, stem, bundle, _ = program_to_run(
            module,
            script,
            Path.cwd(),
            hostfile,
            code_dir=code_dir,
            ship=ship or (),
            follow_links=follow_links,
            max_code=max_code,
            show_files=show_files,
            no_sync=no_sync,
            env_files=env_file or (),
            reporter=reporter,
            dry_run=dry_run,
        )
        variables, masked = env_and_files(env, env_file)
        request = SweepRequest(
            run=Request(
                run_id=new_run_id(f"{stem}-sweep"),
                job=JobSpec(
                    program=program,
                    args=tuple(arguments or ()),
                    roles={PS: Role(0), WORKER: Role(gpus=gpus_per_trial)},
                    flags=None,
                    env=variables,
                    masked=masked,
                    requirements=packages_of(requirements, system_site_packages, container, hostfile),
                    container=container,
                    container_engine=container_engine,
                    mounts=mounts_of(mount, container, hostfile),
                ),
                hostfile=hostfile,
                gpus=gpus,
                bundle=bundle,
                command=command_line(),
                ssh_config=str(ssh_config.absolute()) if ssh_config else None,
                lease_s=lease,
                connect_s=connect_timeout,
                grace_s=grace,
                tensorboard=tensorboard,
                tensorboard_port=tensorboard_port,
                fetch=wish if fetch else None,
                require_all=require_all,
                yes=yes,
                wait_s=wait,
            ),
            trials=chosen,
            metric=measure,
            retries=retries,
            timeout_s=timeout,
            per_gpu=trials_per_gpu,
            per_host=trials_per_host,
            seed=seed,
            drawn=bool(random),
            name=resume or name or "",
            must_exist=resume is not None,
            run_best=_run_one(ctx),
        )
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config)
        for note in to_hosts.notes:
            reporter.warn(note)
        try:
            show.exit_code = (dry if dry_run else carry_out)(request, to_hosts, reporter)
        finally:
            to_hosts.close()


def _trials(
    grid: Sequence[str],
    random: Sequence[str],
    count: int | None,
    file: Path | None,
) -> Callable[[int], list[Params]]:
    """What is to be tried, from the one of three ways that was chosen."""
    from tflaunch.sweeps import trials

    ways = [way for way, given in (("--grid", grid), ("--random", random), ("--trials-file", file)) if given]
    if not ways:
        raise UsageError(
            "nothing to try: neither --grid, --random nor --trials-file",
            "for example --grid lr=0.1,0.01 --grid layers=2,3",
        )
    if len(ways) > 1:
        raise UsageError(
            f"{ways[0]} and {ways[1]} are two ways to name the trials",
            "--random takes lists, too: --random optimizer=adam,sgd",
        )
    if random:
        if count is None:
            raise UsageError("--random without --trials: how many?", "--trials 20")
        trials.draw(random, count, 0)  # what is wrong with it is told now
        return functools.partial(trials.draw, random, count)
    found = trials.grid(grid) if grid else trials.read(Path(file or ""))
    return lambda _: found


def _of_trials(patterns: list[str], hostfile: Hostfile) -> list[str]:
    """Patterns seen from each trial's own directory, if it has one, as patterns seen from what holds them all."""
    from tflaunch.protocol.job import TRIAL

    if any(host.workdir is not None for host in hostfile.hosts):
        return patterns
    found = []
    for text in patterns:
        mark, plain = "!" * text.startswith("!"), text.removeprefix("!")
        bound = "/" in plain.rstrip("/") and not plain.startswith(("**/", f"{TRIAL}-", f"/{TRIAL}-"))
        found.append(f"{mark}{TRIAL}-*/{plain.removeprefix('/')}" if bound else text)
    return found


def _run_one(ctx: typer.Context) -> tuple[str, ...]:
    """The command that runs one trial as this one does; its arguments follow.

    Variables are taken from the environment, for their values may be secrets.
    """
    words = ["--ps", "0", "--workers", "1", "--no-flags"]
    for name, value in ctx.params.items():
        if name not in _AS_OF_RUN or getattr(ctx.get_parameter_source(name), "name", "") != "COMMANDLINE":
            continue
        option = "--" + name.replace("_", "-").replace("per-trial", "per-worker")
        for each in value if isinstance(value, list) else [value]:
            said = each.partition("=")[0] if name == "env" else each
            words += [option, *([] if said is True or said == "" else [str(said)])]
    module, script = ctx.params["module"], ctx.params["script"]
    program = ["-m", module] if module is not None else [script or ""]
    hosts = ctx.params["hosts"]
    return ("tflaunch", "run", *([] if hosts is None else [hosts]), *words, *program, "--")


_AS_OF_RUN = (
    "gpus_per_trial", "gpu_model", "min_gpu_memory", "mig", "include", "exclude", "share_gpus", "require_all",
    "env", "env_file", "code_dir", "ship", "follow_links", "max_code", "no_sync", "requirements",
    "system_site_packages", "container", "container_engine", "mount", "accept_new", "ssh_config", "connection",
)  # fmt: skip
