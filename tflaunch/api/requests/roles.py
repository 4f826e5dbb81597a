"""Read roles from the command line: `--ps 2 --evaluator --job data=2 --job-gpus data=1`; they win over a job file."""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from tflaunch.api.requests.job_parts import environment, inherited
from tflaunch.inputs.amounts import seconds
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import (
    CHIEF,
    EVALUATOR,
    PS,
    WORKER,
    GpuCount,
    Role,
    RoleEnd,
    job_name_fault,
    near_role,
)

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.options.job_groups import ClusterOptions, RoleOptions

MOST_TASKS = 10_000  # of one role


def roles_of(
    in_file: Mapping[str, Role],
    cluster: ClusterOptions,
    options: RoleOptions,
    gpus_per_worker: GpuCount | None = None,
) -> dict[str, Role]:
    """Return all roles of a run, by job name: those of the job file, changed as the options say.

    Raises UsageError for a value that cannot be read, is given twice, or is for a job without tasks.
    """
    roles = _Roles(in_file)
    counts = (
        (PS, cluster.ps, "--ps"),
        (WORKER, cluster.workers, "--workers"),
        (EVALUATOR, cluster.evaluator, "--evaluator"),
    )
    for job, count, option in counts:
        if count is not None:
            roles.put(job, "count", count, f"{option} {count}")
    if cluster.chief:
        roles.put(CHIEF, "count", 1, "--chief")
    for job, pattern in ((PS, cluster.ps_hosts), (WORKER, cluster.worker_hosts)):
        if pattern is not None:
            roles.put(job, "hosts", pattern, f"--{job}-hosts {pattern}")
    if gpus_per_worker is not None:
        roles.put(WORKER, "gpus", gpus_per_worker, f"--gpus-per-worker {gpus_per_worker}")
    roles.read("--job", options.job, "count", _count)
    roles.read("--job-hosts", options.job_hosts, "hosts", str)
    roles.read("--job-gpus", options.job_gpus, "gpus", _gpus)
    roles.read("--job-args", options.job_args, "args", _words)
    roles.read("--job-program", options.job_program, "program", _program)
    roles.read("--job-end", options.job_end, "end", _end)
    roles.read("--job-grace", options.job_grace, "grace_s", seconds)
    roles.read_env(options.job_env)
    roles.check()
    return roles.by_job


def on_slots(roles: Mapping[str, Role], hostfile: Hostfile) -> dict[str, Role]:
    """Return the roles of a run whose slots have roles, each on its own slots; as they are where none has.

    A role of which it is not said how many tasks it has gets one for each slot without GPUs.
    """
    found = dict(roles)
    for group in hostfile.wanted.groups if hostfile.wanted else ():
        if group.role:
            role = found.get(group.role, Role())
            count = role.count if role.count is not None or group.gpus else group.count
            found[group.role] = dataclasses.replace(
                role, hosts=role.hosts or f"role={group.role}", count=count
            )
    return found


class _Roles:
    """Collects what the options say of each role."""

    def __init__(self, in_file: Mapping[str, Role]) -> None:
        self.by_job = dict(in_file)
        self._in_file = in_file
        self._said: dict[tuple[str, str], str] = {}  # (job, field) -> the option that set it

    def put(self, job: str, field: str, value: Any, option: str) -> None:
        """Set a field of a role; raises UsageError where an option has set it before."""
        if first := self._said.get((job, field)):
            raise UsageError(f"{option}: {first} says it already", "leave one of them out")
        self._said[job, field] = option
        self.by_job[job] = dataclasses.replace(self.by_job.get(job, Role()), **{field: value})

    def read(self, option: str, texts: Iterable[str], field: str, parse: Callable[[str], Any]) -> None:
        """Set this field from every JOB=VALUE of an option; raises UsageError."""
        for job, value, text in _pairs(option, texts):
            self._refuse_typo(job, value, option)
            try:
                self.put(job, field, parse(value), text)
            except ValueError as error:
                raise UsageError(
                    f"{text}: {value!r} {error}", f"for example {option} {_EXAMPLES[field]}"
                ) from None

    def read_env(self, texts: Iterable[str]) -> None:
        """Add the variables of --job-env to those of the job file; raises UsageError."""
        for job, value, text in _pairs("--job-env", texts):
            self._refuse_typo(job, value.partition("=")[0], "--job-env")  # the value may be a secret
            role = self.by_job.get(job, Role())
            own = environment([value], text)
            literal = (role.literal - own.keys()) | inherited([value])
            self.by_job[job] = dataclasses.replace(role, env={**role.env, **own}, literal=literal)
            self._said[job, "env"] = f"--job-env {job}={value.partition('=')[0]}"

    def check(self) -> None:
        """Raise UsageError if an option names a job that has no tasks."""
        for (job, field), option in self._said.items():
            if self.by_job[job].count == 0 and field in _OF_TASKS:
                count = {PS: "--ps ", WORKER: "--workers "}.get(job, f"--job {job}=")
                raise UsageError(
                    f"{option}: there are no {job} tasks", f"leave it out, or say how many: {count}1"
                )
            if job not in (PS, WORKER) and self.by_job[job].count is None:
                near = difflib.get_close_matches(job, [name for name in self.by_job if name != job], 1)
                meant = f"did you mean {near[0]}? else " if near else ""
                raise UsageError(f"{option}: there are no {job} tasks", f"{meant}say how many: --job {job}=1")

    def _refuse_typo(self, job: str, value: str, option: str) -> None:
        """Raise UsageError for a job whose name is nearly one of TensorFlow's, unless the job file has such a job."""
        if job not in self._in_file and (near := near_role(job)):
            raise UsageError(
                f"{option} {job}={value}: {job!r} is no role; did you mean {option} {near}={value}?",
                f"if {job} is a job of your own, write it under `jobs:` of a job file",
            )


_OF_TASKS = ("args", "env", "program", "end", "grace_s")  # of no use without a task
_EXAMPLES = {
    "count": "data=2",
    "hosts": "'data=gpu[01-02]'",
    "gpus": "data=1",
    "args": "data='--shards 8'",
    "program": "data=server.py, 'data=-m package.server'",
    "end": "data=sidecar",
    "grace_s": "evaluator=5m",
}


def _pairs(option: str, texts: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (job, value, the option as the user wrote it); raises UsageError."""
    for text in texts:
        job, equals, value = text.partition("=")
        written = f"{option} {text}"
        if not equals:
            raise UsageError(f"{written}: not JOB=VALUE", f"for example {option} data=...")
        if fault := job_name_fault(job):
            raise UsageError(f"{written}: {job!r} {fault}", "for example data, reader_2")
        yield job, value, written


def _count(text: str) -> int:
    """Parse a number of tasks; raises ValueError, whose message follows the value."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > MOST_TASKS:
        raise ValueError(f"is not a whole number from 0 to {MOST_TASKS}")
    return int(text)


def _gpus(text: str) -> GpuCount:
    """Parse a number of GPUs, or `all`; raises ValueError as `_count` does."""
    if text == "all":
        return "all"
    try:
        return _count(text)
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from None


def _program(text: str) -> tuple[str, ...]:
    """Parse a script, or -m and a module, as the user names it; raises ValueError."""
    if not text.startswith("-"):
        if text:
            return (text,)
    elif found := re.fullmatch(r"-m +(\w+(?:\.\w+)*)", text):
        return "-m", found[1]
    raise ValueError("is neither a script nor -m and a module")


def _end(text: str) -> RoleEnd:
    if text not in get_args(RoleEnd):
        raise ValueError(f"is none of {', '.join(get_args(RoleEnd))}")
    return cast("RoleEnd", text)
