"""`tflaunch sweep`: makes a request from the command line, for tflaunch.sweeps.run to carry out."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from tflaunch.cli.background import behind_the_terminal
from tflaunch.cli.configured import gpu_limit, with_choices
from tflaunch.cli.connecting import connected
from tflaunch.cli.job_option_groups import (
    GpuOptions,
    JobHosts,
    ProgramOptions,
    ResultOptions,
    StartOptions,
    TaskOptions,
)
from tflaunch.cli.job_parts import (
    LEASE_S,
    check_hosts,
    check_wait,
    command_line,
    gpu_choice,
    trainer_code,
    with_environment,
    with_workdirs,
)
from tflaunch.cli.option_groups import ConnectionOptions, EndOptions, OutputOptions
from tflaunch.cli.options import Part, argument, option
from tflaunch.cli.outputs import parse_patterns, wish_at_end
from tflaunch.cli.reporting import reporting
from tflaunch.cli.trainer_command import TrainerCommand
from tflaunch.cli.trainer_words import Line, kind_of, shell_command
from tflaunch.cli.which_hosts import load_hosts
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import PS, WORKER, JobSpec, Role

if TYPE_CHECKING:
    from tflaunch.console.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.launch.request import Request
    from tflaunch.sweeps.curves import StopBelow
    from tflaunch.sweeps.results import Metric
    from tflaunch.sweeps.seats import SweepRequest
    from tflaunch.sweeps.trials import Params

_SILENT = "A sweep does not show what its trials print; tflaunch logs NAME trial/7 does, also while they run"
_UNWATCHED = "Trials are not watched for hangs: they wait for no other task; --timeout TIME limits each"
_ONE_PROCESS = "A trial is one process; tflaunch run starts clusters"
_RESUMED = "tflaunch.sweep.resumed"  # in the context: what --resume alone stands for
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?,?", re.IGNORECASE)


class SweepCommand(TrainerCommand):
    """The class of the command `sweep`."""

    instead: ClassVar = {
        **dict.fromkeys(("--restarts", "--restart", "--restart-on", "--restart-window"), "Use --retries N"),
        **dict.fromkeys(
            ("--startup-timeout", "--stall-timeout"), "Use --timeout TIME, which limits each trial"
        ),
        **dict.fromkeys(("--quiet", "-q", "--only", "--show-host"), _SILENT),
        **dict.fromkeys(("--workers", "--ps", "--chief", "--evaluator", "--job"), _ONE_PROCESS),
        **dict.fromkeys(("--threshold", "--no-stacks", "--require-gpu", "--stop-on-nan"), _UNWATCHED),
        "--gpus-per-worker": "Use --gpus-per-trial N",
        "--spares": "The trials of a host that is lost run on the others",
    }

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse as TrainerCommand does; --resume alone stands for the words on record.

        Raises UsageError for a parameter without its own --grid or --random.
        """
        if not ctx.resilient_parsing:
            from tflaunch.cli.sweep_words import enter, resumed

            read = functools.partial(Line.read, self.params, self.optional_values)
            if (found := resumed(read(args), read)) is not None:
                enter(found.directory)
                args = list(found.words)
                ctx.meta[_RESUMED] = found
            _refuse_parameters_alone(ctx.info_name or "", Line.read(self.params, self.optional_values, args))
        return super().parse_args(ctx, args)


def _refuse_parameters_alone(verb: str, line: Line) -> None:
    """Raise UsageError for `--random lr=0.1..1 layers=1..6` and `--grid lr=0.1 0.2`, with the corrected command."""
    option = ""
    values_of = ""  # the parameter, if the word before was a value of --grid
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
            f"{' '.join(alone)}: no {option} before it; each parameter needs its own",
            shell_command(verb, words, line.after),
        )
    if apart:
        raise UsageError(
            f"{' '.join(apart)}: the values of --grid stand in one word, with commas between them",
            shell_command(verb, words, line.after),
        )


@dataclass(repr=False, eq=False)
class SweepArguments(JobHosts):
    """HOSTS, the trainer and the arguments of all trials."""

    script: str | None = argument(
        None, metavar="TRAINER.py", help="The program (or -m PKG.MOD).", show_default=False
    )
    arguments: tuple[str, ...] = argument(
        (),
        metavar="-- ARGS",
        help="Arguments of all trials; {lr} stands for the value of lr, which else is added as --lr=VALUE.",
        show_default=False,
    )


