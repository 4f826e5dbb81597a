"""Make the request of a sweep from its options."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.api.requests.configured import gpu_limit, gpus_selected_by, with_choices
from tflaunch.api.requests.job_parts import (
    LEASE_S,
    check_hosts,
    check_wait,
    gpu_choice,
    trainer_code,
    with_environment,
    with_workdirs,
)
from tflaunch.api.requests.what_to_fetch import parse_patterns, wish_at_end
from tflaunch.api.requests.which_hosts import load_hosts
from tflaunch.inputs.kinds import is_job_file
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import PS, WORKER, JobSpec, Role, by_python
from tflaunch.runs.hidden_values import VALUE_LEFT_OUT

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.options.of_sweep import ScoreOptions, SweepOptions, TrialOptions
    from tflaunch.launch.request import Request
    from tflaunch.sweeps.curves import StopBelow
    from tflaunch.sweeps.optuna_study import OptunaSearch
    from tflaunch.sweeps.results import Metric
    from tflaunch.sweeps.seats import SweepRequest
    from tflaunch.sweeps.trials import Params


def request_of(
    options: SweepOptions, reporter: Reporter, *, command: tuple[str, ...], of_one_trial: tuple[str, ...]
) -> SweepRequest:
    """Make the request from the options; raises TflaunchError for what is wrong with them.

    command: for the record.  of_one_trial: the command that runs one trial alone, up to the trial's arguments.
    """
    from tflaunch.planning import sent_sizes
    from tflaunch.sweeps.seats import SweepRequest

    trials = options.trials
    _check_combination(options)
    check_wait(options.gpus.wait, options.start.dry_run)
    metric = _metric(options.score)
    chosen = _trials(trials)
    run = _run_request(options, reporter, command)
    sent_sizes.check_trials(run.job, run.hostfile, chosen(0))
    search = _search(options)
    return SweepRequest(
        run=run,
        trials=chosen,
        metric=metric,
        retries=options.failure.retries,
        timeout_s=options.end.timeout,
        per_gpu=options.per_trial.trials_per_gpu,
        per_host=options.per_trial.trials_per_host,
        seed=trials.seed,
        drawn=bool(trials.random) and not (search and search.sampler),
        search=search,
        name=trials.resume or trials.name or "",
        must_exist=trials.resume is not None,
        keep_going=options.failure.keep_going,
        stop_below=_stop_below(options.score),
        preload=_preload(options, run),
        run_best=of_one_trial,
    )


def _preload(options: SweepOptions, run: Request) -> tuple[str, ...]:
    """Return the modules of --preload; raises UsageError for those that cannot be preloaded."""
    from tflaunch.planning.task_commands import image

    modules = options.preload.preload
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"--preload {module}: not the name of a module", "--preload tensorflow")
    if modules and not by_python(run.job.program):
        raise UsageError(f"--preload {modules[0]}: the program is not Python", "leave it out")
    inside = [host.name for host in run.hostfile.hosts if image(host, run.job)]
    if modules and len(inside) == len(run.hostfile.hosts):
        raise UsageError(f"--preload {modules[0]}: trials in containers cannot be forked", "leave it out")
    return tuple(dict.fromkeys(modules))


def _search(options: SweepOptions) -> OptunaSearch | None:
    """Return what Optuna is asked for; raises UsageError."""
    from tflaunch.sweeps.optuna_study import OptunaSearch
    from tflaunch.sweeps.trials import axes_of

    trials = options.trials
    sampler = trials.sampler.value.replace("random", "")
    pruner = options.score.pruner.value.replace("none", "")
    if not (sampler or pruner):
        if trials.storage:
            raise UsageError("--storage is for --sampler tpe and --pruner", "leave it out")
        return None
    if VALUE_LEFT_OUT in trials.storage:
        raise UsageError(
            f"--storage {trials.storage}: no record has its password", "say it anew: --storage URL"
        )
    option = f"--sampler {sampler}" if sampler else f"--pruner {pruner}"
    if sampler and not trials.random:
        raise UsageError(f"{option} is for --random", "for example --random lr=0.001..0.1:log --trials 20")
    if options.score.metric is None and trials.resume is None:
        raise UsageError(f"{option} without --metric: nothing to go by", "--metric accuracy --maximize")
    axes = tuple(axes_of(trials.random).items()) if sampler else ()
    search = OptunaSearch(sampler, pruner, axes, (trials.trials or 0) if sampler else 0, trials.storage)
    search.check()
    return search


def _check_combination(options: SweepOptions) -> None:
    """Raise UsageError for options that exclude each other, or need another one."""
    trials, per_trial, script = options.trials, options.per_trial, options.what.script
    several = per_trial.gpus_per_trial is not None and per_trial.gpus_per_trial > 1
    if script is not None and is_job_file(script):
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


def _stop_below(options: ScoreOptions) -> StopBelow | None:
    """Return the rule of --stop-below; raises UsageError."""
    from tflaunch.sweeps.curves import StopBelow

    return StopBelow.parse(options.stop_below) if options.stop_below is not None else None


def _run_request(options: SweepOptions, reporter: Reporter, command: tuple[str, ...]) -> Request:
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
        selects_gpus=gpus_selected_by(options.gpus),
    )
    job = with_choices(with_environment(job, options.tasks, hostfile))
    check_placeholders(job, hostfile, trials=True)
    for note in job.notes:
        reporter.warn(note)
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
        command=command,
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
