"""All options and arguments of `tune`."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass
from typing import Annotated

from tflaunch.inputs.options.declared import NOWHERE, Part, option
from tflaunch.inputs.options.groups import ConnectionOptions, EndOptions, OutputOptions
from tflaunch.inputs.options.job_groups import (
    ClusterOptions,
    GpuOptions,
    PlaceChoice,
    ProgramOptions,
    RoleOptions,
    StartOptions,
    TaskOptions,
    TrainerArguments,
)


@dataclass(repr=False, eq=False)
class LayoutOptions:
    """Which layouts to try: all combinations of these."""

    panel = "Layouts"
    also_in = NOWHERE

    ps: str = option(
        "",
        metavar="N,N,...",
        help="Numbers of ps tasks [1, 2, 4, ... up to the number of hosts; none where the framework has none]",
    )
    workers: str = option("", metavar="N,N,...", help="Numbers of worker tasks [as tflaunch run has it]")
    workers_per_host: str = option(
        "", metavar="N,N,...", help="The same, for each host: 1,2 on 4 hosts tries 4 and 8 workers."
    )
    ps_hosts: tuple[str, ...] = option(
        (), metavar="PATTERN", help="Hosts for ps; several times: each is tried."
    )
    worker_hosts: tuple[str, ...] = option(
        (), metavar="PATTERN", help="Hosts for workers; several times: each is tried."
    )
    place: tuple[PlaceChoice, ...] = option(
        (), metavar="spread|pack", help="How tasks are placed; several times: each is tried [spread]"
    )
    threads: str = option(
        "",
        metavar="N,N,...",
        help="Threads that compute in each task: OMP_NUM_THREADS and TF_NUM_INTRAOP_THREADS [as the program has it]",
    )


@dataclass(repr=False, eq=False)
class MeasureOptions:
    """How long each layout is measured."""

    panel = "Measuring"
    also_in = NOWHERE

    steps: int = option(200, min=2, help="Steps of the last round, of all workers together.")
    seconds: float = option(5.0, help="Measure each layout at least so long.")
    global_steps: bool = option(
        False, help="The steps that the tasks print are those of all together [if the lines say global_step]"
    )
    resume: str | None = option(
        None,
        metavar="NAME",
        help="Go on with this search; HOSTS, the trainer and the options are those on record.",
    )


@dataclass(repr=False, eq=False)
class TuneOptions:
    """All options and arguments of `tune`."""

    what: TrainerArguments
    layouts: LayoutOptions
    measure: MeasureOptions
    cluster: Annotated[ClusterOptions, Part("chief", "evaluator", "network")]
    gpus: GpuOptions
    start: Annotated[
        StartOptions,
        Part(help={"dry_run": "Print the layouts and how many steps each round tries; contact no host."}),
    ]
    program: Annotated[ProgramOptions, Part(without=("show_files",))]
    tasks: TaskOptions
    end: Annotated[
        EndOptions,
        Part(
            "grace",
            "ps_grace",
            "timeout",
            "lease",
            default={"timeout": 120.0},
            help={"timeout": "End a layout's run after this time; what it did until then counts."},
        ),
    ]
    roles: RoleOptions
    output: Annotated[OutputOptions, Part("json", help={"json": "Print everything as one JSON document."})]
    connection: ConnectionOptions
