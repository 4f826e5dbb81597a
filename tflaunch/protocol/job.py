"""What the user asked to run: a job's program, its tasks and how they are told who they are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Place = Literal["spread", "pack"]
Done = Literal["chief", "workers", "all", "never"]
Cards = int | Literal["all"]
RestartPolicy = Literal["task", "cluster", "never"]  # what starts again when a task of that job fails
RestartOn = Literal["any", "retryable"]  # which failures are answered so: all, or exit codes 128 to 255 only
# What a role has to do with the end of the run (`--done workers`): its success is awaited; it is stopped when the
# work is done, and its failure is the run's; or likewise, and its failure is only told.
RoleEnd = Literal["decides", "stopped", "sidecar"]
# By whose words the program starts; auto: TensorFlow's, and the others' besides.
Framework = Literal["auto", "tensorflow", "jax", "torch"]

PS, WORKER, CHIEF, MASTER, EVALUATOR = "ps", "worker", "chief", "master", "evaluator"
ROLES = (PS, WORKER, CHIEF, MASTER, EVALUATOR)  # TensorFlow's own job names; any other is the user's
_NEAR = 0.8  # of difflib: cheif, woker, evalutor; not reader, loader
_ALSO_CALLED = {
    "parameterserver": PS,
    "parameterservers": PS,
    "eval": EVALUATOR,
    "evaluation": EVALUATOR,
}
EVALUATOR_GRACE_S = 60.0  # to evaluate the last checkpoint when the work is done

# The names that TensorFlow's own trainers give to the flags; `--flag task_index=task_id` renames one.
# `chief_hosts` is passed only when the cluster has a chief, as `data_hosts` is for a job of the user's own.
FLAGS: Mapping[str, str] = {
    "ps_hosts": "ps_hosts",
    "worker_hosts": "worker_hosts",
    "chief_hosts": "chief_hosts",
    "job_name": "job_name",
    "task_index": "task_index",
}


class TaskId(NamedTuple):
    """A task in TensorFlow's words: job name and index; printed and parsed as `worker/3`."""

    job: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody misses

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
    """What is wrong with a job name, for TensorFlow, or ""; a phrase that follows it."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name):
        return ""
    return "is not a job name: a letter, then letters, digits and '_', 63 at most"


def near_role(name: str) -> str:
    """The role of TensorFlow's that a job name was most likely meant to be, "" for none and for a role's own name."""
    import difflib

    if name in ROLES:
        return ""
    folded = name.lower().replace("_", "").replace("-", "")
    if folded in _ALSO_CALLED:
        return _ALSO_CALLED[folded]
    return "".join(difflib.get_close_matches(folded, ROLES, 1, _NEAR))


def ends_as(job: str) -> RoleEnd:
    """What a role has to do with the end of the run unless somebody says otherwise: TonY's rule, and TFJob's chief."""
    return "decides" if job in (CHIEF, MASTER, WORKER) else "stopped"


def deciding(task: TaskId) -> tuple[bool, bool, TaskId]:
    """A key by which that task comes first whose host decides for a detached run: the chief, else worker/0."""
    return task.job not in (CHIEF, MASTER), task.job != WORKER, task


def log_name(task: TaskId, attempt: int) -> str:
    """`worker-3.log`, and after its first restart `worker-3.1.log`; on hosts and in records alike."""
    return f"{task.job}-{task.index}{f'.{attempt}' if attempt else ''}.log"


@dataclass(frozen=True)
class Role:
    """The tasks of one job name, as asked for; None: as is usual for that name."""

    count: int | None = None  # ps and workers: decided from the hosts; others: none
    hosts: str | None = None  # NodeSet pattern, or None: any host
    # Of each task: cards, or all that can be taken on its host; workers: 1 where the hosts have cards; chief: as
    # workers; others: 0.
    gpus: Cards | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # on top of the job's
    args: tuple[str, ...] = ()  # behind the job's
    end: RoleEnd | None = None
    grace_s: float | None = None  # to end by itself when the work is done


@dataclass(frozen=True)
class Requirements:
    """The packages of a job: files as they are sent to the hosts (`tflaunch.planning.environments` reads them)."""

    kind: Literal["pip", "project", "lock"]  # requirements.txt, pyproject.toml, uv.lock beside pyproject.toml
    name: str  # of the file that was named
    files: Mapping[str, str]
    system_site: bool = False  # the packages of the interpreter are seen, too

    @property
    def digest(self) -> str:
        """Of all that is in the files."""
        return hashlib.sha256(json.dumps([self.kind, *sorted(self.files.items())]).encode()).hexdigest()


def by_python(program: Sequence[str]) -> bool:
    """Whether a Python runs that program (JobSpec.program), which the hosts name."""
    return len(program) < 2 or program[0].startswith("-")


@dataclass(frozen=True)
class JobSpec:
    """One launch, as asked for, before any host is known.

    `program` is what follows the interpreter: `("trainer.py",)` or `("-m", "package.module")`; or, of what is no
    Python, all of the command: `("/bin/bash", "train.sh")`.
    `args` follow the cluster flags byte for byte.  Whatever `roles` says, there are ps and workers; each other
    job name, TensorFlow's chief and evaluator or the user's own, is one of its keys.
    """

    program: tuple[str, ...]
    args: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    place: Place = "spread"
    framework: Framework = "auto"
    flags: Mapping[str, str] | None = field(default_factory=lambda: dict(FLAGS))  # None: no flags at all
    env: Mapping[str, str] = field(default_factory=dict)
    masked: frozenset[str] = frozenset()  # variables of it whose values nobody is shown
    requirements: Requirements | None = None  # what every host installs, once, for the tasks
    container: str = ""  # the image of all tasks, instead of those of the hostfile
    container_engine: str = ""  # "": podman where a host has it, else docker
    mounts: tuple[str, ...] = ()  # SOURCE[:TARGET[:ro]], for all containers
    done: Done = "workers"
    choices: tuple[str, ...] = ()  # what the text of the program has decided, and why, for the user
    notes: tuple[str, ...] = ()  # what else he should know before any host is known
    alone: str = ""  # why workers of it know nothing of each other; "": they do, or nobody knows
    mix_models: bool = False  # workers may get cards of several models

    def role(self, job: str) -> Role:
        """That role; as is usual for it where nothing was said."""
        return self.roles.get(job, Role())

    def count(self, job: str) -> int:
        """How many tasks of that name were asked for; 0 where that is decided from the hosts."""
        return self.role(job).count or 0

    @property
    def others(self) -> dict[str, Role]:
        """The roles that have tasks and are neither ps nor workers."""
        return {job: role for job, role in self.roles.items() if role.count and job not in (PS, WORKER)}
