"""What a rule of the watchdog is: it takes what the agents see of a run's tasks, and says what is wrong with them.

The watchdog (lifecycle/watchdog.py) gives every rule all that happens, and asks them in order what to tell the user.
A rule that knows why a task stands still names it in `explains`: then the rules after it are silent about that task.

Rules are pure: no I/O, and `now` is the time of one steady clock.  They run where the run is watched over: in the
launcher, or in the coordinator of a detached run, to which `memory` and `resume` hand on what they remember.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.protocol.outcome import TaskExit

NAMES_SHOWN = 4
TRAINERS = ("chief", "master", "worker")  # jobs that train; others may be idle for long
# Programs that start the trainer and wait for it.
WRAPPERS = frozenset(
    (
        *(
            "sh",
            "bash",
            "dash",
            "zsh",
            "ksh",
            "busybox",
            "tini",
            "dumb-init",
            "timeout",
            "nice",
            "numactl",
            "env",
        ),
        *(
            "time",
            "conda",
            "uv",
            "poetry",
            "podman",
            "docker",
            "conmon",
            "apptainer",
            "singularity",
            "starter",
        ),
    )
)


class Place(NamedTuple):
    """Where a task runs."""

    host: str
    address: str  # what its peers dial
    port: int | None  # None: no task dials it


class Sentence(NamedTuple):
    """What the user should know; with `over`, that what an earlier sentence reported has ended."""

    text: str
    over: bool
    slows: bool = False  # the run goes on, and is slower than it could be


class Stop(NamedTuple):
    """A rule ends the run: why, for which tasks, and with which exit code."""

    reason: str
    tasks: tuple[str, ...]
    exit_code: int


@dataclass(frozen=True)
class Watched:
    """The run that the rules watch over."""

    places: Mapping[str, Place]  # task -> where it runs
    names: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # address that is a host name -> its IP addresses
    thresholds: Thresholds = field(default_factory=Thresholds)
    gpus: Mapping[str, Sequence[str]] = field(default_factory=dict)  # task -> UUIDs of its GPUs
    stacks: bool = True  # the rules may have tasks print their stacks (not with --no-stacks)
    # The tasks are servers that run no program (`tflaunch up`): they may be idle for ever.
    serves: bool = False
    # Nothing but `stop` ends the run (--done never): a server may wait for work for ever.
    endless: bool = False
    require_gpu: bool = False
    stop_on_nan: bool = False

    def who(self, tasks: Sequence[str]) -> str:
        """`worker/0 on gpu01`; several tasks without their hosts."""
        if len(tasks) == 1:
            return f"{tasks[0]} on {self.places[tasks[0]].host}"
        return names_of(tasks)

    @property
    def chief(self) -> str:
        """The task that initialises the variables: `chief/0`, `master/0`, else `worker/0`."""
        return next((task for task in ("chief/0", "master/0") if task in self.places), "worker/0")


class Rule:
    """A rule that says nothing; each rule overrides what it needs."""

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        """The agent of that host has looked at its tasks: `fields` of a `looked` message (agent/tasks/look.py)."""

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        """The agent of that host has answered a question: `dialled`, `inspected` (protocol/messages.py)."""

    def exited(self, exit: TaskExit, now: float) -> None:
        """A task has ended."""

    def why_ended(self, exit: TaskExit, now: float) -> str:
        """Why this rule thinks that the task has failed, as a sentence, or ""; called before `exited`."""
        return ""

    def why_stopped(self, exit: TaskExit, now: float) -> str:
        """What the user should know of a task that was stopped as the work was done, or ""; called before `exited`."""
        return ""

    def lost(self, task: str, now: float) -> None:
        """A task is gone with its host."""

    def started(self, task: str, now: float) -> None:
        """A task was started again."""

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What to ask the agents now: (host, `dial` or `inspect`, fields); `answered` gets only this rule's answers.

        A host that cannot be reached is not asked: no answer comes.
        """
        return []

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        """What is new since the last call; nothing about the tasks whose standstill is `explained` by another rule."""
        return []

    def explains(self, now: float) -> Iterable[str]:
        """The tasks whose standstill this rule has told the reason of."""
        return ()

    def stop(self, now: float) -> Stop | None:
        """Why the run must end now, if it must."""
        return None

    def holds(self) -> Iterable[str]:
        """The sentences that were told and are still true."""
        return ()

    def blind(self) -> Iterable[str]:
        """What this rule cannot see in this run, and why: the rule is silent about it."""
        return ()

    def memory(self) -> Any:
        """What has happened, as JSON can hold it, for `resume`; what the next looks show again is left out."""
        return None

    def resume(self, memory: Any) -> None:
        """Continue from another rule's `memory`; raises ValueError if it does not fit these tasks."""


def trains(task: str) -> bool:
    """Whether that task is one of a job that trains."""
    return task.partition("/")[0] in TRAINERS


def names_of(tasks: Sequence[str]) -> str:
    """`worker/0, worker/1 and 6 more`."""
    shown = ", ".join(tasks[:NAMES_SHOWN])
    return f"{shown} and {len(tasks) - NAMES_SHOWN} more" if len(tasks) > NAMES_SHOWN else shown


def endpoint(place: Place) -> str:
    """`10.0.0.1:2222`, `[fd00::1]:2222`."""
    return f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
