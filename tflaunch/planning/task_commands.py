"""The argv, flags and environment by which a task learns its part in the cluster; pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence

from tflaunch.frameworks.table import environment
from tflaunch.hosts import Host, Hostfile, fold
from tflaunch.inputs.local_python import local_python
from tflaunch.inputs.placeholders import names_in
from tflaunch.inputs.variables import ARGUMENT_LIMIT_BYTES, DECIDED
from tflaunch.planning.filling import Filling
from tflaunch.planning.ranks import rank_of, ranks
from tflaunch.protocol.errors import PlanError, UsageError
from tflaunch.protocol.job import (
    CHIEF,
    EVALUATOR,
    FLAGS,
    PS,
    TASK_FLAG,
    WORKER,
    JobSpec,
    TaskId,
    by_python,
)
from tflaunch.protocol.machine import YIELDING


def endpoint(address: str, port: int) -> str:
    """`address:port` as TensorFlow dials it; an IPv6 address is put in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def interpreter(host: Host, job: JobSpec) -> str:
    """The Python that runs a task: the host's `python:`, else `python3`, or that of tflaunch.inputs.local_python.

    Where hosts install requirements, it is the one of that environment, which comes first on PATH.
    """
    if job.requirements is not None:
        return "python3"
    return host.python or (local_python().path if takes_local_python(host, job) else "python3")


def takes_local_python(host: Host, job: JobSpec) -> bool:
    """Whether tasks of that host run by the Python of this machine's shell: nothing names or activates another one."""
    activated = host.conda or host.venv or any(re.search(r"\bactivate\b", line) for line in host.setup)
    named = host.python or job.requirements is not None or image(host, job)
    return host.connection == "local" and not (activated or named)


def local_python_told(hostfile: Hostfile, job: JobSpec) -> str:
    """A sentence that names the Python of tasks on this machine; "" where none runs by it."""
    hosts = [host.name for host in hostfile.hosts if takes_local_python(host, job)]
    if not hosts:
        return ""
    python = local_python()
    return f"Python on {fold(hosts)}: {python.path} ({python.source})"


def image(host: Host, job: JobSpec) -> str:
    """The image of the container that a task runs in, "" for none."""
    return job.container or host.container or ""


