"""What the verbs that start tasks share: the options that say how many, where and on which cards, and their values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from tflaunch.cli.options import OUTPUT
from tflaunch.cli.values import TIME_WORD, Command, time_of
from tflaunch.inputs.times import FOR_EVER
from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile
    from tflaunch.planning.gpu_choice import GpuChoice
    from tflaunch.protocol.job import Cards, Requirements, Role

ROLES = "Roles, under any job name"
CLUSTER, GPUS, PROGRAM, END, AGAIN = "Cluster", "GPUs", "Program", "The end", "When a task fails"
OUTPUTS = "Outputs"
MOST_CARDS = 1024  # of one task
LEASE_S = {False: 60.0, True: 600.0}  # by whether it is detached


class JobCommand(Command):
    """A verb that starts tasks."""

    optional_values: ClassVar = {
        "--mig": (r"\d+[cg](\..*)?", ""),  # 1g.10gb, 1c.3g.20gb; no program's name
        "--wait": (TIME_WORD, FOR_EVER),
    }


class PlaceChoice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


def _patience(text: str) -> float:
    return math.inf if text == FOR_EVER else time_of()(text)


def cards(text: str) -> Cards:
    """`2`, or `all`; raises BadParameter."""
    if text == "all":
        return "all"
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MOST_CARDS:
        raise typer.BadParameter(f"{text!r} is not a whole number from 0 to {MOST_CARDS}, or all")
    return int(text)


JobHosts = Annotated[
    str | None,
    typer.Argument(
        metavar="HOSTS",
        help="A hostfile, or host1:2,host2, or slurm: or pbs: [$TFLAUNCH_HOSTS, ./hosts.yaml, "
        "~/.config/tflaunch/hosts.yaml]",
        show_default=False,
    ),
]
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
Job = Annotated[
    list[str] | None,
    typer.Option(
        metavar="JOB=N",
        help="N tasks of any job name: data=2; repeatable, as all of these.",
        rich_help_panel=ROLES,
    ),
]
HostsOfJob = Annotated[
    list[str] | None,
    typer.Option(metavar="JOB=PATTERN", help="Hosts for them.", rich_help_panel=ROLES),
]
GpusOfJob = Annotated[
    list[str] | None,
    typer.Option(metavar="JOB=N|all", help="GPUs of each of them.", rich_help_panel=ROLES),
]
EnvOfJob = Annotated[
    list[str] | None,
    typer.Option(metavar="JOB=NAME[=VALUE]", help="In their environment, as --env.", rich_help_panel=ROLES),
]
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
    Any,
    typer.Option(
        parser=cards,
        metavar="N|all",
        help="GPUs of a worker [1 where there are any]; all: one worker with those of its host.",
        show_default=False,
        rich_help_panel=GPUS,
    ),
]
MixModels = Annotated[
    bool,
    typer.Option("--mix-models", help="Workers may get cards of several models.", rich_help_panel=GPUS),
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
    typer.Option(metavar="HOST[:0,2]", help="Only these hosts, or cards; repeatable.", rich_help_panel=GPUS),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST[:0,2]", help="Not these hosts, or cards; repeatable.", rich_help_panel=GPUS),
]
ShareGpus = Annotated[
    bool,
    typer.Option("--share-gpus", help="Also cards that others compute on.", rich_help_panel=GPUS),
]
Wait = Annotated[
    float | None,
    typer.Option(
        parser=_patience,
        metavar="[TIME]",
        help="Queue for cards in use, so long [for ever].",
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
EnvFile = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Variables for the tasks, NAME=VALUE a line, as .env; no record shows them; repeatable.",
        rich_help_panel=PROGRAM,
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        "-m",
        metavar="PKG.MOD",
        help="Run a module, as python -m does.",
        rich_help_panel=PROGRAM,
    ),
]
CodeDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Ship this directory, not just the script's own.", rich_help_panel=PROGRAM
    ),
]
Ship = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Ship this file of it though it is ignored or looks like a secret; repeatable.",
        rich_help_panel=PROGRAM,
    ),
]
FollowLinks = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Ship what links lead to outside the directory, not the links.",
        rich_help_panel=PROGRAM,
    ),
]
MaxCode = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Ship no more than that: 500MiB [100MiB]",
        show_default=False,
        rich_help_panel=PROGRAM,
    ),
]
ShowFiles = Annotated[
    bool,
    typer.Option(
        "--show-files",
        help="With --dry-run: each file that is shipped, and each that is not and why.",
        rich_help_panel=PROGRAM,
    ),
]
NoSync = Annotated[
    bool,
    typer.Option(
        "--no-sync",
        help="Ship nothing: the code is on the hosts, at this path or in workdir.",
        rich_help_panel=PROGRAM,
    ),
]
RequirementsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Each host installs requirements.txt, pyproject.toml or uv.lock, once, for the tasks.",
        rich_help_panel=PROGRAM,
    ),
]
SystemSite = Annotated[
    bool,
    typer.Option(
        "--system-site-packages",
        help="On top of what the hosts' Python has (with --requirements).",
        rich_help_panel=PROGRAM,
    ),
]
Container = Annotated[
    str, typer.Option(metavar="IMAGE", help="Run the tasks in containers of it.", rich_help_panel=PROGRAM)
]
ContainerEngine = Annotated[
    str,
    typer.Option(
        metavar="ENGINE", help="podman, docker or a path [what the host has]", rich_help_panel=PROGRAM
    ),
]
Mount = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH[:PATH[:ro]]",
        help="A directory of the hosts for the containers; repeatable.",
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
RequireAll = Annotated[
    bool,
    typer.Option(
        "--require-all",
        help="Start nothing while a host cannot be reached, also where it would fit on the others.",
        rich_help_panel=CLUSTER,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and start nothing.", rich_help_panel=CLUSTER)
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        envvar="TFLAUNCH_YES",
        help="Go on where tflaunch would ask first.",
        rich_help_panel=CLUSTER,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no output of the tasks.", rich_help_panel=OUTPUT)
]
ShowHost = Annotated[
    bool, typer.Option("--show-host", help="Name the host in each line.", rich_help_panel=OUTPUT)
]
FetchTo = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where to [./RUN]", show_default=False, rich_help_panel=OUTPUTS),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Also over files here that have other content.", rich_help_panel=OUTPUTS
    ),
]
FetchMax = Annotated[
    str, typer.Option(metavar="SIZE", help="Bring nothing if it is more: 20GiB.", rich_help_panel=OUTPUTS)
]
KeepMode = Annotated[
    bool,
    typer.Option("--keep-mode", help="What is executable there is so here.", rich_help_panel=OUTPUTS),
]
TensorboardPort = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="The port of this machine for it [any]",
        show_default=False,
        rich_help_panel=OUTPUTS,
    ),
]
StartupTimeout = Annotated[
    float,
    typer.Option(
        parser=time_of(),
        metavar="TIME",
        help="End it when a task has not opened its port by then.",
        rich_help_panel=END,
    ),
]
Lease = Annotated[
    float | None,
    typer.Option(
        parser=time_of(5),
        metavar="TIME",
        help="Hosts end the run when nobody who decides was heard of for so long [60s; detached 10m]",
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
    float,
    typer.Option(
        parser=time_of(),
        metavar="TIME",
        help="The time in which --restarts counts.",
        rich_help_panel=AGAIN,
    ),
]


def gpu_choice(
    *,
    model: str,
    min_memory: str,
    include: list[str] | None,
    exclude: list[str] | None,
    mig: str | None,
    share: bool,
    per_worker: Cards | None,
) -> GpuChoice:
    """Which cards may be taken; raises UsageError."""
    from tflaunch.inputs.sizes import size
    from tflaunch.planning.gpu_choice import GpuChoice

    if mig is not None and (per_worker == "all" or (per_worker or 0) > 1):
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


def check_hosts(hostfile: Hostfile, gpus: GpuChoice, roles: Mapping[str, Role]) -> None:
    """Read every pattern of hosts before one is contacted; raises UsageError for one that fits nothing."""
    from tflaunch.hosts import match
    from tflaunch.planning.gpu_choice import check

    check(gpus, hostfile)
    for role in roles.values():
        if role.hosts is not None:
            match(role.hosts, hostfile)


def check_wait(wait: float | None, dry_run: bool) -> None:
    """Raises UsageError where there is nothing to wait for."""
    if dry_run and wait is not None:
        raise UsageError("--dry-run --wait: what starts nothing waits for nothing", "leave one of them out")


def environment(wanted: Iterable[str] | None, option: str = "") -> dict[str, str]:
    """The variables of --env, or of another `option`.

    Raises UsageError for one that has no value here, and for what tflaunch itself tells the tasks.
    """
    from tflaunch.inputs.variables import DECIDED

    env = {}
    for each in wanted or ():
        name, equals, value = each.partition("=")
        if not name or (not equals and name not in os.environ):
            written = option or f"--env {each if name else 'NAME'}"
            raise UsageError(
                f"{option or f'--env {each}'}: {name or 'a name'} is not set here",
                f"give it a value: {written}=VALUE",
            )
        if name in DECIDED:
            raise UsageError(
                f"{option or f'--env {name}'}: {name} is what tflaunch sets for every task", DECIDED[name]
            )
        env[name] = value if equals else os.environ[name]
    return env


def env_and_files(
    wanted: Iterable[str] | None, files: Iterable[Path] | None
) -> tuple[dict[str, str], frozenset[str]]:
    """(the variables of --env over those of --env-file, those whose values nobody is shown).

    Raises UsageError, EnvFileError.
    """
    env = environment(wanted)
    if not files:
        return env, frozenset()
    from tflaunch.inputs.env_file import read

    from_files = read(files)
    return {**from_files, **env}, frozenset(from_files.keys() - env.keys())


def packages_of(
    path: Path | None, system_site: bool, container: str, hostfile: Hostfile
) -> Requirements | None:
    """What --requirements asks for; raises UsageError."""
    from tflaunch.planning.environments import read

    if path is None:
        if system_site:
            raise UsageError("--system-site-packages without --requirements", "add --requirements FILE")
        return None
    if contained := container or next((host.container for host in hostfile.hosts if host.container), ""):
        raise UsageError(
            f"--requirements {path}: tasks run in the container {contained}, which has its own packages",
            "leave one of them out",
        )
    return read(path, system_site)


def mounts_of(wanted: list[str] | None, container: str, hostfile: Hostfile) -> tuple[str, ...]:
    """What --mount asks for; raises UsageError."""
    if not wanted:
        return ()
    if not (container or any(host.container for host in hostfile.hosts)):
        raise UsageError(f"--mount {wanted[0]} without a container", "add --container IMAGE")
    from tflaunch.inputs.hostfile_model import mount

    for each in wanted:
        try:
            mount(each)
        except ValueError as error:
            raise UsageError(f"--mount {each}: it {error}") from None
    return tuple(wanted)
