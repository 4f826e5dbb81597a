"""The parts of a job, from the options of verbs that start tasks."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.cli.job_option_groups import GpuOptions, ProgramOptions, TaskOptions
    from tflaunch.code_page import CodeReporter
    from tflaunch.gpu_choice import GpuChoice
    from tflaunch.hosts import Hostfile
    from tflaunch.job import JobSpec, Requirements, Role
    from tflaunch.program import Program
    from tflaunch.sources import Bundle

LEASE_S = {False: 60.0, True: 600.0}  # by whether it is detached


def command_line() -> tuple[str, ...]:
    """This command for people and records, also where it was `python -m tflaunch`.

    The values of --env and --job-env are left out: they may be secrets, which nobody else is to see.
    """
    from tflaunch.runs import without_values

    return ("tflaunch", *without_values(sys.argv[1:]))


def gpu_choice(options: GpuOptions) -> GpuChoice:
    """Which cards may be taken; raises UsageError."""
    from tflaunch.gpu_choice import GpuChoice
    from tflaunch.sizes import size

    per_worker = options.gpus_per_worker
    if options.mig is not None and (per_worker == "all" or (per_worker or 0) > 1):
        raise UsageError(
            f"--mig --gpus-per-worker {per_worker}: a process can use one MIG instance only",
            "leave --gpus-per-worker out; --workers says how many instances the run uses",
        )
    return GpuChoice(
        model=options.gpu_model,
        min_memory_bytes=size(options.min_gpu_memory) if options.min_gpu_memory else 0,
        include=options.include,
        exclude=options.exclude,
        mig=options.mig,
        share=options.share_gpus,
    )


def check_hosts(hostfile: Hostfile, gpus: GpuChoice, roles: Mapping[str, Role]) -> None:
    """Read every pattern of hosts before one is contacted; raises UsageError for one that fits nothing."""
    from tflaunch.gpu_choice import check
    from tflaunch.hosts import match

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
    from tflaunch.env_file import read

    from_files = read(files)
    return {**from_files, **env}, frozenset(from_files.keys() - env.keys())


def packages_of(options: TaskOptions, hostfile: Hostfile) -> Requirements | None:
    """What --requirements asks for; raises UsageError."""
    from tflaunch.environments import read

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


def mounts_of(options: TaskOptions, hostfile: Hostfile) -> tuple[str, ...]:
    """What --mount asks for; raises UsageError."""
    wanted = options.mount
    if not wanted:
        return ()
    if not (options.container or any(host.container for host in hostfile.hosts)):
        raise UsageError(f"--mount {wanted[0]} without a container", "add --container IMAGE")
    from tflaunch.hostfile_model import mount

    for each in wanted:
        try:
            mount(each)
        except ValueError as error:
            raise UsageError(f"--mount {each}: it {error}") from None
    return wanted


def in_environment(job: JobSpec, options: TaskOptions, hostfile: Hostfile) -> JobSpec:
    """The job with the variables, packages and containers that its tasks get; raises UsageError, EnvFileError."""
    env, masked = env_and_files(options.env, options.env_file)
    return dataclasses.replace(
        job,
        env=env,
        masked=masked,
        requirements=packages_of(options, hostfile),
        container=options.container,
        container_engine=options.container_engine,
        mounts=mounts_of(options, hostfile),
    )


class TrainerCode(NamedTuple):
    """The program of a run."""

    argv: tuple[str, ...]  # what follows the interpreter
    stem: str  # names the run
    bundle: Bundle | None  # the code to ship; None where it is on all hosts already
    program: Program | None  # where its text is; None likewise


def trainer_code(
    program: ProgramOptions,
    script: str | None,
    directory: Path,
    hostfile: Hostfile,
    *,
    env_files: Sequence[Path],
    reporter: CodeReporter,
    dry_run: bool,
) -> TrainerCode:
    """The program that is meant, and its code; tells what of it stays here.  Raises UsageError."""
    from tflaunch.code_page import own_code, tell
    from tflaunch.program import find_program, program_there
    from tflaunch.sizes import size
    from tflaunch.sources import LIMIT_BYTES, code_of

    most = size(program.max_code, "an amount of data for --max-code") if program.max_code else LIMIT_BYTES
    if program.show_files and not dry_run:
        raise UsageError(
            "--show-files without --dry-run", "add --dry-run: it shows the files, and starts nothing"
        )
    target = program.module or script
    if target is None:
        raise UsageError(
            "nothing to run: neither TRAINER.py nor -m PKG.MOD", "tflaunch run hosts.yaml trainer.py"
        )
    if all(host.workdir is not None for host in hostfile.hosts):  # the code is there: on no host is it ours
        if program.ship or program.show_files:
            option = f"--ship {program.ship[0]}" if program.ship else "--show-files"
            raise UsageError(f"{option}: the code is on the hosts, nothing is shipped", "leave it out")
        if not program.no_sync:
            reporter.note(own_code(hostfile))
        if program.module is not None:
            return TrainerCode(("-m", target), target.rpartition(".")[2], None, None)
        return TrainerCode(program_there(target), Path(target).stem, None, None)
    found = find_program(target, program.module is not None, directory, program.code_dir)
    bundle = code_of(found, program.ship, program.follow_links, most)
    tell(found, bundle, env_files, reporter, dry_run=dry_run, show_files=program.show_files)
    if text := own_code(hostfile):
        reporter.note(text)
    return TrainerCode(found.argv, Path(found.file).stem, bundle, found)


def on_every_host(directory: Path, hostfile: Hostfile) -> Hostfile:
    """Hosts that have the code already: in their workdir, else in the directory of that path."""
    hosts = tuple(
        dataclasses.replace(host, workdir=host.workdir or str(directory)) for host in hostfile.hosts
    )
    return dataclasses.replace(hostfile, hosts=hosts)
