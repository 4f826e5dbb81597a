"""What placeholders such as `{index}` stand for, for each task; pure.

Filled in are arguments and variables that were written for a job: `--job-args`, `--env NAME=VALUE`, `--job-env`, the
job file, and `env:` of the hostfile.  What follows `--` is the program's, byte for byte; and a value that was not
written for tflaunch stays as it is, too: `--env NAME` passes on a variable, and `--env-file` is a file that others also
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from tflaunch.hosts import Host, Hostfile
from tflaunch.inputs import placeholders
from tflaunch.inputs.variables import ARGUMENT_LIMIT_BYTES
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import EVALUATOR, ROLES, TRIAL, JobSpec, TaskId

_OF_TRIALS = ("job", "index", "host", "run", "local_rank")


class Filling:
    """Fills in the placeholders of one cluster.

    `addresses` maps a host to what the other tasks dial.  Raises UsageError for a name that is no placeholder,
    PlanError where a task has no such value, or where Linux would not take the text.
    """

    def __init__(
        self,
        job: JobSpec,
        cluster: Mapping[str, Sequence[str]],
        run_id: str,
        *,
        ranks: Mapping[TaskId, int],
        cluster_json: str,
        addresses: Mapping[str, str],
    ) -> None:
        self._jobs = _jobs(job)
        self._cluster = cluster
        self._ranks = ranks
        self._addresses = addresses
        self._of_all = {"run": run_id, "cluster_json": cluster_json, "local_rank": "0"}

    def text(self, text: str, task: TaskId, host: Host, where: str) -> str:
        """Return `text` with its placeholders filled in for `task` on `host`; `where` it stands is for errors."""
        if "{" not in text:
            return text
        _check(text, where, self._jobs)
        filled = placeholders.filled(text, lambda name: self._value(name, task, host, where))
        if (size := len(filled.encode())) > ARGUMENT_LIMIT_BYTES - len(where):
            raise PlanError(
                f"{where}: filled in for {task} it is {size:,} bytes; Linux takes {ARGUMENT_LIMIT_BYTES:,} at most",
                "TF_CONFIG has the cluster, too; or use fewer tasks, or shorter addresses (`address:`).",
            )
        return filled

    def _value(self, name: str, task: TaskId, host: Host, where: str) -> str:
        if name in self._of_all:
            return self._of_all[name]
        if name in ("job", "index"):
            return str(getattr(task, name))
        if name == "host":
            return self._addresses.get(host.name, host.name)
        if name.endswith(placeholders.HOSTS):
            return ",".join(self._cluster.get(name.removesuffix(placeholders.HOSTS), ()))
        if name in ("port", "address"):
            mine = self._cluster.get(task.job, ())
            if task.index >= len(mine):
                _lacking(name, task, where, "it is no part of the cluster, and no task calls it")
            return mine[task.index].rpartition(":")[2] if name == "port" else mine[task.index]
        if name == "rank" and task not in self._ranks:
            _lacking(name, task, where, "the chief, workers and jobs that decide the end have ranks")
        if not self._ranks:
            _lacking(name, task, where, "no task of this run has a rank")
        if name in ("rank", "world_size"):
            return str(self._ranks[task] if name == "rank" else len(self._ranks))
        first = next(iter(self._ranks))
        address, _, port = self._cluster[first.job][first.index].rpartition(":")
        return port if name == "chief_port" else address.strip("[]")


def check(job: JobSpec, hostfile: Hostfile, *, trials: bool = False) -> None:
    """Raise UsageError for a name that is no placeholder, or, for trials of a sweep, one that trials do not have."""
    texts = list(_texts(job))
    for host in hostfile.hosts:
        texts += [(f"{host.name}: env {name}", text) for name, text in _of_env(host.env).items()]
    jobs = _jobs(job)
    for where, text in texts:
        _check(text, where, jobs)
        for name in placeholders.names_in(text) if trials else ():
            if name not in _OF_TRIALS:
                known = ", ".join(f"{{{each}}}" for each in _OF_TRIALS)
                raise UsageError(
                    f"{where}: a {TRIAL} has no {{{name}}}: it is no part of a cluster",
                    f"a trial has {known}; for {{{name}}} itself, write {{{{{name}}}}}",
                )


def _of_env(env: Mapping[str, str], literal: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the variables in which placeholders are filled in."""
    return {name: text for name, text in env.items() if name not in literal and "{" in text}


def _texts(job: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield (where it stands, text) of all that is filled in, but for the hostfile's."""
    yield from (("args of the job file", text) for text in job.file_args)
    yield from ((f"--env {name}", text) for name, text in _of_env(job.env, job.literal).items())
    for each, role in job.roles.items():
        yield from ((f"--job-args {each}", text) for text in role.args)
        yield from (
            (f"--job-env {each}={name}", text) for name, text in _of_env(role.env, role.literal).items()
        )


def _jobs(job: JobSpec) -> list[str]:
    """The jobs whose {JOB_hosts} there are: TensorFlow's, which may have no task, and those of this run."""
    return [name for name in dict.fromkeys([*ROLES, *job.roles]) if name != EVALUATOR]


def _check(text: str, where: str, jobs: Sequence[str]) -> None:
    if found := placeholders.unknown(text, jobs):
        name, instead = found
        raise UsageError(f"{where}: there is no placeholder {{{name}}}", instead)


def _lacking(name: str, task: TaskId, where: str, why: str) -> NoReturn:
    raise PlanError(
        f"{where}: {task} has no {{{name}}}: {why}",
        f"say it for the jobs that have one: --job-env JOB=NAME=VALUE, --job-args JOB=ARGS; for {{{name}}} itself, "
        f"write {{{{{name}}}}}",
    )
