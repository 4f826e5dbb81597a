"""All options and arguments of `sweep`."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from tflaunch.inputs.options.declared import NOWHERE, In, Part, argument, option
from tflaunch.inputs.options.groups import ConnectionOptions, EndOptions, OutputOptions
from tflaunch.inputs.options.job_groups import (
    GpuOptions,
    ProgramOptions,
    ResultOptions,
    StartOptions,
    TaskOptions,
    TrainerArguments,
)


@dataclass(repr=False, eq=False)
class SweepArguments(TrainerArguments):
    """HOSTS, the trainer and the arguments of all trials."""

    arguments: tuple[str, ...] = argument(
        (),
        metavar="-- ARGS",
        help="Arguments of all trials; {lr} stands for the value of lr, which else is added as --lr=VALUE.",
    )


class SamplerChoice(str, Enum):
    """Values of --sampler."""

    random = "random"
    tpe = "tpe"


class PrunerChoice(str, Enum):
    """Values of --pruner."""

    none = "none"
    asha = "asha"
    hyperband = "hyperband"


@dataclass(repr=False, eq=False)
class TrialOptions:
    """Which trials to run."""

    panel = "Trials"
    also_in = NOWHERE

    grid: tuple[str, ...] = option(
        (), metavar="NAME=A,B,C", help="All combinations of these values; repeatable."
    )
    random: tuple[str, ...] = option(
        (),
        metavar="NAME=A..B[:log]",
        help="Draw --trials values from a range, or from NAME=A,B,C; repeatable.",
    )
    trials: int | None = option(None, min=1, help="With --random: how many trials.")
    seed: int | None = option(None, help="With --random: the same seed draws the same trials [a new one]")
    sampler: SamplerChoice = option(
        SamplerChoice.random,
        help="With --random: draw all trials at once, or have Optuna's TPE propose each by the results so far "
        "(the extra tune).",
    )
    storage: str = option(
        "", metavar="URL", help="With --sampler or --pruner: Optuna's storage [a file in the sweep's record]"
    )
    trials_file: Path | None = option(
        None, help="Read the list of trials from this file: .yaml, .json, .jsonl or .csv."
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
    also_in = NOWHERE

    gpus_per_trial: int | None = option(None, min=0, help="GPUs for each trial [1 where there are any]")
    trials_per_gpu: int = option(1, min=1, help="Trials that share a GPU.")
    trials_per_host: int | None = option(
        None,
        min=1,
        help="Trials at a time on a host [`slots:` of the hostfile; as many as it has GPUs, or 1]",
    )


@dataclass(repr=False, eq=False)
class PreloadOptions:
    """How trials start."""

    panel = TaskOptions.panel
    also_in = NOWHERE

    preload: tuple[str, ...] = option(
        (),
        metavar="MODULE",
        help="Import this module once on each host, such as tensorflow, and fork trials from there; repeatable.",
    )


@dataclass(repr=False, eq=False)
class ScoreOptions:
    """How to compare the trials."""

    panel = "Results"
    also_in = NOWHERE

    metric: str | None = option(
        None,
        metavar="NAME|REGEX",
        help="The number to compare: the last one that the trial printed with NAME (loss 0.5, loss: 0.5, the key of a "
        "JSON line), or the last match of REGEX's group.",
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

    pruner: PrunerChoice = option(
        PrunerChoice.none,
        help="Stop trials early by Optuna's ASHA or Hyperband; each line with the metric is a report (the extra tune).",
    )


@dataclass(repr=False, eq=False)
class RetryOptions:
    """What to do when a trial fails."""

    panel = "When something fails"
    also_in = In.CONFIG

    retries: int = option(
        0, min=0, help="Run a trial that fails again, at most N times, on another host if there is one."
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
    gpus: Annotated[GpuOptions, Part(of="sweep")]
    start: Annotated[
        StartOptions,
        Part(of="sweep", help={"dry_run": "Print the trials and how many run at a time, and start nothing."}),
    ]
    failure: RetryOptions
    program: Annotated[ProgramOptions, Part(of="sweep")]
    tasks: Annotated[TaskOptions, Part(of="sweep")]
    preload: PreloadOptions
    end: Annotated[
        EndOptions,
        Part(
            of="sweep",
            help={
                "detach": "Return once the trials start; the sweep goes on from this machine (no host takes it over).",
                "timeout": "End a trial that takes longer; it counts as failed.",
                "lease": "Hosts end their trials after this time without word from this command [60s]",
            },
        ),
    ]
    results: Annotated[
        ResultOptions,
        Part(
            of="sweep",
            help={
                "fetch": "Copy files of the trials here at the end, by patterns in each trial's directory: "
                "'checkpoints/**'; repeatable.",
                "tensorboard": "Show in TensorBoard what the trials write on the host of the first trial.",
            },
        ),
    ]
    output: Annotated[OutputOptions, Part(of="sweep")]
    connection: Annotated[ConnectionOptions, Part(of="sweep")]
