"""Which part of the logs of a run a user wants to see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tflaunch.protocol.job import TaskId
from tflaunch.runs.run_states import RunState

LINES_OF_ENDED = 30  # of all tasks together, where a run that is over is shown in brief


@dataclass(frozen=True)
class WantedLogs:
    """Which part of the logs to show: from `since` (epoch seconds), or the last `tail` lines of each task, or all.

    brief: of a run that is over, only LINES_OF_ENDED lines, where neither `since` nor `tail` says how much.
    """

    tasks: tuple[TaskId, ...] = ()  # empty: all
    since: float | None = None
    tail: int | None = None
    brief: bool = False

    def shortens(self, run: RunState) -> bool:
        """Whether only the end of that run's logs is shown."""
        return self.brief and not run.alive and self.since is None and self.tail is None

    def of(self, run: RunState) -> WantedLogs:
        """The same wishes, where this run is shown: in brief, each of its tasks has an equal share of the lines."""
        if not self.shortens(run):
            return self
        return replace(self, tail=-(-LINES_OF_ENDED // max(1, len(self.tasks or run.tasks))))

    def fields(self) -> dict[str, Any]:
        """These wishes, as fields of the message `watch`."""
        tasks = [str(task) for task in self.tasks] or None
        return {"tasks": tasks, "since": self.since, "tail": self.tail}
