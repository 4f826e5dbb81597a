"""What happens to a run, as events for a program."""

from __future__ import annotations

import io
import json
import threading
import time
from collections import deque
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
        self._lines: deque[tuple[str, float]] = deque()  # with when each came, by time.monotonic
        self._ended = self._dropping = False
        self._drops = 0  # how often `discard` was called
        self._changed = threading.Condition()  # held for all of these
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        at = time.monotonic()
        for line in lines:
            self._put(line, at)
        return len(text)

    def fileno(self) -> int:
        raise io.UnsupportedOperation("no file")

    def end(self) -> None:
        """After this no more events come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def discard(self) -> None:
        """Drop what is not read, and what comes."""
        with self._changed:
            self._dropping = True
            self._drops += 1
            self._lines.clear()
            self._changed.notify_all()

    def keep(self) -> None:
        """Keep what comes from now on."""
        with self._changed:
            self._dropping = False

    def __iter__(self) -> Iterator[Event]:  # type: ignore[override]
        return (event for event, _ in self.timed())

    def timed(self) -> Iterator[tuple[Event, float]]:
        """The events, each with when it came, by time.monotonic: their own `time` is of a clock that may be set."""
        self.keep()
        while (found := self._next()) is not None:
            line, at = found
            yield json.loads(line), at

    def _next(self) -> tuple[str, float] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._ended)
            found = self._lines.popleft() if self._lines else None
            self._changed.notify_all()
        return found

    def _put(self, line: str, at: float) -> None:
        # A line that waits for room when `discard` is called is dropped, even if `keep` follows at once.
        with self._changed:
            dropped = self._drops
            self._changed.wait_for(lambda: self._drops > dropped or len(self._lines) < EVENTS_KEPT)
            if not (self._dropping or self._drops > dropped):
                self._lines.append((line, at))
                self._changed.notify_all()


class EventReporter(JsonReporter):
    """Gives events; keeps plans and outcomes as objects, and what has made the run slow."""

    def __init__(self, events: Events) -> None:
        self.plans: list[ClusterPlan] = []
        self.outcomes: list[Outcome] = []
        self.slowness: list[str] = []  # what has made the run slower than it could be, as sentences
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

    def slowed(self, text: str) -> None:
        self.slowness.append(text)
        super().slowed(text)

    def report(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        super().report(outcome)
