"""How a run ends and how a sweep ends: the rules that both state machines share; pure.

Once the end begins (phase `ending`), each agent stops its tasks and purges its host.  All is `over` when every host is
swept or lost.

    Ctrl-C, SIGTERM     the first one begins the end: TERM, KILL after the grace period; the second one kills at once;
                        the third one ends the wait: hosts that have not reported count as lost
    tflaunch stop       begins the end, as the first Ctrl-C does
    an agent is silent  PURGE_MARGIN_S after the grace period, its host counts as lost

Shipped to hosts: the coordinator of a detached run ends it by the same rules.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tflaunch.lifecycle.actions import Action, End, Say, StartTimer
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_TIMEOUT, EXIT_UNCLEAN
from tflaunch.protocol.events import AgentGaveUp, HostSwept, Interrupted, TimerFired
from tflaunch.protocol.outcome import (
    EndedByRule,
    Failure,
    GpuLeft,
    HostLost,
    Outcome,
    Reclaimed,
    TaskExit,
    TimedOut,
)
from tflaunch.protocol.wire import RECLAIM_S

if TYPE_CHECKING:
    from typing import Literal

    from tflaunch.protocol.job import TaskId

PURGE_DUE = "sweep due"  # the timer after which a host that has not reported counts as lost
PURGE_MARGIN_S = 25.0  # for the agents, after the grace period: to kill, to purge, to see the GPUs free
NO_REPORT = "its agent did not report in time"
NOT_AWAITED = "the user told tflaunch not to wait for its agent"


@dataclass(frozen=True)
class Ending:
    """What decides how a run or a sweep ends; the states of both are subclasses."""

    hosts: Mapping[Any, str]  # the values are the hosts
    grace_s: float = 10.0  # from TERM to KILL
    share_gpus: bool = False  # other programs may use the same GPUs
    phase: str = "running"
    first_failure: Failure | None = None
    interrupts: tuple[int, ...] = ()  # signals, in the order in which they came
    lost: Mapping[str, str] = field(default_factory=dict)  # host -> why
    swept: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # host -> processes that could not be killed
    gpus: Mapping[str, tuple[GpuLeft, ...]] = field(
        default_factory=dict
    )  # swept host -> GPUs that are not free

    what = "run"  # what the user calls it

    @property
    def all_hosts(self) -> frozenset[str]:
        """The hosts that have an agent, with tasks or without."""
        return frozenset(self.hosts.values())

    @property
    def alive(self) -> str:
        """The tasks that have not ended, for the user: `3 tasks`."""
        raise NotImplementedError

    @property
    def status(self) -> Literal["succeeded", "failed", "interrupted"]:
        """How it ends, as far as is known now."""
        raise NotImplementedError

    @property
    def final_exits(self) -> Mapping[TaskId, TaskExit]:
        """The last exit of each task that has ended."""
        raise NotImplementedError

    @property
    def restart_count(self) -> int:
        """How often tasks, or the whole cluster, were started again."""
        raise NotImplementedError

    @property
    def unreported(self) -> list[str]:
        """The hosts that are neither swept nor lost, sorted."""
        return sorted(self.all_hosts - self.swept.keys() - self.lost.keys())

    def exit_code(self, clean: bool) -> int:
        """The launcher's exit code, as protocol/errors.py lists it; `clean`: nothing of the run is alive anywhere."""
        if self.status == "interrupted":
            return EXIT_INTERRUPTED if self.interrupts[0] == signal.SIGINT else 128 + self.interrupts[0]
        if isinstance(self.first_failure, (TaskExit, Reclaimed, EndedByRule)):
            return self.first_failure.exit_code
        if isinstance(self.first_failure, TimedOut):
            return EXIT_TIMEOUT
        return 0 if clean and self.first_failure is None else EXIT_UNCLEAN


S = TypeVar("S", bound=Ending)


