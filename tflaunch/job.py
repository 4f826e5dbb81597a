"""What the user asked to run: a job's program, its tasks and how they are told who they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Place = Literal["spread", "pack"]
Done = Literal["chief", "workers", "all", "never"]
RestartPolicy = Literal["task", "cluster", "never"]  # what starts again when a task of that job fails
RestartOn = Literal["any", "retryable"]  # which failures are answered so: all, or exit codes 128 to 255 only

# The four names that TensorFlow's own trainers give to the flags; `--flag task_index=task_id` renames one.
# `chief_hosts` is passed only when the cluster has a chief.
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


def log_name(task: TaskId, attempt: int) -> str:
    """`worker-3.log`, and after its first restart `worker-3.1.log`; on hosts and in records alike."""
    return f"{task.job}-{task.index}{f'.{attempt}' if attempt else ''}.log"


@dataclass(frozen=True)
class JobSpec:
    """One launch, as asked for, before any host is known.

    `program` is what follows the interpreter: `("trainer.py",)` or `("-m", "package.module")`.
    `args` follow the cluster flags byte for byte.  `ps`/`workers` None means: decide from the hosts.
    """

    program: tuple[str, ...]
    args: tuple[str, ...] = ()
    ps: int | None = None
    workers: int | None = None
    chief: bool = False
    ps_hosts: str | None = None  # NodeSet pattern, or None: any host
    worker_hosts: str | None = None
    place: Place = "spread"
    gpus_per_worker: int | None = None  # None: 1 where the host has cards to give, else 0
    flags: Mapping[str, str] | None = field(default_factory=lambda: dict(FLAGS))  # None: no flags at all
    env: Mapping[str, str] = field(default_factory=dict)
    done: Done = "workers"
