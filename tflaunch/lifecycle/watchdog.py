"""Watches over a run: asks the agents what their tasks do, says which task waits for which, keeps the time limits.

Pure, and shipped to hosts: the coordinator watches over a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.hangs import Diagnosis, Place
from tflaunch.lifecycle.time_limits import Limits
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, TaskExit, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tflaunch.diagnosis.hangs import Sentence
    from tflaunch.protocol.events import Event

DIAL_S = 5.0  # for one connect, whose first packet may be lost twice on the way
AWAITED_S = 0.5  # how often the agents are asked while the launcher waits for all tasks to be ready


class Watchdog:
    """The Monitor (lifecycle/driver.py) of a run.

    `places` maps a task to its host, address and port; `names` maps each address that is a host name to its IP
    addresses; `limits_s` are the arguments of time_limits.Limits.  All times are of one steady clock.
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
        self.awaited = False  # the launcher waits for all tasks to be ready

    @property
    def ready(self) -> int:
        """How many tasks have opened their port."""
        return self._limits.ready

    def data(self) -> dict[str, Any]:
        """The arguments of the constructor, as JSON can hold them."""
        return self._data

    def begin(self, now: float, begun: float | None = None) -> None:
        """The tasks were released at `now`; `begun` is when the run began, if it has been planned anew since."""
        self._limits.begin(now, begun)
        self._looked = now  # the first look must not come at once

    def memory(self) -> dict[str, Any]:
        """What has happened, as JSON can hold it, for `resume`; left out is what the next looks show again."""
        return {"diagnosis": self._diagnosis.memory(), "limits": self._limits.memory()}

    def resume(self, memory: Any) -> None:
        """Continue from another watchdog's `memory`; call `begin` first.  Raises ValueError for a wrong one."""
        from tflaunch.protocol.fields import anything, check

        check({"diagnosis": anything, "limits": anything}, memory)
        self._diagnosis.resume(memory["diagnosis"])
        self._limits.resume(memory["limits"])

    def happened(self, event: Event, now: float) -> None:
        """Take note of a task that has started or ended, or is gone with its host; ignore other events."""
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
        """Take note of an answer to `questions`; ignore other messages."""
        if type == "looked":
            self._diagnosis.looked(fields["tasks"], now)
            self._limits.looked(fields["tasks"], now)
        elif type == "dialled":
            self._diagnosis.dialled(host, fields["results"], now)

    def questions(self, hosts: Iterable[str], now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What to ask the agents now: (host, message type, fields); `hosts` are those that can be reached."""
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
        """What the user should know since the last call about tasks that wait."""
        return self._diagnosis.sentences(now)

    def next_event(self, now: float) -> TimedOut | None:
        """The time limit that has been reached, if any."""
        limit = self._limits.reached_limit(now)
        if limit is None:
            return None
        return TimedOut(limit.reason, tuple(map(TaskId.parse, limit.tasks)), limit.states)

    def wake_at(self) -> float:
        """The time by which there is something to ask."""
        rest_s = self._limits.look_s
        return self._looked + (min(AWAITED_S, rest_s) if self.awaited else rest_s)
