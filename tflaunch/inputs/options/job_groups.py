"""The options of the verbs that start tasks (run, up, sweep), in groups; `check` has some of them."""

# No `from __future__ import annotations`: the annotations are needed, and to evaluate text takes longer.

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tflaunch.frameworks.table import ALL, CHOICES
from tflaunch.inputs.amounts import FOR_EVER
from tflaunch.inputs.options.declared import EVERYWHERE, NOWHERE, In, Part, argument, option
from tflaunch.inputs.options.values import TIME_WORD, parse_gpus, parse_wait
from tflaunch.protocol.job import GpuCount

CLUSTER, GPUS, START, AGAIN = "Cluster", "GPUs", "Start", "When a task fails"
PROGRAM, ENVIRONMENT, FILES = "Program and code", "Environment of the tasks", "Files that the tasks write"

_BY_RANK = ", ".join(each.name for each in ALL if each.by_rank)


@dataclass(repr=False, eq=False)
class JobHosts:
    """HOSTS: where to start tasks."""

    hosts: str | None = argument(
        None,
        metavar="HOSTS",
        help="A hostfile, or host1:2,host2, or slurm: or pbs: [$TFLAUNCH_HOSTS, ./hosts.yaml, "
        "~/.config/tflaunch/hosts.yaml]",
    )


@dataclass(repr=False, eq=False)
class TrainerArguments(JobHosts):
    """HOSTS, the trainer and its arguments."""

    script: str | None = argument(None, metavar="TRAINER.py", help="The program (or -m PKG.MOD).")
    arguments: tuple[str, ...] = argument(
        (), metavar="-- ARGS", help="The trainer's own arguments, byte for byte."
    )


if TYPE_CHECKING:

    class FrameworkChoice(str, Enum):
        """Values of --framework: auto, and the name of each framework."""

        auto = "auto"

else:
    FrameworkChoice = Enum("FrameworkChoice", {name: name for name in CHOICES}, type=str)


class FlagStyleChoice(str, Enum):
    """Values of --flag-style."""

    equals = "equals"
    words = "words"


class DialCheckChoice(str, Enum):
    """Values of --dial-check."""

    auto = "auto"
    all = "all"
    none = "none"


@dataclass(repr=False, eq=False)
class ProgramOptions:
    """Which program the tasks run, and which code to ship for it."""

    panel = PROGRAM
    also_of = ("sweep",)

    module: str | None = option(
        None,
        "--module",
        "-m",
        metavar="PKG.MOD",
        help="Run this module, as python -m does.",
        also_in=In.JOB_FILE | In.API,
        written="module",
        example="package.trainer",
    )
    flag: tuple[str, ...] = option(
        (),
        metavar="NAME=OTHER",
        help="Rename a cluster flag: task_index=task_id; NAME= leaves it out; task=job passes --job=worker:0; "
        "repeatable.",
        also_of=(),
        key="flags",
        written="flags",
        adds=True,
    )
    flag_style: FlagStyleChoice = option(
        FlagStyleChoice.equals,
        help="Write cluster flags as --task_index=0, or as two words: --task_index 0.",
        also_of=(),
    )
    no_empty_flags: bool = option(False, help="Pass no --ps_hosts= where the cluster has no ps.", also_of=())
    framework: FrameworkChoice = option(
        FrameworkChoice.auto,
        help="Which framework's variables and flags the tasks get. auto: those that the program's source reads, all if "
        f"that is unclear; {_BY_RANK}: no ps and no cluster flags unless you ask for them.",
        also_of=(),
    )
    flags: bool | None = option(
        None,
        "--flags/--no-flags",
        help="Pass the cluster flags, or only TF_CONFIG [what the program's source reads]",
        also_of=(),
        written="flags",
    )
    code_dir: Path | None = option(
        None,
        metavar="DIR",
        help="Ship this directory instead of the one that the program is in.",
        also_in=In.JOB_FILE | In.API,
    )
    ship: tuple[str, ...] = option(
        (),
        metavar="PATH",
        help="Ship this file although it is ignored or looks like a secret; repeatable.",
        adds=True,
        example=["data/key.pem"],
    )
    follow_links: bool = option(
        False, help="Where a link leads out of the directory, ship what it points to."
    )
    max_code: str = option(
        "", metavar="SIZE", help="Refuse to ship more than this: 500MiB [100MiB]", written="size"
    )
    show_files: bool = option(
        False,
        help="With --dry-run: list each file that is shipped, and each that is not, with the reason.",
        also_in=NOWHERE,
    )
    no_sync: bool = option(
        False, help="Ship nothing: the hosts have the code, at the same path or in their `workdir:`."
    )


