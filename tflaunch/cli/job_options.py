"""What the verbs that start tasks share: the options that say how many, where and on which cards, and their values."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from tflaunch.cli.options import OUTPUT
from tflaunch.cli.values import Command
from tflaunch.errors import UsageError
from tflaunch.times import FOR_EVER, seconds

if TYPE_CHECKING:
    from tflaunch.gpu_choice import GpuChoice

CLUSTER, GPUS, PROGRAM, END, AGAIN = "Cluster", "GPUs", "Program", "The end", "When a task fails"
LEASE_S = {False: 60.0, True: 600.0}  # by whether it is detached


class JobCommand(Command):
    """A verb that starts tasks."""

    optional_values: ClassVar = {
        "--mig": (r"\d+[cg](\..*)?", ""),  # 1g.10gb, 1c.3g.20gb; no program's name
        "--wait": (r"[0-9][0-9.]*[a-z]*", FOR_EVER),
    }


class PlaceChoice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


Ps = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="ps tasks [one per 4 workers]",
        show_default=False,
        rich_help_panel=CLUSTER,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="worker tasks [one per free GPU, or host]",
        show_default=False,
        rich_help_panel=CLUSTER,
    ),
]
Chief = Annotated[bool, typer.Option("--chief", help="One chief task more.", rich_help_panel=CLUSTER)]
PsHosts = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Hosts for ps: names, ranges, globs, label=value.",
        rich_help_panel=CLUSTER,
    ),
]
WorkerHosts = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Hosts for workers.", rich_help_panel=CLUSTER)
]
Place = Annotated[
    PlaceChoice, typer.Option(help="Over all hosts, or on as few as can be.", rich_help_panel=CLUSTER)
]
GpusPerWorker = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="GPUs of a worker [1 where there are any]", rich_help_panel=GPUS),
]
GpuModel = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Only cards with this in their name: H100.", rich_help_panel=GPUS),
]
MinGpuMemory = Annotated[
    str, typer.Option(metavar="SIZE", help="Only cards with that much: 40GiB.", rich_help_panel=GPUS)
]
Mig = Annotated[
    str | None,
    typer.Option(
        metavar="[PROFILE]",
        help="MIG instances (of that profile: 1g.10gb), no whole cards.",
        rich_help_panel=GPUS,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST[:0,2]", help="Only these cards; repeatable.", rich_help_panel=GPUS),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST[:0,2]", help="Not these cards; repeatable.", rich_help_panel=GPUS),
]
ShareGpus = Annotated[
    bool,
    typer.Option("--share-gpus", help="Also cards that others compute on.", rich_help_panel=GPUS),
]
Wait = Annotated[
    str | None,
    typer.Option(
        metavar="[TIME]",
        help="Queue for cards in use, so long: 30s, 10m, 2h, 1d [for ever].",
        rich_help_panel=GPUS,
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="For the tasks; without a value, yours.",
        rich_help_panel=PROGRAM,
    ),
]
NoDialCheck = Annotated[
    bool,
    typer.Option(
        "--no-dial-check",
        help="Start even if hosts cannot reach each other.",
        rich_help_panel=CLUSTER,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and start nothing.", rich_help_panel=CLUSTER)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no output of the tasks.", rich_help_panel=OUTPUT)
]
ShowHost = Annotated[
    bool, typer.Option("--show-host", help="Name the host in each line.", rich_help_panel=OUTPUT)
]
StartupTimeout = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="S",
        help="End it when a task has not opened its port by then.",
        rich_help_panel=END,
    ),
]
Lease = Annotated[
    float | None,
    typer.Option(
        min=5,
        metavar="S",
        help="Hosts end the run when nobody who decides was heard of for so long [60; detached 600]",
        show_default=False,
        rich_help_panel=END,
    ),
]
MostRestarts = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Start what fails again, N times in --restart-window.",
        rich_help_panel=AGAIN,
    ),
]
RestartWindow = Annotated[
    str, typer.Option(metavar="TIME", help="The time in which --restarts counts.", rich_help_panel=AGAIN)
]


def gpu_choice(
    *,
    model: str,
    min_memory: str,
    include: list[str] | None,
    exclude: list[str] | None,
    mig: str | None,
    share: bool,
    per_worker: int | None,
) -> GpuChoice:
    """Which cards may be taken; raises UsageError."""
    from tflaunch.cards import size
    from tflaunch.gpu_choice import GpuChoice

    if mig is not None and per_worker is not None and per_worker > 1:
        raise UsageError(
            f"--mig --gpus-per-worker {per_worker}: a process can use one MIG instance only",
            "leave --gpus-per-worker out; --workers says how many instances the run uses",
        )
    return GpuChoice(
        model=model,
        min_memory_bytes=size(min_memory) if min_memory else 0,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        mig=mig,
        share=share,
    )


def wait_s(wait: str | None, dry_run: bool) -> float | None:
    """How long to queue for cards, None: not at all; raises UsageError."""
    if dry_run and wait is not None:
        raise UsageError("--dry-run --wait: what starts nothing waits for nothing", "leave one of them out")
    return None if wait is None else math.inf if wait == FOR_EVER else seconds(wait)


def environment(wanted: Iterable[str] | None, option: str = "") -> dict[str, str]:
    """The variables of --env, or of another `option`; raises UsageError for one that has no value here."""
    env = {}
    for each in wanted or ():
        name, equals, value = each.partition("=")
        if not name or (not equals and name not in os.environ):
            written = option or f"--env {each if name else 'NAME'}"
            raise UsageError(
                f"{option or f'--env {each}'}: {name or 'a name'} is not set here",
                f"give it a value: {written}=VALUE",
            )
        env[name] = value if equals else os.environ[name]
    return env