@dataclass(repr=False, eq=False)
class TrialOptions:
    """Which trials to run."""

    panel = "Trials"

    grid: tuple[str, ...] = option(
        (), metavar="NAME=A,B,C", help="All combinations of these values; repeatable."
    )
    random: tuple[str, ...] = option(
        (),
        metavar="NAME=A..B[:log]",
        help="Draw --trials values from a range, or from NAME=A,B,C; repeatable.",
    )
    trials: int | None = option(None, min=1, metavar="N", help="With --random: how many trials.")
    seed: int | None = option(
        None, metavar="N", help="With --random: the same seed draws the same trials [a new one]"
    )
    trials_file: Path | None = option(
        None, metavar="FILE", help="Read the list of trials from this file: .yaml, .json, .jsonl or .csv."
    )
    name: str | None = option(
        None, metavar="NAME", help="The sweep's name; if there is such a sweep, it goes on [a new name]"
    )
    resume: str | None = option(
        None,
        metavar="NAME",
        help="Go on with this sweep: run the trials that have not succeeded yet; HOSTS, the trainer and the options "
        "are those on record.",
    )


@dataclass(repr=False, eq=False)
class TrialGpuOptions:
    """How many GPUs each trial gets, and how many trials run at a time."""

    panel = GpuOptions.panel

    gpus_per_trial: int | None = option(
        None, min=0, metavar="N", help="GPUs for each trial [1 where there are any]"
    )
    trials_per_gpu: int = option(1, min=1, metavar="N", help="Trials that share a GPU.")
    trials_per_host: int | None = option(
        None,
        min=1,
        metavar="N",
        help="Trials at a time on a host [`slots:` of the hostfile; as many as it has GPUs, or 1]",
    )


@dataclass(repr=False, eq=False)
class ScoreOptions:
    """How to compare the trials."""

    panel = "Results"

    metric: str | None = option(
        None,
        metavar="KEY|REGEX",
        help="The number to compare: KEY in the last JSON line that has it, or the last match of REGEX's group.",
    )
    maximize: bool = option(
        False, "--maximize/--minimize", help="Whether a larger or a smaller number is better."
    )
    stop_below: str | None = option(
        None,
        metavar="median|25%",
        help="Stop a trial whose best value so far is worse than the median, or among the worst 25%, of the trials "
        "that succeeded, as it was after so many values; from the sixth trial on.",
    )


@dataclass(repr=False, eq=False)
class RetryOptions:
    """What to do when a trial fails."""

    panel = "When something fails"

    retries: int = option(
        0,
        min=0,
        metavar="N",
        help="Run a trial that fails again, at most N times, on another host if there is one.",
    )
    keep_going: bool = option(
        False, "--keep-going", help="Run all trials, even if the first three fail at once and alike."
    )


@dataclass(repr=False, eq=False)
class SweepOptions:
    """All options and arguments of `sweep`."""

    what: SweepArguments
    trials: TrialOptions
    score: ScoreOptions
    per_trial: TrialGpuOptions
    gpus: Annotated[GpuOptions, Part(without=("gpus_per_worker", "mix_models"))]
    start: Annotated[
        StartOptions,
        Part(
            "require_all",
            "dry_run",
            "yes",
            help={"dry_run": "Print the trials and how many run at a time, and start nothing."},
        ),
    ]
    failure: RetryOptions
    program: Annotated[
        ProgramOptions, Part(without=("flag", "flag_style", "no_empty_flags", "framework", "flags"))
    ]
    tasks: TaskOptions
    end: Annotated[
        EndOptions,
        Part(
            "grace",
            "timeout",
            "lease",
            "detach",
            help={
                "detach": "Return once the trials start; the sweep goes on from this machine, without this terminal.",
                "timeout": "End a trial that takes longer; it counts as failed.",
                "lease": "Hosts end their trials after this time without word from this command [60s]",
            },
        ),
    ]
    results: Annotated[
        ResultOptions,
        Part(
            help={
                "fetch": "Copy files of the trials here at the end, by patterns in each trial's directory: "
                "'checkpoints/**'; repeatable.",
                "tensorboard": "Show in TensorBoard what the trials write on the host of the first trial.",
            }
        ),
    ]
    output: Annotated[OutputOptions, Part("json")]
    connection: ConnectionOptions