@dataclass(repr=False, eq=False)
class TaskOptions:
    """The environment of the tasks: variables, packages, containers."""

    panel = ENVIRONMENT
    also_of = ("up", "sweep")

    env: tuple[str, ...] = option(
        (),
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="Set a variable for the tasks, with {index} and other placeholders; without =VALUE, to its value here; "
        "repeatable.",
        written="variables",
        adds=True,
    )
    env_file: tuple[Path, ...] = option(
        (),
        help="Set variables for the tasks from a file like .env, NAME=VALUE per line; records hide the values; "
        "repeatable.",
        adds=True,
        example=".env",
    )
    requirements: Path | None = option(
        None,
        help="Install packages for the tasks, once on each host: requirements.txt, pyproject.toml or uv.lock.",
    )
    system_site_packages: bool = option(
        False, help="With --requirements: the tasks see the packages of the hosts' Python, too."
    )
    container: str = option(
        "",
        metavar="IMAGE",
        help="Run each task in a container of this image.",
        example="tensorflow/tensorflow:latest",
    )
    container_engine: str = option("", metavar="ENGINE", help="podman, docker or a path [what the host has]")
    mount: tuple[str, ...] = option(
        (),
        metavar="PATH[:PATH[:ro]]",
        help="Mount a directory of the host in the containers; repeatable.",
        example=["/data:/data:ro"],
    )


class PlaceChoice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


@dataclass(repr=False, eq=False)
class ClusterOptions:
    """How many ps, workers, chiefs and evaluators to start, and on which hosts."""

    panel = CLUSTER
    also_in = In.API
    also_of = ("up",)

    ps: int | None = option(None, min=0, help="Number of ps tasks [one per 4 workers]")
    workers: int | None = option(None, min=0, help="Number of worker tasks [one per free GPU, or host]")
    chief: bool = option(False, help="Add a chief task.")
    evaluator: int | None = option(
        None,
        min=0,
        metavar="[N]",
        help="Add an evaluator, or N; evaluators are not part of the cluster.",
        also_of=(),
        alone=(r"[0-9]+", "1"),
    )
    ps_hosts: str | None = option(
        None, metavar="PATTERN", help="Hosts for ps: names, ranges, globs, label=value."
    )
    worker_hosts: str | None = option(
        None, metavar="PATTERN", help="Hosts for workers, by the same patterns."
    )
    place: PlaceChoice = option(
        PlaceChoice.spread,
        help="Spread the tasks over all hosts, or pack them on as few as possible.",
        also_in=EVERYWHERE,
    )
    network: str = option(
        "",
        metavar="NAME|CIDR",
        help="The network that the tasks dial each other over: an interface (ib0), or 10.2.0.0/16; none: by the "
        "addresses that SSH has [a faster one that all hosts are in]",
        also_in=EVERYWHERE,
        example="10.2.0.0/16",
    )


