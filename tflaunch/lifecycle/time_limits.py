"""The time limits that a user sets for a run, and which one has been reached; no I/O, no clock.

    --timeout          the whole run, from the release of its tasks
    --startup-timeout  until each task listens on its port (or, if it has none, has written something)
    --stall-timeout    without output of any task: many programs let only their chief talk, and ps are silent

TensorFlow's own "still waiting" lines are no output: a run that hangs writes one every 10 s.
"""

# Written for Python 3.8, without `typing` at run time: an agent may have to do this, too.
from __future__ import annotations

from tflaunch.diagnosis.hangs import FRESH_S, LOOK_S, waits_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, NamedTuple

    class Strike(NamedTuple):
        reason: str
        tasks: tuple[str, ...]  # the ones it is about
        states: tuple[str, ...]  # of each: `state S, in futex_do_wait`, or "" where nothing has been seen
else:
    from collections import namedtuple

    Strike = namedtuple("Strike", "reason tasks states")

NAMES_SHOWN = 4
NEVER = float("-inf")


class Limits:
    """Fed with looks and exits; asked what has been reached. 0 is no limit; all times are of one steady clock."""

    def __init__(
        self, tasks: Iterable[str], timeout_s: float = 0.0, startup_s: float = 0.0, stall_s: float = 0.0
    ) -> None:
        self.timeout_s = timeout_s
        self.startup_s = startup_s
        self.stall_s = stall_s
        limits = [limit / 4 for limit in (startup_s, stall_s) if limit]
        self.look_s = max(0.25, min([LOOK_S, *limits]))  # how often the agents are to be asked
        self._begun: float | None = None
        self._started = dict.fromkeys(tasks, 0.0)  # those that live
        self._seen: dict[str, float] = {}  # task -> its last look
        self._ready: set[str] = set()
        self._states: dict[str, str] = {}
        self._spoke: dict[str, float] = {}  # task -> when it last wrote something that counts

    def begin(self, now: float, begun: float | None = None) -> None:
        """All tasks are released; the run itself began at `begun`, if it was planned anew."""
        self._begun = now if begun is None else begun
        for task in self._started:
            self._started[task] = self._spoke[task] = now

    def memory(self) -> dict[str, Any]:
        """What it knows, as JSON can hold it, for `resume`; without what is seen anew by the next looks."""
        return {"started": self._started, "ready": sorted(self._ready), "spoke": self._spoke}

    def resume(self, memory: Any) -> None:
        """Go on where another one of these tasks, which has begun, has been; raises ValueError for no memory of it."""
        from tflaunch.protocol.fields import Each, a_number, check, of_the_run

        a_task = of_the_run("a task", self._started)
        times = Each(a_task, a_number)
        check({"started": times, "ready": [a_task], "spoke": times}, memory)
        self._started, self._ready, self._spoke = memory["started"], set(memory["ready"]), memory["spoke"]

    def started(self, task: str, now: float) -> None:
        """A task was started again."""
        self._started[task] = self._spoke[task] = now
        self._ready.discard(task)
        self._seen.pop(task, None)

    def exited(self, task: str) -> None:
        """A task has ended."""
        self._started.pop(task, None)

    def looked(self, tasks: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """What an agent has seen of its tasks (see tflaunch.agent.tasks.look)."""
        for task, look in tasks.items():
            self._seen[task] = now
            self._states[task] = _state(look)
            if look["listens"] or (look["listens"] is None and look["log_bytes"]):
                self._ready.add(task)
            if look["log_bytes"] and not waits_for(look["says"]):
                self._spoke[task] = max(self._spoke.get(task, 0.0), now - look["quiet_s"])

    @property
    def ready(self) -> int:
        """How many of the tasks that live have opened their port (or, if they have none, written something)."""
        return len(self._ready & self._started.keys())

    def strike(self, now: float) -> Strike | None:
        """The limit that has been reached, if any."""
        if self._begun is None or not self._started:
            return None
        living = tuple(self._started)
        if self.timeout_s and now - self._begun >= self.timeout_s:
            return self._strike(f"the run has taken {self.timeout_s:g} s (--timeout)", living)
        if self.startup_s:
            late = tuple(
                task
                for task in living
                if task not in self._ready
                and now - self._started[task] >= self.startup_s
                and now - self._seen.get(task, NEVER) <= FRESH_S
            )
            if late:
                have, port = ("has", "its port") if len(late) == 1 else ("have", "their ports")
                limit = f"{self.startup_s:g} s after the start (--startup-timeout)"
                return self._strike(f"{_names(late)} {have} not opened {port} {limit}", late)
        if self.stall_s and all(now - self._seen.get(task, NEVER) <= FRESH_S for task in living):
            quiet_s = now - max(self._spoke[task] for task in self._spoke)
            if quiet_s >= self.stall_s:
                return self._strike(
                    f"no task has written anything for {quiet_s:.0f} s (--stall-timeout)", living
                )
        return None

    def _strike(self, reason: str, tasks: tuple[str, ...]) -> Strike:
        return Strike(reason, tasks, tuple(self._states.get(task, "") for task in tasks))


def _state(look: Mapping[str, Any]) -> str:
    """Of the task's own process, and the kernel function that it waits in."""
    if not look["processes"]:
        return ""
    state = f"state {look['processes'][0][2]}"
    return f"{state}, in {look['waits_in']}" if look["waits_in"] else state


def _names(tasks: tuple[str, ...]) -> str:
    shown = ", ".join(tasks[:NAMES_SHOWN])
    return f"{shown} and {len(tasks) - NAMES_SHOWN} more" if len(tasks) > NAMES_SHOWN else shown