def sweep(ctx: typer.Context, options: SweepOptions) -> None:
    """Run TRAINER.py once for each set of values, as many at a time as HOSTS have GPUs for, and compare the results.

    Each trial is a process of its own; it gets its values as --NAME=VALUE and in TFLAUNCH_PARAMS (JSON), its number
    in TFLAUNCH_TRIAL.  Each result is recorded as soon as its trial ends.
    """
    from tflaunch.console.sweep import open_reporter
    from tflaunch.sweeps.run import dry
    from tflaunch.sweeps.run import sweep as carry_out

    leave = None
    if options.end.detach and not options.start.dry_run:
        if options.results.tensorboard is not None:
            raise UsageError(
                f"--detach --tensorboard {options.results.tensorboard}: nobody would see its address",
                "leave --tensorboard out; later: tflaunch tensorboard NAME",
            )
        leave = behind_the_terminal()
    reporter = open_reporter(json=options.output.json, one_document=options.start.dry_run)
    with reporting("stopped; no trial was started, nothing is left", reporter) as show:
        request = _request(ctx, options, reporter)
        with connected(request.run.hostfile.hosts, options.connection, reporter) as connector:
            if options.start.dry_run:
                show.exit_code = dry(request, connector, reporter)
            else:
                show.exit_code = carry_out(request, connector, reporter, leave)


def _request(ctx: typer.Context, options: SweepOptions, reporter: Reporter) -> SweepRequest:
    """Make the request from the command line; raises TflaunchError for what is wrong with it."""
    from tflaunch.sweeps.seats import SweepRequest

    trials = options.trials
    _check_combination(options)
    check_wait(options.gpus.wait, options.start.dry_run)
    metric = _metric(options.score)
    chosen = _trials(trials)
    return SweepRequest(
        run=dataclasses.replace(_run_request(options, reporter), command=_command(ctx)),
        trials=chosen,
        metric=metric,
        retries=options.failure.retries,
        timeout_s=options.end.timeout,
        per_gpu=options.per_trial.trials_per_gpu,
        per_host=options.per_trial.trials_per_host,
        seed=trials.seed,
        drawn=bool(trials.random),
        name=trials.resume or trials.name or "",
        must_exist=trials.resume is not None,
        keep_going=options.failure.keep_going,
        stop_below=_stop_below(options.score),
        run_best=_command_of_one_trial(ctx),
    )


def _check_combination(options: SweepOptions) -> None:
    """Raise UsageError for options that exclude each other, or need another one."""
    trials, per_trial, script = options.trials, options.per_trial, options.what.script
    several = per_trial.gpus_per_trial is not None and per_trial.gpus_per_trial > 1
    if script is not None and (script.endswith((".yaml", ".yml")) or kind_of(script) == "job"):
        raise UsageError(
            f"{script}: a job file is for tflaunch run", "name the program, and say the rest by options"
        )
    if trials.name is not None and trials.resume is not None:
        raise UsageError("--name and --resume name the same thing", "leave one of them out")
    if per_trial.trials_per_gpu > 1 and per_trial.gpus_per_trial not in (None, 1):
        raise UsageError(
            f"--gpus-per-trial {per_trial.gpus_per_trial} --trials-per-gpu {per_trial.trials_per_gpu}: either several "
            "GPUs for a trial, or several trials on a GPU",
            "leave one of them out",
        )
    if options.gpus.mig is not None and several:
        raise UsageError(
            f"--mig --gpus-per-trial {per_trial.gpus_per_trial}: a process can use one MIG instance only",
            "leave --gpus-per-trial out",
        )
    if options.score.maximize and options.score.metric is None:
        raise UsageError("--maximize without --metric: nothing to compare", "--metric accuracy")
    if options.score.stop_below is not None and options.score.metric is None and trials.resume is None:
        raise UsageError("--stop-below without --metric: nothing to compare", "--metric accuracy --maximize")
    if not trials.random and (trials.trials is not None or trials.seed is not None):
        raise UsageError(f"{'--trials' if trials.trials is not None else '--seed'} is for --random")
    if trials.name is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,31}[a-z0-9])?", trials.name):
        raise UsageError(f"--name {trials.name}: 1 to 33 of a-z, 0-9 and '-', no '-' at an end")


def _metric(options: ScoreOptions) -> Metric | None:
    """Return what --metric asks for; raises UsageError."""
    from tflaunch.sweeps.results import Metric

    return Metric.parse(options.metric, options.maximize) if options.metric is not None else None


def _command(ctx: typer.Context) -> tuple[str, ...]:
    """Return the command line for the record: with all its words, where the user left out those on record."""
    if (found := ctx.meta.get(_RESUMED)) is None:
        return command_line()
    from tflaunch.runs.hidden_values import without_values

    return ("tflaunch", "sweep", *without_values(found.words))