@dataclass(repr=False, eq=False)
class RoleOptions:
    """Tasks under any job name, TensorFlow's or the user's own."""

    panel = "Roles, under any job name"
    also_in = In.API

    job: tuple[str, ...] = option(
        (),
        metavar="JOB=N",
        help="N tasks of any job name: data=2; repeatable, as all --job options are.",
        also_of=("up",),
    )
    job_hosts: tuple[str, ...] = option(
        (), metavar="JOB=PATTERN", help="Hosts for the tasks of this job.", also_of=("up",)
    )
    job_gpus: tuple[str, ...] = option(
        (), metavar="JOB=N|all", help="GPUs for each task of this job.", also_of=("up",)
    )
    job_env: tuple[str, ...] = option(
        (),
        metavar="JOB=NAME[=VALUE]",
        help="Set a variable for the tasks of this job, as --env does for all.",
        also_of=("up",),
    )
    job_args: tuple[str, ...] = option(
        (),
        metavar="JOB=ARGS",
        help="More arguments for the tasks of this job, after the trainer's own: 'data=-n 8 --port={port}'.",
    )
    job_program: tuple[str, ...] = option(
        (),
        metavar="JOB=FILE",
        help="What the tasks of this job run instead of TRAINER.py: data=server.py, 'data=-m package.server'.",
    )
    job_end: tuple[str, ...] = option(
        (),
        metavar="JOB=END",
        help="decides: the run succeeds when these tasks do; stopped: they are stopped when the work is done; "
        "sidecar: likewise, and if one fails the run goes on [workers, chief: decides; others: stopped]",
    )
    job_grace: tuple[str, ...] = option(
        (),
        metavar="JOB=TIME",
        help="Time for the tasks of this job to end by themselves when the work is done [evaluator 60s; others "
        "--ps-grace]",
    )


class BindChoice(str, Enum):
    """Values of --bind."""

    auto = "auto"
    none = "none"
    numa = "numa"
    cores = "cores"


class MemoryPolicyChoice(str, Enum):
    """Values of --memory-policy."""

    none = "none"
    membind = "membind"
    interleave = "interleave"


@dataclass(repr=False, eq=False)
class GpuOptions:
    """Which GPUs the tasks may get, and how many; which cores they are bound to, and whose memory is theirs."""

    panel = GPUS
    also_of = ("up", "sweep")

    gpus_per_worker: GpuCount | None = option(
        None,
        parser=parse_gpus,
        metavar="N|all",
        help="GPUs for each worker; all: one worker per host, with all its GPUs [1 where there are any]",
        also_in=In.API,
        also_of=("up",),
    )
    gpu_model: str = option(
        "", metavar="TEXT", help="Only GPUs with this in their name: H100.", complete="gpu_models"
    )
    min_gpu_memory: str = option(
        "", metavar="SIZE", help="Only GPUs with at least this much memory: 40GiB.", written="memory"
    )
    mix_models: bool = option(False, help="A worker may get GPUs of different models.", also_of=("up",))
    mig: str | None = option(
        None,
        metavar="[PROFILE]",
        help="Only MIG instances (of this profile: 1g.10gb), no whole GPUs.",
        written="mig",
        alone=(r"\d+[cg](\..*)?", ""),
    )
    include: tuple[str, ...] = option(
        (),
        metavar="HOST[:0,2]",
        help="Only these hosts, or these GPUs of a host; repeatable.",
        complete="hosts",
        example=["gpu01:0,2"],
    )
    exclude: tuple[str, ...] = option(
        (),
        metavar="HOST[:0,2]",
        help="Not these hosts, or these GPUs of a host; repeatable.",
        complete="hosts",
        example=["gpu01:3"],
    )
    share_gpus: bool = option(False, help="Also GPUs on which other processes compute.")
    bind: BindChoice = option(
        BindChoice.auto,
        help="Which cores a task may use. numa: its GPUs' share of those beside them; cores: all cores of its host are "
        "dealt to the run's tasks, with GPUs or without; none: any; auto: numa where a host has several NUMA nodes.",
    )
    memory_policy: MemoryPolicyChoice = option(
        MemoryPolicyChoice.none,
        help="Start tasks by the host's numactl. membind: memory of the NUMA nodes of a task's cores, and of no "
        "others; interleave: of these nodes, or of all where it is not bound, in turn; none: of the node that touches "
        "it first.",
    )
    wait: float | None = option(
        None,
        parser=parse_wait,
        metavar="[TIME]",
        help="Wait for GPUs in use, at most this time [for ever].",
        written="wait",
        alone=(TIME_WORD, FOR_EVER),
    )