class Command:
    """The argv and the environment of every task of one cluster.

    `cluster` is TensorFlow's cluster spec: job name to the `address:port` of its tasks, in task order; a job
    without tasks is not in it.  `interfaces` maps a host to the network interface by which its peers reach it,
    where that is known, `addresses` to what they dial.  Raises UsageError for flag names that cannot work, PlanError
    when the cluster is too large for Linux to hand it over in one argument.
    """

    def __init__(
        self,
        job: JobSpec,
        cluster: Mapping[str, Sequence[str]],
        run_id: str,
        interfaces: Mapping[str, str] | None = None,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        self._job = job
        self._interfaces = interfaces or {}
        self._run_id = run_id
        # What all tasks share is spelt once: a cluster of 2,000 tasks takes 30 kB in each of its spellings.
        self._names = flag_names(job)
        self._hosts_flags = self._spell_hosts_flags(cluster)
        self._cluster = cluster
        self._ranks = {task: rank for rank, task in enumerate(ranks(job, cluster))}
        self._cluster_json = json.dumps(cluster, separators=(",", ":"))
        dialled = [task.rpartition(":")[0].strip("[]") for tasks in cluster.values() for task in tasks]
        self._no_proxy = ",".join(dict.fromkeys([*dialled, "localhost", "127.0.0.1"]))
        self._filling = Filling(
            job,
            cluster,
            run_id,
            ranks=self._ranks,
            cluster_json=self._cluster_json,
            addresses=addresses or {},
        )
        self._check_sizes()

    @property
    def first(self) -> TaskId | None:
        """Rank 0, at whose port the other ranks of a PyTorch or JAX program meet it; None: no task has a rank."""
        return next(iter(self._ranks), None)

    def argv(self, task: TaskId, host: Host) -> tuple[str, ...]:
        """`python trainer.py --ps_hosts=a:1 --worker_hosts=b:2 --job_name=worker --task_index=0 ARGS`.

        `--ps_hosts=` and `--worker_hosts=` are there also when empty, unless `job.empty_flags` is False: the classic
        trainers define them without a default, or with `localhost:2222`, where they would wait for a ps;
        `--chief_hosts=` only when the cluster has a chief, and so for each job of the user's own.  `job.args` follow
        byte for byte, those of the job file and of the task's role with their placeholders filled in.  A program of
        the role's own gets the role's arguments alone, and the flags only if it takes them.
        """
        role = self._job.role(task.job)
        program = role.program or self._job.program
        python = (interpreter(host, self._job),) if by_python(program) else ()
        own = [self._filling.text(each, task, host, f"--job-args {task.job}") for each in role.args]
        mine = {"job_name": task.job, "task_index": str(task.index), TASK_FLAG: f"{task.job}:{task.index}"}
        flags = (*self._hosts_flags, *self._spelt(mine))
        if role.program:
            return (*python, *program, *(flags if role.takes_flags else ()), *own)
        before = [
            self._filling.text(each, task, host, "args of the job file") for each in self._job.file_args
        ]
        return (*python, *program, *flags, *before, *self._job.args, *own)

    def _spelt(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The flags of these names that the program takes, with their values."""
        pairs = [(self._names[name], value) for name, value in values.items() if name in self._names]
        if self._job.flag_style == "words":
            return tuple(word for pair in pairs for word in pair)
        return tuple(f"{name}={value}" for name, value in pairs)

    def env(
        self,
        task: TaskId,
        host: Host,
        gpus: Sequence[str],
        more: Mapping[str, str] = {},
        set_there: Collection[str] = (),
    ) -> dict[str, str]:
        """The variables that a task gets on top of its host's own; `gpus` are the UUIDs of its GPUs.

        Of the ranks' variables, those that the host sets itself, `set_there`, are left out.

        `env:` of the hostfile, then the job's own and its role's come last, with their placeholders filled in, and
        win, also over `more`, PYTHONUNBUFFERED, PYTHONFAULTHANDLER, CUDA_DEVICE_ORDER, no_grpc_proxy and the ranks of
        PyTorch and JAX.  They cannot set what the plan decides (PlanError): TF_CONFIG, CUDA_VISIBLE_DEVICES,
        TF_GRPC_REUSE_PORT, TFLAUNCH_RUN, TFLAUNCH_TASK.
        """
        role = self._job.role(task.job)
        said = (
            (f"{host.name}: env", " ", host.env, frozenset[str]()),
            ("--env", " ", self._job.env, self._job.literal),
            (f"--job-env {task.job}", "=", role.env, role.literal),
        )
        own: dict[str, str] = {}
        for where, joint, env, literal in said:
            for name in sorted(DECIDED.keys() & env.keys()):
                raise PlanError(f"{where} sets {name}, which tflaunch sets for every task", DECIDED[name])
            for name, text in env.items():
                own[name] = (
                    text if name in literal else self._filling.text(text, task, host, f"{where}{joint}{name}")
                )
        rank = rank_of(task, self._ranks, self._cluster, self._interfaces.get(host.name, ""))
        ranked = environment(self._job.framework, rank) if rank else {}
        me = f'{{"type":"{task.job}","index":{task.index}}}'
        return {
            "TF_CONFIG": f'{{"cluster":{self._cluster_json},"task":{me}}}',
            "TF_GRPC_REUSE_PORT": "true",
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),  # empty: a ps never takes a GPU by accident
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "PYTHONUNBUFFERED": "1",  # a killed task would lose its last lines
            "PYTHONFAULTHANDLER": "1",  # a task that crashes, or is ended because it hangs, says where
            # gRPC obeys the proxy variables also between tasks; what a program downloads still may need them.
            "no_grpc_proxy": self._no_proxy,
            "TFLAUNCH_RUN": self._run_id,
            "TFLAUNCH_TASK": str(task),
            **{name: value for name, value in ranked.items() if name not in set_there},
            **more,
            **own,
        }

    def yielding(self, task: TaskId, host: Host) -> tuple[str, ...]:
        """The variables of that task that its host's profile may set otherwise: the user has not set them here."""
        role = self._job.role(task.job)
        return tuple(name for name in YIELDING if name not in {**host.env, **self._job.env, **role.env})

    def filled(self, task: TaskId, host: Host) -> tuple[str, ...]:
        """The variables of that task whose placeholders are filled in."""
        role = self._job.role(task.job)
        found: dict[str, bool] = {}
        for env, literal in (
            (host.env, frozenset[str]()),
            (self._job.env, self._job.literal),
            (role.env, role.literal),
        ):
            found |= {name: name not in literal and bool(names_in(text)) for name, text in env.items()}
        return tuple(name for name, has_any in found.items() if has_any)

    def is_given_its_port(self, task: TaskId, host: Host) -> bool:
        """Whether that task gets its port by a placeholder: its server may be any, not only TensorFlow's."""
        return task.job in self._cluster and bool({"port", "address"} & self._placeholders(task, host))

    def learns_its_port(self, task: TaskId, host: Host) -> bool:
        """Whether that task can know its port from a placeholder."""
        names = self._placeholders(task, host)
        return bool({"port", "address", "cluster_json", f"{task.job}_hosts"} & names)

    def _placeholders(self, task: TaskId, host: Host) -> set[str]:
        """The placeholders in the arguments and variables of that task."""
        job, role = self._job, self._job.role(task.job)
        texts = [*role.args, *(() if role.program else job.file_args)]
        for env, literal in ((host.env, frozenset[str]()), (job.env, job.literal), (role.env, role.literal)):
            texts += [text for name, text in env.items() if name not in literal]
        return {name for text in texts for name in names_in(text)}

    def _spell_hosts_flags(self, cluster: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        jobs = [PS, WORKER, *([CHIEF] if cluster.get(CHIEF) else []), *own_jobs(self._job)]
        hosts = {f"{job}_hosts": ",".join(cluster.get(job, ())) for job in jobs}
        return self._spelt({name: value for name, value in hosts.items() if value or self._job.empty_flags})

    def _check_sizes(self) -> None:
        longest = max([WORKER, EVALUATOR, *own_jobs(self._job)], key=len)
        tf_config = (
            f'TF_CONFIG={{"cluster":{self._cluster_json},"task":{{"type":"{longest}","index":1000000}}}}'
        )
        for text in (*self._hosts_flags, tf_config, f"no_grpc_proxy={self._no_proxy}"):
            if (size := len(text.encode())) > ARGUMENT_LIMIT_BYTES:
                what = text.partition("=")[0]
                raise PlanError(
                    f"{what} of this cluster is {size:,} bytes; Linux takes {ARGUMENT_LIMIT_BYTES:,} at most",
                    "Use fewer tasks, or shorter addresses (`address:` in the hostfile).",
                )


def own_jobs(job: JobSpec) -> list[str]:
    """The job names of the user's own that are part of the cluster, in order."""
    return sorted(job.others.keys() - {CHIEF, EVALUATOR})


def flag_names(job: JobSpec) -> dict[str, str]:
    """Canonical name -> the flag as it is written, dashes included; flags that are left out are missing."""
    if job.flags is None:
        return {}
    usual = {**FLAGS, TASK_FLAG: "", **{f"{name}_hosts": f"{name}_hosts" for name in own_jobs(job)}}
    if job.flags.get(TASK_FLAG):  # it says what these two would say
        usual = {name: other for name, other in usual.items() if name not in ("job_name", "task_index")}
    for name in job.flags:
        if name not in usual and name not in FLAGS:
            near = difflib.get_close_matches(name, usual, n=1)
            raise UsageError(
                f"--flag {name}={job.flags[name]}: there is no flag {name!r}",
                f"Did you mean {near[0]}?" if near else f"The flags are {', '.join(usual)}.",
            )
    written: dict[str, str] = {}
    for name, default in usual.items():
        actual = job.flags.get(name, default)
        if not actual:
            continue
        if not re.fullmatch(r"-{0,2}[^-\s=][^\s=]*", actual):
            raise UsageError(
                f"--flag {name}={actual}: {actual!r} cannot be the name of a flag",
                f"Write it as the program does, for example --flag {name}={default.replace('_', '-')}",
            )
        spelling = actual if actual.startswith("-") else f"--{actual}"
        if spelling in written.values():
            other = next(key for key, value in written.items() if value == spelling)
            raise UsageError(
                f"--flag {name}={actual}: {other} already goes by {spelling}",
                f"Give each its own name, or leave one out: --flag {name}=",
            )
        written[name] = spelling
    return written