def _stop_below(options: ScoreOptions) -> StopBelow | None:
    """Return the rule of --stop-below; raises UsageError."""
    from tflaunch.sweeps.curves import StopBelow

    return StopBelow.parse(options.stop_below) if options.stop_below is not None else None


def _run_request(options: SweepOptions, reporter: Reporter) -> Request:
    """Return the request for the hosts, GPUs and code that all trials share; raises TflaunchError."""
    from tflaunch.launch.request import Request
    from tflaunch.planning.filling import check as check_placeholders
    from tflaunch.runs.run_ids import new_run_id

    connection, results = options.connection, options.results
    hostfile = load_hosts(options.what.hosts, connection.connection, reporter)
    gpus = gpu_choice(options.gpus)
    check_hosts(hostfile, gpus, {})
    parse_patterns(results.fetch)  # so that an error shows a pattern as the user wrote it
    wish = wish_at_end(results, _patterns_of_trials(results.fetch, hostfile))
    if options.program.no_sync:
        hostfile = with_workdirs(Path.cwd(), hostfile)
    job = JobSpec(
        (),
        args=options.what.arguments,
        roles={PS: Role(0), WORKER: Role(gpus=options.per_trial.gpus_per_trial)},
        flags=None,
    )
    job = with_choices(with_environment(job, options.tasks, hostfile))
    check_placeholders(job, hostfile, trials=True)
    code = trainer_code(
        options.program,
        options.what.script,
        Path.cwd(),
        hostfile,
        env_files=options.tasks.env_file,
        reporter=reporter,
        dry_run=options.start.dry_run,
    )
    return Request(
        run_id=new_run_id(f"{code.stem}-sweep"),
        job=dataclasses.replace(job, program=code.argv),
        hostfile=hostfile,
        gpus=gpus,
        bundle=code.bundle,
        command=command_line(),
        ssh_config=connection.config_path,
        lease_s=options.end.lease or LEASE_S[False],
        connect_s=connection.connect_timeout,
        grace_s=options.end.grace,
        tensorboard=results.tensorboard,
        tensorboard_port=results.tensorboard_port,
        fetch=wish,
        require_all=options.start.require_all,
        yes=options.start.yes,
        wait_s=options.gpus.wait,
        gpu_limit=gpu_limit(),
    )


def _trials(options: TrialOptions) -> Callable[[int], Sequence[Params]]:
    """Return a function that makes the trials from a seed; raises UsageError."""
    from tflaunch.sweeps import trials

    random, count = options.random, options.trials
    ways = {"--grid": options.grid, "--random": random, "--trials-file": options.trials_file}
    ways_used = [way for way, given in ways.items() if given]
    if not ways_used:
        raise UsageError(
            "nothing to try: neither --grid, --random nor --trials-file",
            "for example --grid lr=0.1,0.01 --grid layers=2,3",
        )
    if len(ways_used) > 1:
        raise UsageError(
            f"{ways_used[0]} and {ways_used[1]} are two ways to name the trials",
            "--random takes lists, too: --random optimizer=adam,sgd",
        )
    if random:
        if count is None:
            raise UsageError("--random without --trials: how many trials?", "--trials 20")
        trials.draw(random, count, 0)  # to raise now what it would raise later
        return functools.partial(trials.draw, random, count)
    found = trials.grid(options.grid) if options.grid else trials.read(options.trials_file or Path())
    return lambda _: found


def _patterns_of_trials(patterns: Sequence[str], hostfile: Hostfile) -> Sequence[str]:
    """Rewrite patterns for each trial's own directory, where it has one, for the directory of all trials."""
    from tflaunch.protocol.job import TRIAL

    if any(host.workdir is not None for host in hostfile.hosts):
        return patterns
    found = []
    for text in patterns:
        mark, plain = "!" * text.startswith("!"), text.removeprefix("!")
        bound = "/" in plain.rstrip("/") and not plain.startswith(("**/", f"{TRIAL}-", f"/{TRIAL}-"))
        found.append(f"{mark}{TRIAL}-*/{plain.removeprefix('/')}" if bound else text)
    return found


def _command_of_one_trial(ctx: typer.Context) -> tuple[str, ...]:
    """Return the command that runs one trial as this command does, up to the trial's arguments.

    It names variables of --env without their values, which may be secrets.
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
