"""All options and arguments of `run`."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass

from tflaunch.inputs.options.declared import argument
from tflaunch.inputs.options.groups import ConnectionOptions, EndOptions, OutputOptions, WatchOptions
from tflaunch.inputs.options.job_groups import (
    ClusterOptions,
    GpuOptions,
    ProgramOptions,
    RestartOptions,
    ResultOptions,
    RoleOptions,
    StartOptions,
    TaskOptions,
    TrainerArguments,
)


@dataclass(repr=False, eq=False)
class RunArguments(TrainerArguments):
    """HOSTS, the trainer and its arguments."""

    script: str | None = argument(
        None,
        metavar="TRAINER.py",
        help="The program (or -m PKG.MOD), or a job file: job.yaml. The hosts' `python:` runs a Python file, whatever "
        "its first line says; a .sh or an executable runs by its first line (#!).",
    )


@dataclass(repr=False, eq=False)
class RunOptions:
    """All options and arguments of `run`."""

    what: RunArguments
    cluster: ClusterOptions
    gpus: GpuOptions
    start: StartOptions
    program: ProgramOptions
    tasks: TaskOptions
    output: OutputOptions
    results: ResultOptions
    end: EndOptions
    restarts: RestartOptions
    watch: WatchOptions
    roles: RoleOptions
    connection: ConnectionOptions
