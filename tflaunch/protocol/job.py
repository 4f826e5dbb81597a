"""What the user asked to run: a job's program, its tasks, and the flags that describe the cluster to them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Union

Place = Literal["spread", "pack"]
# Which cores tasks are bound to (tflaunch.planning.binding); auto: numa where a host has several NUMA nodes.
Bind = Literal["auto", "none", "numa", "cores"]
# Which nodes a task's memory comes from, in numactl's words; none: from that whose core touches it first.
MemoryPolicy = Literal["none", "membind", "interleave"]
Done = Literal["chief", "workers", "all", "never"]
GpuCount = Union[int, Literal["all"]]
RestartPolicy = Literal["task", "cluster", "never"]  # what starts again when a task of that job fails
RestartOn = Literal["any", "retryable"]  # which failures lead to a restart; retryable: exit codes 128 to 255
# A role's part in the end of the run (`--done workers`).  decides: the run waits until it has succeeded; stopped: it is
# stopped when the work is done, and its failure fails the run; sidecar: likewise, but its failure is only reported.
RoleEnd = Literal["decides", "stopped", "sidecar"]
# How a cluster flag and its value are written: `--task_index=0`, or as two words, `--task_index 0`.
FlagStyle = Literal["equals", "words"]

PS, WORKER, CHIEF, MASTER, EVALUATOR = "ps", "worker", "chief", "master", "evaluator"
ROLES = (PS, WORKER, CHIEF, MASTER, EVALUATOR)  # TensorFlow's own job names; any other is the user's
TRIAL = "trial"  # the tasks of a sweep are trial/0, trial/1, ...
_NEAR = 0.8  # difflib's similarity: takes cheif, woker, evalutor; not reader, loader
_ALSO_CALLED = {
    "parameterserver": PS,
    "parameterservers": PS,
    "eval": EVALUATOR,
    "evaluation": EVALUATOR,
}
EVALUATOR_GRACE_S = 60.0  # to evaluate the last checkpoint when the work is done

# The flags as TensorFlow's own trainers call them; `--flag task_index=task_id` renames one.  `chief_hosts` is passed
# only if the cluster has a chief, as `data_hosts` is for a job of the user's own.
FLAGS: Mapping[str, str] = {
    "ps_hosts": "ps_hosts",
    "worker_hosts": "worker_hosts",
    "chief_hosts": "chief_hosts",
    "job_name": "job_name",
    "task_index": "task_index",
}
# Job name and index as one: `--flag task=job` passes `--job=worker:0` in place of those two.
TASK_FLAG = "task"


class TaskId(NamedTuple):
    """A task in TensorFlow's words: job name and index; printed and parsed as `worker/3`."""

    job: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used

    def __str__(self) -> str:
        return f"{self.job}/{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read `worker/3`; raises ValueError for anything else."""
        job, slash, index = text.partition("/")
        if not (job and slash and index.isdecimal()):
            raise ValueError(f"not a task: {text!r} (write job/index, for example worker/0)")
        return cls(job, int(index))


def job_name_fault(name: str) -> str:
    """What is wrong with a job name, or "": a predicate for a sentence that begins with the name."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name):
        return ""
    return "is not a job name: a letter, then letters, digits and '_', 63 at most"


def near_role(name: str) -> str:
    """The role that a misspelt job name most likely stands for; "" for the name of a role, and for other words."""
    import difflib

    if name in ROLES:
        return ""
    folded = name.lower().replace("_", "").replace("-", "")
    if folded in _ALSO_CALLED:
        return _ALSO_CALLED[folded]
    return "".join(difflib.get_close_matches(folded, ROLES, 1, _NEAR))


def ends_as(job: str) -> RoleEnd:
    """A role's part in the end of the run, unless the user says otherwise: TonY's rule, and TFJob's for a chief."""
    return "decides" if job in (CHIEF, MASTER, WORKER) else "stopped"


def deciding(task: TaskId) -> tuple[bool, bool, TaskId]:
    """A sort key: first the chief, else worker/0; the coordinator of a detached run is on that task's host."""
    return task.job not in (CHIEF, MASTER), task.job != WORKER, task


def log_name(task: TaskId, attempt: int) -> str:
    """The name of a log on hosts and in records: `worker-3.log`, after the first restart `worker-3.1.log`."""
    return f"{task.job}-{task.index}{f'.{attempt}' if attempt else ''}.log"


@dataclass(frozen=True)
class Role:
    """What the user asked for the tasks of one job name; None: the default for that name."""

    count: int | None = None  # by default: ps and workers by the number of hosts, others 0
    hosts: str | None = None  # NodeSet pattern; by default any host
    # GPUs of each task, or all that can be taken on its host; by default 1 for workers where the hosts have GPUs, the
    # same for the chief, 0 for others.
    gpus: GpuCount | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # added to the job's
    args: tuple[str, ...] = ()  # after the job's, or of `program`; with placeholders
    end: RoleEnd | None = None
    grace_s: float | None = None  # to end by itself when the work is done
    literal: frozenset[str] = frozenset()  # variables of `env` in which nothing is filled in
    # What its tasks run in place of the job's program, as JobSpec.program; () for the job's own.  It gets `args` alone,
    # and the cluster flags only if `takes_flags`.
    program: tuple[str, ...] = ()
    takes_flags: bool = False
    opens_port: bool = True  # its tasks may learn which port is theirs, otherwise than by a placeholder


