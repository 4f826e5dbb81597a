"""The options of the verbs that start tasks, in groups."""

# Without `from __future__ import annotations`: these are read when the program runs, and so they need no second look.

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tflaunch.cli.options import argument, option
from tflaunch.cli.values import gpus_of, patience_of, time_of
from tflaunch.job import Cards

CLUSTER, GPUS, PROGRAM, AGAIN = "Cluster", "GPUs", "Program", "When a task fails"
OUTPUTS = "Outputs"


@dataclass(repr=False, eq=False)
class JobHosts:
    """Where the tasks run."""

    hosts: str | None = argument(
        None,
        metavar="HOSTS",
        help="A hostfile, or host1:2,host2, or slurm: or pbs: [$TFLAUNCH_HOSTS, ./hosts.yaml, "
        "~/.config/tflaunch/hosts.yaml]",
        show_default=False,
    )


class FrameworkChoice(str, Enum):
    """Values of --framework."""

    auto = "auto"
    tensorflow = "tensorflow"
    jax = "jax"
    torch = "torch"


@dataclass(repr=False, eq=False)
class ProgramOptions:
    """What the tasks run, and which code is shipped for it."""

    panel = PROGRAM

    module: str | None = option(
        None, "--module", "-m", metavar="PKG.MOD", help="Run a module, as python -m does."
    )
    flag: tuple[str, ...] = option(
        (), metavar="NAME=OTHER", help="Rename a cluster flag: task_index=task_id. NAME= drops it."
    )
    framework: FrameworkChoice = option(
        FrameworkChoice.auto,
        help="By whose words it starts. auto: as the program's text says, in doubt by all; torch, jax: no ps and "
        "no cluster flags unless asked for.",
    )
    flags: bool | None = option(
        None,
        "--flags/--no-flags",
        help="Pass the cluster flags, or only TF_CONFIG [by the program's text]",
        show_default=False,
    )
    code_dir: Path | None = option(
        None, metavar="DIR", help="Ship this directory, not just the script's own."
    )
    ship: tuple[str, ...] = option(
        (),
        metavar="PATH",
        help="Ship this file of it though it is ignored or looks like a secret; repeatable.",
    )
    follow_links: bool = option(False, help="Ship what links lead to outside the directory, not the links.")
    max_code: str = option(
        "", metavar="SIZE", help="Ship no more than that: 500MiB [100MiB]", show_default=False
    )
    show_files: bool = option(
        False, help="With --dry-run: each file that is shipped, and each that is not and why."
    )
    no_sync: bool = option(False, help="Ship nothing: the code is on the hosts, at this path or in workdir.")


@dataclass(repr=False, eq=False)
class TaskOptions:
    """In which environment the tasks run: variables, packages, containers."""

    panel = PROGRAM

    env: tuple[str, ...] = option(
        (), "--env", "-e", metavar="NAME[=VALUE]", help="For the tasks; without a value, yours."
    )
    env_file: tuple[Path, ...] = option(
        (),
        metavar="FILE",
        help="Variables for the tasks, NAME=VALUE a line, as .env; no record shows them; repeatable.",
    )
    requirements: Path | None = option(
        None,
        metavar="FILE",
        help="Each host installs requirements.txt, pyproject.toml or uv.lock, once, for the tasks.",
    )
    system_site_packages: bool = option(
        False, help="On top of what the hosts' Python has (with --requirements)."
    )
    container: str = option("", metavar="IMAGE", help="Run the tasks in containers of it.")
    container_engine: str = option("", metavar="ENGINE", help="podman, docker or a path [what the host has]")
    mount: tuple[str, ...] = option(
        (),
        metavar="PATH[:PATH[:ro]]",
        help="A directory of the hosts for the containers; repeatable.",
    )


class PlaceChoice(str, Enum):
    """Values of --place."""

    spread = "spread"
    pack = "pack"


@dataclass(repr=False, eq=False)
class ClusterOptions:
    """How many tasks of each role, and on which hosts."""

    panel = CLUSTER

    ps: int | None = option(None, min=0, metavar="N", help="ps tasks [one per 4 workers]", show_default=False)
    workers: int | None = option(
        None, min=0, metavar="N", help="worker tasks [one per free GPU, or host]", show_default=False
    )
    chief: bool = option(False, help="One chief task more.")
    evaluator: int | None = option(
        None,
        min=0,
        metavar="[N]",
        help="An evaluator, or N: beside the cluster, not in it.",
        show_default=False,
    )
    ps_hosts: str | None = option(
        None, metavar="PATTERN", help="Hosts for ps: names, ranges, globs, label=value."
    )
    worker_hosts: str | None = option(None, metavar="PATTERN", help="Hosts for workers.")
    place: PlaceChoice = option(PlaceChoice.spread, help="Over all hosts, or on as few as can be.")


