"""Roles on the command line: `--ps 2 --evaluator --job data=2 --job-gpus data=1`, over those of a job file."""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast, get_args

from tflaunch.cli.job_options import environment
from tflaunch.inputs.times import seconds
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import (
    CHIEF,
    EVALUATOR,
    PS,
    WORKER,
    Cards,
    Role,
    RoleEnd,
    job_name_fault,
    near_role,
)

MOST_TASKS = 10_000  # of one role


def roles_of(
    in_file: Mapping[str, Role],
    *,
    counts: Mapping[str, int | None],
    hosts: Mapping[str, str | None],
    gpus_per_worker: Cards | None,
    jobs: Iterable[str],
    job_hosts: Iterable[str],
    job_gpus: Iterable[str],
    job_env: Iterable[str],
    job_args: Iterable[str] = (),
    job_end: Iterable[str] = (),
    job_grace: Iterable[str] = (),
) -> dict[str, Role]:
    """All roles of a run; `counts` and `hosts` are of the options that name their role themselves.

    Raises UsageError for what cannot be read, is said twice, or is said of a job without tasks.
    """
    said: dict[tuple[str, str], str] = {}  # (job, field) -> the option that said it
    roles = dict(in_file)

    def put(job: str, field: str, value: Any, option: str) -> None:
        if first := said.get((job, field)):
            raise UsageError(f"{option}: {first} says it already", "leave one of them out")
        said[job, field] = option
        roles[job] = dataclasses.replace(roles.get(job, Role()), **{field: value})

    spelt = {PS: "--ps", WORKER: "--workers", CHIEF: "--chief", EVALUATOR: "--evaluator"}
    for job, count in counts.items():
        if count is not None:
            put(job, "count", count, f"{spelt[job]} {count}" if job != CHIEF else "--chief")
    for job, pattern in hosts.items():
        if pattern is not None:
            put(job, "hosts", pattern, f"--{job}-hosts {pattern}")
    if gpus_per_worker is not None:
        put(WORKER, "gpus", gpus_per_worker, f"--gpus-per-worker {gpus_per_worker}")
    fields: list[tuple[str, Iterable[str], str, Callable[[str], Any]]] = [
        ("--job", jobs, "count", _count),
        ("--job-hosts", job_hosts, "hosts", str),
        ("--job-gpus", job_gpus, "gpus", _cards),
        ("--job-args", job_args, "args", _words),
        ("--job-end", job_end, "end", _end),
        ("--job-grace", job_grace, "grace_s", seconds),
    ]
    for option, texts, field, read in fields:
        for job, value, text in _pairs(option, texts):
            _refuse_typo(job, value, option, in_file)
            try:
                put(job, field, read(value), text)
            except ValueError as error:
                raise UsageError(
                    f"{text}: {value!r} {error}", f"for example {option} {_EXAMPLES[field]}"
                ) from None
    env: dict[str, dict[str, str]] = {}
    for job, value, text in _pairs("--job-env", job_env):
        _refuse_typo(job, value.partition("=")[0], "--job-env", in_file)  # the value may be a secret
        env.setdefault(job, {}).update(environment([value], text))
        said[job, "env"] = text
    for job, variables in env.items():
        role = roles.get(job, Role())
        roles[job] = dataclasses.replace(role, env={**role.env, **variables})
    for (job, _), option in said.items():
        if job not in (PS, WORKER) and roles[job].count is None:
            near = difflib.get_close_matches(job, [name for name in roles if name != job], 1)
            meant = f"did you mean {near[0]}? else " if near else ""
            raise UsageError(f"{option}: there are no {job} tasks", f"{meant}say how many: --job {job}=1")
    return roles


def _refuse_typo(job: str, value: str, option: str, in_file: Mapping[str, Role]) -> None:
    """Raise UsageError for a job name that is nearly one of TensorFlow's, unless the job file has such a job."""
    if job not in in_file and (near := near_role(job)):
        raise UsageError(
            f"{option} {job}={value}: {job!r} is no role; did you mean {option} {near}={value}?",
            f"if {job} is a job of your own, write it under `jobs:` of a job file",
        )


_EXAMPLES = {
    "count": "data=2",
    "hosts": "'data=gpu[01-02]'",
    "gpus": "data=1",
    "args": "data='--shards 8'",
    "end": "data=sidecar",
    "grace_s": "evaluator=5m",
}


def _pairs(option: str, texts: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(job, value, the option as it was written)."""
    for text in texts:
        job, equals, value = text.partition("=")
        written = f"{option} {text}"
        if not equals:
            raise UsageError(f"{written}: not JOB=VALUE", f"for example {option} data=...")
        if fault := job_name_fault(job):
            raise UsageError(f"{written}: {job!r} {fault}", "for example data, reader_2")
        yield job, value, written


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > MOST_TASKS:
        raise ValueError(f"is not a whole number from 0 to {MOST_TASKS}")
    return int(text)


def _cards(text: str) -> Cards:
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


def _end(text: str) -> RoleEnd:
    if text not in get_args(RoleEnd):
        raise ValueError(f"is none of {', '.join(get_args(RoleEnd))}")
    return cast("RoleEnd", text)