@dataclass(frozen=True)
class Requirements:
    """The packages that a job needs: the files that list them (`tflaunch.planning.environments` reads them)."""

    kind: Literal["pip", "project", "lock"]  # requirements.txt, pyproject.toml, uv.lock beside pyproject.toml
    name: str  # of the file that the user named
    files: Mapping[str, str]  # name -> text
    system_site: bool = False  # tasks can import the packages of the interpreter, too

    @property
    def digest(self) -> str:
        """The SHA-256 of the kind and of what the files say; how they are called does not count."""
        short = {name: str(number) for number, name in enumerate(self.files)}

        def named(line: str) -> str:  # `-r 1-base.txt`: a line that names another of these files
            option, space, name = line.partition(" ")
            return f"{option} {short[name]}" if space and option.startswith("-") and name in short else line

        texts = ["\n".join(map(named, text.split("\n"))) for text in self.files.values()]
        return hashlib.sha256(json.dumps([self.kind, *texts]).encode()).hexdigest()


def by_python(program: Sequence[str]) -> bool:
    """Whether the Python that a host names runs that program (JobSpec.program)."""
    return len(program) < 2 or program[0].startswith("-")


@dataclass(frozen=True)
class JobSpec:
    """One launch, as the user asked for it, before any host is known.

    `program` is what follows the interpreter: `("trainer.py",)` or `("-m", "package.module")`; or, if it is not Python,
    the whole command: `("/bin/bash", "train.sh")`.
    `args` follow the cluster flags byte for byte.  In `env` and `file_args`, and in those of roles and hosts,
    placeholders (tflaunch.inputs.placeholders) are filled in for each task.
    ps and workers exist whether `roles` names them or not; each other job, TensorFlow's chief and evaluator or one of
    the user's own, is a key of `roles`.
    """

    program: tuple[str, ...]
    args: tuple[str, ...] = ()
    file_args: tuple[str, ...] = ()  # of the job file, before `args`
    roles: Mapping[str, Role] = field(default_factory=dict)
    place: Place = "spread"
    # Whose words describe the cluster to a task: one of tflaunch.frameworks, or of all.
    framework: str = "auto"
    flags: Mapping[str, str] | None = field(default_factory=lambda: dict(FLAGS))  # None: no flags at all
    flag_style: FlagStyle = "equals"
    empty_flags: bool = True  # pass `--ps_hosts=` to a cluster that has no ps
    env: Mapping[str, str] = field(default_factory=dict)
    literal: frozenset[str] = frozenset()  # variables of `env` in which nothing is filled in
    masked: frozenset[str] = frozenset()  # variables of `env` whose values are never shown
    requirements: Requirements | None = None  # every host installs them, once, for the tasks
    container: str = ""  # the image of all tasks, instead of those of the hostfile
    container_engine: str = ""  # "": podman where a host has it, else docker
    mounts: tuple[str, ...] = ()  # SOURCE[:TARGET[:ro]], for all containers
    done: Done = "workers"
    # Sentences for the user: what tflaunch chose by the program's text, and why; and other things about the job.
    choices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    alone: str = ""  # why workers of this program do not work together; "": they do, or that is not known
    selects_gpus: str = ""  # the option that says so: workers that would get none have no plan
    whole_host: bool = False  # a worker uses all GPUs of its host, unless the user says how many
    # What Keras 3 lacks and the text calls, and the advice: `fit under STRATEGY (FILE:LINE); …`.
    keras_fit: str = ""
    # What its MultiWorkerMirroredStrategy moves gradients by, and where its text says so; "": not known, or rings.
    collectives: Literal["", "auto", "nccl"] = ""
    collectives_at: str = ""  # `FILE:LINE uses NAME`
    mix_models: bool = False  # workers may get GPUs of several models
    bind: Bind = "auto"
    memory_policy: MemoryPolicy = "none"
    network: str = ""  # an interface or a CIDR; "": the fastest that all hosts share; none: what SSH dials

    def role(self, job: str) -> Role:
        """What the user asked for that job; the default where nothing was said."""
        return self.roles.get(job, Role())

    def count(self, job: str) -> int:
        """How many tasks of that job the user asked for; 0 where tflaunch decides that by the hosts."""
        return self.role(job).count or 0

    @property
    def others(self) -> dict[str, Role]:
        """The jobs that have tasks, but for ps and workers."""
        return {job: role for job, role in self.roles.items() if role.count and job not in (PS, WORKER)}
