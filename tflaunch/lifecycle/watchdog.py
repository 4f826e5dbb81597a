"""Watches over a run while it runs: asks the agents what their tasks do, says who waits, keeps the time limits.

Pure, and shipped: a detached run is watched over by the agent that decides for it.
"""

# Written for Python 3.8, without `typing` at run time.
from __future__ import annotations

from tflaunch.diagnosis.hangs import Diagnosis, Place
from tflaunch.lifecycle.time_limits import Limits
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, TaskExit, TimedOut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tflaunch.diagnosis.hangs import Sentence
    from tflaunch.protocol.events import Event

DIAL_S = 5.0  # for one connect: it may be lost twice on the way
AWAITED_S = 0.5  # how often the agents are asked while somebody waits for all tasks to be ready


class Watchdog:
    """Fed with what happens and what agents say; asked what to ask them, what to say, and what has run out.

    `places` maps a task to host, address and port, `names` a name among the addresses to what it stands for;
    `limits_s` are those of tflaunch.lifecycle.time_limits.  All times are of one steady clock.
    """

    def __init__(
        self,
        places: Mapping[str, Sequence[Any]],
        names: Mapping[str, Sequence[str]],
        limits_s: Mapping[str, float],
    ) -> None:
        self._data = {"places": dict(places), "names": dict(names), "limits_s": dict(limits_s)}
        self._hosts = {task: place[0] for task, place in places.items()}
        self._diagnosis = Diagnosis({task: Place(*place) for task, place in places.items()}, names)
        self._limits = Limits(places, **limits_s)
        self._looked = 0.0  # when the agents were last asked
        self.awaited = False  # somebody waits for all tasks to be ready

    @property
    def ready(self) -> int:
        """How many tasks have opened their port."""
        return self._limits.ready

    def data(self) -> dict[str, Any]:
        """The arguments of a new one like it, as JSON can hold them."""
        return self._data

    def begin(self, now: float, begun: float | None = None) -> None:
        """The tasks are released, or were at `now`; the run itself began at `begun`, if it was planned anew."""
        self._limits.begin(now, begun)
        self._looked = now  # there is nothing to see yet

    def memory(self) -> dict[str, Any]:
        """What it knows, as JSON can hold it, for `resume`; what the next looks tell anyway is left out."""
        return {"diagnosis": self._diagnosis.memory(), "limits": self._limits.memory()}

    def resume(self, memory: Any) -> None:
        """Go on where another one like it, which has begun, has been; raises ValueError for what is no memory of it."""
        from tflaunch.protocol.fields import anything, check

        check({"diagnosis": anything, "limits": anything}, memory)
        self._diagnosis.resume(memory["diagnosis"])
        self._limits.resume(memory["limits"])

    def happened(self, event: Event, now: float) -> None:
        """A task has started or ended, or is gone with its host; the rest does not matter here."""
        if isinstance(event, TaskExit):
            self._diagnosis.exited(str(event.task), event.exit_code)
            self._limits.exited(str(event.task))
        elif isinstance(event, HostLost):
            for task, host in self._hosts.items():
                if host == event.host:
                    self._diagnosis.lost(task)
                    self._limits.exited(task)
        elif isinstance(event, TaskStarted) and event.attempt:
            self._diagnosis.started(str(event.task))
            self._limits.started(str(event.task), now)

    def said(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        """A message of an agent; only answers to `questions` matter here."""
        if type == "looked":
            self._diagnosis.looked(fields["tasks"], now)
            self._limits.looked(fields["tasks"], now)
        elif type == "dialled":
            self._diagnosis.dialled(host, fields["results"], now)

    def questions(self, hosts: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """(host, type, fields) of what is to be asked now, of hosts that can be reached."""
        if now < self.wake_at():
            return []
        self._looked = now
        reachable = list(hosts)
        asked: list[tuple[str, str, dict[str, Any]]] = [(host, "look", {}) for host in reachable]
        for host, targets in self._diagnosis.dials(now).items():
            if host in reachable:
                asked.append((host, "dial", {"key": "", "targets": targets, "patience_s": DIAL_S}))
        return asked

    def sentences(self, now: float) -> list[Sentence]:
        """What is new to say about who waits for whom."""
        return self._diagnosis.sentences(now)

    def next_event(self, now: float) -> TimedOut | None:
        """The time limit that has been reached, if any."""
        limit = self._limits.reached_limit(now)
        if limit is None:
            return None
        return TimedOut(limit.reason, tuple(map(TaskId.parse, limit.tasks)), limit.states)

    def wake_at(self) -> float:
        """When there is something to ask at the latest."""
        rest_s = self._limits.look_s
        return self._looked + (min(AWAITED_S, rest_s) if self.awaited else rest_s)
