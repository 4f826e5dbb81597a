"""What happens to a run, as events for a program."""

from __future__ import annotations

import contextlib
import io
import json
import queue
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO, cast

from tflaunch.documents.json_lines import JsonReporter
from tflaunch.documents.log_keeping import Options
from tflaunch.documents.writer import Stream

if TYPE_CHECKING:
    from tflaunch.documents.json_events import Event
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.protocol.events import TaskStarted
    from tflaunch.protocol.job import TaskId
    from tflaunch.protocol.outcome import Outcome

EVENTS_KEPT = 10_000  # while nobody reads them; then the hosts wait with their logs
_ALL = Options(quiet=False, only=None, show_host=False, grep=None, bare=False)


class Events(io.TextIOBase):
    """The stdout of a reporter, one JSON object a line, for another thread to read."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._queue: queue.Queue[str | None] = queue.Queue(EVENTS_KEPT)
        self._rest = ""
        self._dropping = False

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._put(line)
        return len(text)

    def fileno(self) -> int:
        raise io.UnsupportedOperation("no file")

    def end(self) -> None:
        """After this no more events come."""
        self._put(None)

    def discard(self) -> None:
        """Drop what is not read, and what comes."""
        self._dropping = True
        with contextlib.suppress(queue.Empty):
            while True:
                if self._queue.get_nowait() is None:
                    self._queue.put(None)
                    return

    def keep(self) -> None:
        """Keep what comes from now on."""
        self._dropping = False

    def __iter__(self) -> Iterator[Event]:  # type: ignore[override]
        self.keep()
        while (line := self._queue.get()) is not None:
            yield json.loads(line)
        self._queue.put(None)  # for whoever iterates again

    def _put(self, line: str | None) -> None:
        while line is None or not self._dropping:
            try:
                self._queue.put(line, timeout=0.2)
            except queue.Full:
                continue
            return


class EventReporter(JsonReporter):
    """Gives events; keeps plans and outcomes as objects."""

    def __init__(self, events: Events) -> None:
        self.plans: list[ClusterPlan] = []
        self.outcomes: list[Outcome] = []
        self._started: set[TaskId] = set()
        super().__init__(_ALL, Stream(cast("TextIO", events)), Stream(io.StringIO()))

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        self.plans.append(plan)
        super().plan(plan, brief=brief)

    @property
    def all_started(self) -> bool:
        """Whether every task of the plan has been started."""
        return bool(self.plans) and len(self._started) == len(self.plans[-1].tasks)

    def started(self, started: TaskStarted) -> None:
        self._started.add(started.task)
        super().started(started)

    def report(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        super().report(outcome)
