"""The events that a state machine answers; TaskExit, HostLost and others: `tflaunch.protocol.outcome`."""

from __future__ import annotations

from typing import NamedTuple, Union

from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import EndedByRule, GpuLeft, HostLost, TaskExit, TimedOut


class TaskStarted(NamedTuple):
    """A task has started, for the first time or again."""

    task: TaskId
    host: str
    attempt: int = 0
    pid: int = 0


class Interrupted(NamedTuple):
    """The launcher has got a signal: SIGINT (Ctrl-C), or SIGTERM."""

    signal: int


class HostSwept(NamedTuple):
    """An agent has ended the run on its host, and checked: only `survivors` are alive, only `gpus` are not free."""

    host: str
    survivors: tuple[str, ...] = ()
    gpus: tuple[GpuLeft, ...] = ()


class AgentGaveUp(NamedTuple):
    """An agent ends the run: its lease has run out or, `asked`, the user has run `tflaunch stop`.

    `ends_in`: the engine takes its slot back in so many seconds; None where it does not.
    """

    host: str
    reason: str
    asked: bool = False
    ends_in: float | None = None


class LimitNears(NamedTuple):
    """The time limit of the run ends it in `left_s`, and these tasks are to be told."""

    left_s: float
    tasks: tuple[TaskId, ...]


class TimerFired(NamedTuple):
    """The time of an earlier StartTimer (lifecycle/actions.py) is over."""

    name: str


Event = Union[
    TaskStarted,
    TaskExit,
    HostLost,
    LimitNears,
    TimedOut,
    EndedByRule,
    Interrupted,
    HostSwept,
    AgentGaveUp,
    TimerFired,
]