@dataclass(repr=False, eq=False)
class StartOptions:
    """What must hold before tasks start."""

    @property
    def dialled(self) -> str:
        """Which ways between hosts are tried: the value of a DialCheckChoice."""
        return "none" if self.no_dial_check else self.dial_check.value

    panel = START
    also_of = ("up", "sweep")

    name: str = option(
        "",
        metavar="NAME",
        help="The run's id begins with it, and other verbs find it [the program's].",
        also_in=In.JOB_FILE | In.API,
        also_of=("up",),
        example="mnist",
    )
    dial_check: DialCheckChoice = option(
        DialCheckChoice.auto,
        help="Which ways between hosts are tried before the start: all, none, or auto: of more than 32 hosts those "
        "that the tasks surely use, and enough others that no group of hosts is cut off unseen.",
        also_of=("up",),
        written="dial_check",
    )
    no_dial_check: bool = option(
        False,
        help="Start even if hosts cannot reach each other: --dial-check none.",
        also_in=In.API,
        also_of=("up",),
    )
    require_all: bool = option(
        False,
        help="Start nothing if a host cannot be reached, even where the others have room for all tasks.",
    )
    dry_run: bool = option(False, help="Print the plan and start nothing.", also_in=NOWHERE)
    yes: bool = option(
        False,
        "--yes",
        "-y",
        envvar="TFLAUNCH_YES",
        help="Answer yes wherever tflaunch would ask.",
        also_in=In.API,
    )


@dataclass(repr=False, eq=False)
class ResultOptions:
    """What to do with the files that the tasks write: fetch them, show them in TensorBoard."""

    panel = FILES
    also_of = ("sweep",)

    fetch: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        help="Copy files here at the end, by patterns as in .gitignore: 'checkpoints/**'; repeatable.",
        written="patterns",
        example=["checkpoints/**"],
    )
    fetch_to: Path | None = option(
        None, metavar="DIR", help="Copy them into this directory [./RUN]", example="outputs"
    )
    fetch_max: str = option(
        "", metavar="SIZE", help="Copy nothing if it is more than this: 20GiB.", written="size"
    )
    keep_mode: bool = option(False, help="Files that are executable there are executable here, too.")
    overwrite: bool = option(False, help="Overwrite files here that have other content.")
    tensorboard: str | None = option(
        None,
        metavar="LOGDIR",
        help="Show this directory of the chief's host in TensorBoard during the run.",
        example="logs",
    )
    tensorboard_port: int = option(
        0, min=0, max=65535, metavar="PORT", help="TensorBoard's port on this machine [any]"
    )


FetchedOptions = Annotated[ResultOptions, Part("keep_mode", "overwrite", panel="Options")]


class RestartOnChoice(str, Enum):
    """Values of --restart-on."""

    any = "any"
    retryable = "retryable"


@dataclass(repr=False, eq=False)
class RestartOptions:
    """What to start again when a task fails."""

    panel = AGAIN

    restarts: int = option(
        0, min=0, help="Start again what fails, at most N times in --restart-window.", also_of=("up",)
    )
    restart: tuple[str, ...] = option(
        (),
        metavar="[JOB=]POLICY",
        help="What starts again: the task, the whole cluster, or never; by job: ps=task,worker=cluster [task where "
        "there are ps, else cluster]",
        choices=("task", "cluster", "never"),
        adds=True,
    )
    spares: str = option(
        "",
        metavar="PATTERN",
        help="With --restarts: keep these hosts free, to replace hosts that are lost or cannot be reached.",
        example="gpu09",
    )
    restart_window: float = option(3600.0, help="The time over which --restarts counts.", also_of=("up",))
    restart_on: RestartOnChoice = option(
        RestartOnChoice.any, help="retryable: start again only after signals and exit codes from 128 on."
    )
