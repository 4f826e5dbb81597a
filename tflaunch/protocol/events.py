"""What happens to a run, as its state machine hears it; with those in `tflaunch.protocol.outcome` that it ends by."""

from __future__ import annotations

from typing import NamedTuple, Union

from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import CardLeft, HostLost, TaskExit, TimedOut


class TaskStarted(NamedTuple):
    """A task runs, for the first time or again."""

    task: TaskId
    host: str
    attempt: int = 0
    pid: int = 0


class Interrupted(NamedTuple):
    """Ctrl-C, or SIGTERM to the launcher."""

    signal: int


class HostSwept(NamedTuple):
    """An agent has checked: of this run, only `survivors` are alive on its host, and only `cards` not free."""

    host: str
    survivors: tuple[str, ...] = ()
    cards: tuple[CardLeft, ...] = ()


class AgentGaveUp(NamedTuple):
    """An agent ends the run: its lease ran out or, `asked`, somebody stopped the run from elsewhere."""

    host: str
    reason: str
    asked: bool = False


class TimerFired(NamedTuple):
    """The time of an earlier `tflaunch.lifecycle.actions.StartTimer` is over."""

    name: str


Event = Union[TaskStarted, TaskExit, HostLost, TimedOut, Interrupted, HostSwept, AgentGaveUp, TimerFired]
