"""Make the parts of a job from the options: GPUs, variables, packages, containers, program and code."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.program import Program
    from tflaunch.code.what_is_shipped import CodeReporter
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.options.job_groups import ClusterOptions, GpuOptions, ProgramOptions, TaskOptions
    from tflaunch.planning.gpu_choice import GpuChoice
    from tflaunch.protocol.job import JobSpec, Requirements, Role

LEASE_S = {False: 60.0, True: 600.0}  # whether the run is detached -> how long its agents wait for a launcher


def gpu_choice(options: GpuOptions) -> GpuChoice:
    """Return which GPUs the tasks may get; raises UsageError."""
    from tflaunch.inputs.amounts import size
    from tflaunch.planning.gpu_choice import GpuChoice

    per_worker = options.gpus_per_worker
    if options.mig is not None and (per_worker == "all" or (per_worker or 0) > 1):
        raise UsageError(
            f"--mig --gpus-per-worker {per_worker}: a process can use one MIG instance only",
            "leave --gpus-per-worker out; --workers says how many instances the run uses",
        )
    return GpuChoice(
        model=options.gpu_model,
        min_memory_bytes=size(options.min_gpu_memory, option="--min-gpu-memory")
        if options.min_gpu_memory
        else 0,
        include=options.include,
        exclude=options.exclude,
        mig=options.mig,
        share=options.share_gpus,
    )


def network_of(options: ClusterOptions) -> str:
    """Return the user's word for the network of the tasks; raises UsageError for what can be none."""
    import ipaddress

    if "/" in options.network:
        try:
            ipaddress.ip_network(options.network, strict=False)
        except ValueError as error:
            raise UsageError(f"--network {options.network}: {error}", "write 10.2.0.0/16, or ib0") from None
    return options.network


def check_hosts(hostfile: Hostfile, gpus: GpuChoice, roles: Mapping[str, Role]) -> None:
    """Check every pattern of hosts before the first connection; raises UsageError for one that matches no host."""
    from tflaunch.hosts import match
    from tflaunch.planning.gpu_choice import check

    check(gpus, hostfile)
    for role in roles.values():
        if role.hosts is not None:
            match(role.hosts, hostfile)


def check_wait(wait: float | None, dry_run: bool) -> None:
    """Raise UsageError for --wait with --dry-run."""
    if dry_run and wait is not None:
        raise UsageError(
            "--dry-run --wait: a dry run starts nothing, and waits for nothing", "leave one of them out"
        )


