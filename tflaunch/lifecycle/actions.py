"""What a state machine wants done: the actions that `step` returns and that the driver carries out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from tflaunch.protocol.job import TaskId


class End(NamedTuple):
    """Every agent ends all tasks (TERM, KILL after the grace period), purges its host and reports."""

    grace_s: float
    stacks: bool = False  # the tasks hang: each first writes into its log where it hangs


class StopTasks(NamedTuple):
    """The agents of these tasks stop them (TERM, KILL after the grace period); the run goes on."""

    tasks: tuple[TaskId, ...]
    grace_s: float


class Signal(NamedTuple):
    """The agents of these tasks send SIGUSR1 to their programs, once, where that attempt runs."""

    tasks: Mapping[TaskId, int]


class Restart(NamedTuple):
    """The agents of these tasks start them again, each as the attempt of that number."""

    tasks: Mapping[TaskId, int]


class Move(NamedTuple):
    """The seats are on these hosts now: start these tasks there, as the attempt of that number."""

    places: Mapping[str, str]
    tasks: tuple[TaskId, ...]
    attempt: int


class Order(NamedTuple):
    """A message to one agent, sent now or when its host is back; it replaces an earlier order of the same name."""

    host: str
    name: str
    type: str
    fields: Mapping[str, Any]


class StartTimer(NamedTuple):
    """The driver feeds TimerFired(name) to the state machine after `seconds`."""

    name: str
    seconds: float


class Say(NamedTuple):
    """A sentence for the user; an urgent one answers what the user did, and is shown before waiting log lines."""

    text: str
    urgent: bool = True


Action = Union[End, StopTasks, Signal, Restart, Move, Order, StartTimer, Say]