@dataclass(repr=False, eq=False)
class RoleOptions:
    """Roles under any job name."""

    panel = "Roles, under any job name"

    job: tuple[str, ...] = option(
        (), metavar="JOB=N", help="N tasks of any job name: data=2; repeatable, as all of these."
    )
    job_hosts: tuple[str, ...] = option((), metavar="JOB=PATTERN", help="Hosts for them.")
    job_gpus: tuple[str, ...] = option((), metavar="JOB=N|all", help="GPUs of each of them.")
    job_env: tuple[str, ...] = option((), metavar="JOB=NAME[=VALUE]", help="In their environment, as --env.")
    job_args: tuple[str, ...] = option(
        (), metavar="JOB=ARGS", help="Behind the trainer's own arguments: 'data=-n 8'."
    )
    job_end: tuple[str, ...] = option(
        (),
        metavar="JOB=END",
        help="decides: their success is the run's; stopped: when the work is done; sidecar: so, and their "
        "failure ends nothing [workers and chief decide]",
        show_default=False,
    )
    job_grace: tuple[str, ...] = option(
        (),
        metavar="JOB=TIME",
        help="For them to end by themselves when the work is done [evaluator 60s; others --ps-grace]",
        show_default=False,
    )


@dataclass(repr=False, eq=False)
class GpuOptions:
    """Which GPUs the tasks get."""

    panel = GPUS

    gpus_per_worker: Cards | None = option(
        None,
        parser=gpus_of,
        metavar="N|all",
        help="GPUs of a worker [1 where there are any]; all: one worker with those of its host.",
        show_default=False,
    )
    gpu_model: str = option("", metavar="TEXT", help="Only cards with this in their name: H100.")
    min_gpu_memory: str = option("", metavar="SIZE", help="Only cards with that much: 40GiB.")
    mix_models: bool = option(False, help="Workers may get cards of several models.")
    mig: str | None = option(
        None, metavar="[PROFILE]", help="MIG instances (of that profile: 1g.10gb), no whole cards."
    )
    include: tuple[str, ...] = option(
        (), metavar="HOST[:0,2]", help="Only these hosts, or cards; repeatable."
    )
    exclude: tuple[str, ...] = option((), metavar="HOST[:0,2]", help="Not these hosts, or cards; repeatable.")
    share_gpus: bool = option(False, help="Also cards that others compute on.")
    wait: float | None = option(
        None, parser=patience_of, metavar="[TIME]", help="Queue for cards in use, so long [for ever]."
    )


@dataclass(repr=False, eq=False)
class StartOptions:
    """What must hold before anything starts."""

    panel = CLUSTER

    no_dial_check: bool = option(False, help="Start even if hosts cannot reach each other.")
    require_all: bool = option(
        False, help="Start nothing while a host cannot be reached, also where it would fit on the others."
    )
    dry_run: bool = option(False, help="Print the plan and start nothing.")
    yes: bool = option(
        False, "--yes", "-y", envvar="TFLAUNCH_YES", help="Go on where tflaunch would ask first."
    )


@dataclass(repr=False, eq=False)
class ResultOptions:
    """What the tasks write: brought here, shown in TensorBoard."""

    panel = OUTPUTS

    fetch: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        help="Bring outputs here at the end, as in .gitignore: 'checkpoints/**'; repeatable.",
    )
    fetch_to: Path | None = option(None, metavar="DIR", help="Where to [./RUN]", show_default=False)
    fetch_max: str = option("", metavar="SIZE", help="Bring nothing if it is more: 20GiB.")
    keep_mode: bool = option(False, help="What is executable there is so here.")
    overwrite: bool = option(False, help="Also over files here that have other content.")
    tensorboard: str | None = option(
        None,
        metavar="LOGDIR",
        help="Show this directory of the chief's host in TensorBoard while they run.",
    )
    tensorboard_port: int = option(
        0,
        min=0,
        max=65535,
        metavar="PORT",
        help="The port of this machine for it [any]",
        show_default=False,
    )


class RestartOnChoice(str, Enum):
    """Values of --restart-on."""

    any = "any"
    retryable = "retryable"


@dataclass(repr=False, eq=False)
class RestartOptions:
    """What starts again when it fails."""

    panel = AGAIN

    restarts: int = option(0, min=0, metavar="N", help="Start what fails again, N times in --restart-window.")
    restart: tuple[str, ...] = option(
        (),
        metavar="[JOB=]POLICY",
        help="What starts again: task, cluster or never; ps=task,worker=cluster by job [task where there are ps, "
        "else cluster]",
        show_default=False,
    )
    spares: str = option(
        "",
        metavar="PATTERN",
        help="Hosts that are kept for when another one is lost, or not there (with --restarts).",
    )
    restart_window: float = option(
        3600.0, parser=time_of(), metavar="TIME", help="The time in which --restarts counts."
    )
    restart_on: RestartOnChoice = option(
        RestartOnChoice.any, help="retryable: only exit codes from 128 on, and signals."
    )
