"""What the hosts of a run have said to a command that follows it, and what follows from that."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tflaunch.protocol.job import TRIAL, TaskId, deciding
from tflaunch.protocol.outcome import Outcome, Reclaimed, TaskExit, outcome_from
from tflaunch.runs.run_states import RunState
from tflaunch.sessions.watcher import Watcher

NOTES = 200  # at most so many notes of one host are shown


class Heard:
    """The tasks of a run, where they are, how they ended, and how their hosts say that the run ended."""

    def __init__(self, run: RunState, there: Mapping[str, str], watcher: Watcher) -> None:
        """`there`: host that is asked -> host whose directory it has."""
        self._run = run
        self._there = there
        self._watcher = watcher
        self.places = {TaskId.parse(task.task): task.host for task in run.tasks}
        self._at_first = frozenset(self.places.values())  # the hosts that have tasks
        self.tasks: set[TaskId] = set()
        self.exits: dict[TaskId, TaskExit] = {}
        self.over: dict[str, str] = {}  # host -> why nothing more happens there; "": it is swept
        self.replanned = False  # a host was lost, and the launcher makes another plan
        # An agent ended its part because its lease ran out: no launcher or coordinator was heard of.
        self.expired = False
        self.reclaimed: Reclaimed | None = None  # the engine takes a slot back, or has
        self.stopped = False  # somebody ends the run, by `tflaunch stop` for example
        self.gone: set[str] = set()  # hosts where the agent of the run is gone
        self.logs_through: set[str] = set()  # hosts that have sent all their logs
        self.outcomes: dict[str, Mapping[str, Any]] = {}  # host -> how it says that the run ended
        self._notes: dict[str, set[str]] = {}  # host -> texts that were shown
        self._strange: set[str] = set()  # hosts that sent messages about tasks of other hosts

    def outcome(self) -> Outcome | None:
        """How the run ended, as its hosts say; where they differ, the worst that any of them says."""
        outcomes, reclaimed = self.outcomes, self.reclaimed
        if not outcomes and reclaimed is not None and not self.replanned:
            # Who decides for the run was in a slot that is gone.
            seconds = max(0.0, time.time() - self._run.started) if self._run.started else 0.0
            return Outcome(self._run.run_id, "failed", reclaimed.exit_code, seconds, self.exits, reclaimed)
        if not outcomes:
            return None
        worst = max(outcomes.values(), key=lambda each: (each["exit_code"] != 0, each["exit_code"]))
        if differing := sorted(
            host for host in outcomes if outcomes[host]["exit_code"] != worst["exit_code"]
        ):
            others = ", ".join(f"{host} says {outcomes[host]['exit_code']}" for host in differing)
            self._watcher.warn(
                f"the hosts differ about how the run ended: {worst['exit_code']}, but {others}"
            )
        return outcome_from(self._run.run_id, worst, self.exits)

    def outcome_is_known(self, hosts: int, up: Collection[str]) -> bool:
        """Whether most of so many hosts, or all connected ones, have said how the run ended: each gets the outcome."""
        outcomes = self.outcomes
        return 2 * len(outcomes) > hosts or (bool(outcomes) and outcomes.keys() >= set(up))

    @property
    def decider(self) -> str:
        """The host whose agent decides for a detached run, as `Starter.entrust` chooses it."""
        chosen = min(self.places, key=deciding, default=None)
        return self.places[chosen] if chosen is not None else ""

    @property
    def decider_is_gone(self) -> bool:
        """Whether nobody is left who could say how a detached run has ended."""
        gone = {self._there[host] for host in self.gone}
        return self._run.detached and self.decider in gone

    def owns(self, host: str, tasks: Iterable[str]) -> bool:
        """Whether the plan lets that host have those tasks; any host may have trials, and any task after a new plan."""
        there = self._there[host]
        for task in map(TaskId.parse, tasks):
            place = self.places.get(task, there)
            if place != there and task.job != TRIAL and not self.replanned:
                if host not in self._strange and not self.left_behind(host):
                    self._strange.add(host)
                    self._watcher.warn(f"{host} speaks of {task}, which is on {place}: not shown")
                return False
        return True

    def left_behind(self, host: str) -> bool:
        """Whether no task is on that host: all that it may tell of them is from before they moved."""
        return self._there[host] not in self.places.values()

    def move(self, host: str, tasks: Iterable[str]) -> list[str]:
        """A host has taken over these tasks; returns the hosts that are lost by it, and not waited for.

        Only a host that has no tasks of its own can take some over.
        """
        there = self._there[host]
        if not tasks or there in self._at_first:
            return []
        left = {self.places.get(task, there) for task in map(TaskId.parse, tasks)} - {there}
        self.places.update(dict.fromkeys(map(TaskId.parse, tasks), there))
        lost = [
            asked for asked, name in self._there.items() if name in left and name not in self.places.values()
        ]
        self.over.update(dict.fromkeys(lost, "its tasks have moved"))
        self.logs_through.update(lost)
        return lost

    def note(self, host: str, text: str) -> list[str]:
        """A host's note, where it is new and one of its first NOTES; named, where it is not of the decider."""
        notes = self._notes.setdefault(host, set())
        if text in notes or len(notes) >= NOTES:
            return []
        notes.add(text)
        return [text if self._there[host] == self.decider else f"{host}: {text}"]