def step(state: S, event: object) -> tuple[S, list[Action]] | None:
    """The next state and what to do, for an event that runs and sweeps treat alike; None for any other event."""
    if isinstance(event, HostSwept):
        return _swept(state, event), []
    if isinstance(event, Interrupted):
        return _interrupted(state, event)
    if isinstance(event, TimerFired) and event.name == PURGE_DUE:
        return (without_unreported(state, NO_REPORT) if state.phase == "ending" else state), []
    if isinstance(event, HostLost):
        if event.host in state.swept or event.host in state.lost:
            return state, []
        if state.phase in ("ending", "over"):
            return lose(state, {event.host: event.reason}), []
    if isinstance(event, AgentGaveUp):
        if state.phase in ("ending", "over"):
            return state, []
        if event.asked:
            state, actions = end(dataclasses.replace(state, interrupts=(signal.SIGTERM,)), state.grace_s)
            return state, [Say(f"{event.host}: {event.reason}"), *actions]
    return None


def end(state: S, grace_s: float, *, stacks: bool = False) -> tuple[S, list[Action]]:
    """Begin the end: every agent stops its tasks, purges its host and reports, or it counts as lost."""
    actions: list[Action] = [End(grace_s, stacks), StartTimer(PURGE_DUE, grace_s + PURGE_MARGIN_S)]
    return _over_if_all_reported(dataclasses.replace(state, phase="ending")), actions


def grace_left(event: AgentGaveUp) -> float:
    """The grace of the tasks where an engine takes a slot back."""
    return max(0.0, (event.ends_in or 0.0) - RECLAIM_S)


def lose(state: S, reasons: Mapping[str, str]) -> S:
    """The next state, in which these hosts are lost, each for its reason."""
    return _over_if_all_reported(dataclasses.replace(state, lost={**state.lost, **reasons}))


def without_unreported(state: S, reason: str) -> S:
    """The next state, in which all hosts that have not reported are lost, for that reason."""
    return lose(state, dict.fromkeys(state.unreported, reason))


def _swept(state: S, event: HostSwept) -> S:
    lost = {host: reason for host, reason in state.lost.items() if host != event.host}  # it reports after all
    return _over_if_all_reported(
        dataclasses.replace(
            state,
            swept={**state.swept, event.host: event.survivors},
            gpus={**state.gpus, event.host: event.gpus},
            lost=lost,
        )
    )


def _interrupted(state: S, event: Interrupted) -> tuple[S, list[Action]]:
    state = dataclasses.replace(state, interrupts=(*state.interrupts, event.signal))
    name = "Ctrl-C" if event.signal == signal.SIGINT else signal.Signals(event.signal).name
    alive, once_more = state.alive, "once more kills at once"
    if len(state.interrupts) == 1:
        if state.phase == "ending":
            return state, [Say(f"{name}: the {state.what} is being stopped already; {once_more}")]
        state, actions = end(state, state.grace_s)
        text = f"{name}: stopping {alive}, {state.grace_s:g} s to end by themselves; {once_more}"
        return state, [Say(text), *actions]
    if len(state.interrupts) == 2:
        return state, [Say(f"{name} again: killing {alive}"), *end(state, 0.0)[1]]
    return dataclasses.replace(without_unreported(state, NOT_AWAITED), phase="over"), []


def _over_if_all_reported(state: S) -> S:
    if state.phase == "ending" and not state.unreported:
        return dataclasses.replace(state, phase="over")
    return state


def outcome_of(state: Ending, run_id: str, seconds: float, **more: Any) -> Outcome:
    """How a run or a sweep that is over has ended.

    `more` are fields of Outcome that only the caller knows; `survivors` and `gpus` among them replace what the agents
    have reported.
    """
    survivors = more.pop("survivors", {host: left for host, left in state.swept.items() if left})
    gpus = _gpus_of_concern(state, more.pop("gpus", state.gpus))
    own_gpus = any(gpu.own for left in gpus.values() for gpu in left)
    clean = not (more.get("unverified") or survivors or own_gpus)
    return Outcome(
        run_id,
        state.status,
        state.exit_code(clean),
        seconds,
        exits=state.final_exits,
        first_failure=state.first_failure,
        survivors=survivors,
        gpus=gpus,
        restarts=state.restart_count,
        **more,
    )


def _gpus_of_concern(
    state: Ending, gpus: Mapping[str, tuple[GpuLeft, ...]]
) -> dict[str, tuple[GpuLeft, ...]]:
    """The GPUs that are not free; of shared ones only those that the run itself still uses."""
    found = {
        host: tuple(gpu for gpu in left if gpu.own or not state.share_gpus) for host, left in gpus.items()
    }
    return {host: left for host, left in found.items() if left}