def environment(wanted: Iterable[str] | None, option: str = "") -> dict[str, str]:
    """Return the variables that --env sets, or another `option`.

    Raises UsageError for one that has no value here, and for one that tflaunch itself sets.
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


def inherited(wanted: Iterable[str]) -> frozenset[str]:
    """Return the variables of --env NAME: their values were not written for tflaunch, so nothing is filled in."""
    how = {name: not equals for name, equals, _ in (each.partition("=") for each in wanted)}
    return frozenset(name for name, as_here in how.items() if as_here)


def _variables(
    wanted: Iterable[str] | None, files: Iterable[Path] | None
) -> tuple[dict[str, str], frozenset[str]]:
    """Return (variables of --env and --env-file, the names of those whose values are never shown).

    --env wins.  Raises UsageError, EnvFileError.
    """
    env = environment(wanted)
    if not files:
        return env, frozenset()
    from tflaunch.inputs.env_file import read

    from_files = read(files)
    return {**from_files, **env}, frozenset(from_files.keys() - env.keys())


def _packages(options: TaskOptions, hostfile: Hostfile) -> Requirements | None:
    """Return what --requirements asks for; raises UsageError."""
    from tflaunch.planning.environments import read

    path = options.requirements
    if path is None:
        if options.system_site_packages:
            raise UsageError("--system-site-packages without --requirements", "add --requirements FILE")
        return None
    if contained := options.container or next(
        (host.container for host in hostfile.hosts if host.container), ""
    ):
        raise UsageError(
            f"--requirements {path}: tasks run in the container {contained}, which has its own packages",
            "leave one of them out",
        )
    return read(path, options.system_site_packages)


def _mounts(options: TaskOptions, hostfile: Hostfile) -> tuple[str, ...]:
    """Return what --mount asks for; raises UsageError."""
    wanted = options.mount
    if not wanted:
        return ()
    if not (options.container or any(host.container for host in hostfile.hosts)):
        raise UsageError(f"--mount {wanted[0]} without a container", "add --container IMAGE")
    from tflaunch.inputs.hostfile_model import mount

    for each in wanted:
        try:
            mount(each)
        except ValueError as error:
            raise UsageError(f"--mount {each}: it {error}") from None
    return wanted


def with_environment(job: JobSpec, options: TaskOptions, hostfile: Hostfile) -> JobSpec:
    """Return the job with the variables, packages and containers of its tasks; raises UsageError, EnvFileError.

    Also raises UsageError for arguments and variables that Linux does not take.
    """
    from tflaunch.planning import sent_sizes, unexpanded
    from tflaunch.planning.environments import behind
    from tflaunch.planning.task_commands import local_python_told

    env, masked = _variables(options.env, options.env_file)
    requirements = _packages(options, hostfile)
    note = behind(requirements) if requirements else ""
    as_here = inherited(options.env or ())
    job = dataclasses.replace(
        job,
        env=env,
        literal=as_here | masked,
        masked=masked,
        requirements=requirements,
        notes=(*job.notes, note) if note else job.notes,
        container=options.container,
        container_engine=options.container_engine,
        mounts=_mounts(options, hostfile),
    )
    sent_sizes.check(job, hostfile)
    python = local_python_told(hostfile, job)
    return dataclasses.replace(
        job,
        notes=(*job.notes, *unexpanded.warnings(job, hostfile, as_here)),
        choices=(*job.choices, python) if python else job.choices,
    )


class TrainerCode(NamedTuple):
    """The program that the tasks run, and its code."""

    argv: tuple[str, ...]  # what follows the interpreter
    stem: str  # the run's id begins with it
    bundle: Bundle | None  # the code to ship; None where it is on all hosts already
    program: Program | None  # where its source is; None likewise
    of_roles: Mapping[str, Program | tuple[str, ...]] = {}  # job -> its own program, as found, or argv

    @property
    def read_by_python(self) -> dict[str, str]:
        """Job -> the file of its own program; "" where no Python of the hosts reads it."""
        from tflaunch.code.program import Program
        from tflaunch.protocol.job import by_python

        programs = {job: program for job, program in self.of_roles.items() if isinstance(program, Program)}
        return {job: each.file if by_python(each.argv) else "" for job, each in programs.items()}


def trainer_code(
    program: ProgramOptions,
    script: str | None,
    directory: Path,
    hostfile: Hostfile,
    *,
    env_files: Sequence[Path],
    reporter: CodeReporter,
    dry_run: bool,
    of_roles: Mapping[str, tuple[str, ...]] = {},
) -> TrainerCode:
    """Find the program, those of roles, and their code; `reporter` shows what is not shipped.  Raises UsageError."""
    from tflaunch.code.bundle import LIMIT_BYTES, code_of
    from tflaunch.code.program import find_program, program_there
    from tflaunch.code.what_is_shipped import own_code, tell
    from tflaunch.inputs.amounts import size

    most = size(program.max_code, "an amount of data for --max-code") if program.max_code else LIMIT_BYTES
    if program.show_files and not dry_run:
        raise UsageError(
            "--show-files without --dry-run", "add --dry-run: it lists the files, and starts nothing"
        )
    target = program.module or script
    if target is None:
        raise UsageError(
            "nothing to run: neither TRAINER.py nor -m PKG.MOD", "tflaunch run hosts.yaml trainer.py"
        )
    if all(host.workdir is not None for host in hostfile.hosts):  # every host has the code already
        if program.ship or program.show_files:
            option = f"--ship {program.ship[0]}" if program.ship else "--show-files"
            raise UsageError(f"{option}: the code is on the hosts, nothing is shipped", "leave it out")
        if not program.no_sync:
            reporter.note(own_code(hostfile))
        there = {job: words if len(words) > 1 else program_there(*words) for job, words in of_roles.items()}
        if program.module is not None:
            return TrainerCode(("-m", target), target.rpartition(".")[2], None, None, there)
        return TrainerCode(program_there(target), Path(target).stem, None, None, there)
    found = find_program(target, program.module is not None, directory, program.code_dir)
    others = {job: _of_role(job, words, directory, found.directory) for job, words in of_roles.items()}
    bundle = code_of(found, program.ship, program.follow_links, most, others.values())
    tell(found, bundle, env_files, reporter, dry_run=dry_run, show_files=program.show_files)
    if text := own_code(hostfile):
        reporter.note(text)
    return TrainerCode(found.argv, Path(found.file).stem, bundle, found, others)


def _of_role(job: str, words: tuple[str, ...], directory: Path, root: Path) -> Program:
    """The program of its own that a job has; raises UsageError, which names the option."""
    from tflaunch.code.program import find_program

    try:
        return find_program(words[-1], len(words) > 1, directory, root)
    except UsageError as error:
        raise UsageError(f"--job-program {job}={shlex.join(words)}: {error.message}", error.hint) from None


def with_workdirs(directory: Path, hostfile: Hostfile) -> Hostfile:
    """Set the workdir of every host that has none: all hosts have the code, and it is in `directory` there."""
    hosts = tuple(
        dataclasses.replace(host, workdir=host.workdir or str(directory)) for host in hostfile.hosts
    )
    return dataclasses.replace(hostfile, hosts=hosts)
