"""A run whose slots are over, as this machine has kept it: it can be followed only to the end that is on record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome, TaskExit, exits_from, outcome_from
from tflaunch.runs.listing import kept_state
from tflaunch.runs.record import Record
from tflaunch.runs.record_files import reading
from tflaunch.runs.record_list import list_runs
from tflaunch.runs.wanted import WantedLogs
from tflaunch.sessions.watcher import Watcher

if TYPE_CHECKING:
    from tflaunch.runs.run_states import RunState

PIECE_BYTES = 1024 * 1024


class KeptRun:
    """What a Follower is for a run on hosts: it shows the logs and the end that this machine has."""

    replanned = False

    def __init__(self, run: str, watcher: Watcher, wanted: WantedLogs) -> None:
        """Raises UsageError if the run is not on record here, or is not over; RecordError."""
        self._record = Record.open(run)
        info = next(each for each in list_runs() if each.run_id == self._record.run_id)
        self.run: RunState = kept_state(info)
        self._watcher = watcher
        self._wanted = wanted.of(self.run)
        self.lost: list[str] = []
        self.troubles: list[str] = []
        self.missed: dict[str, ConnectError] = {}
        self.unreached: dict[str, ConnectError] = {}

    @property
    def exits(self) -> Mapping[TaskId, TaskExit]:
        """The last exit of each task that has ended.  Raises RecordError."""
        with reading(self._record.path):
            return exits_from(self._record.outcome() or {})

    @property
    def unknown(self) -> list[TaskId]:
        """The tasks whose logs are wanted and that the run does not have."""
        known = {task.task for task in self.run.tasks}
        return [task for task in self._wanted.tasks if str(task) not in known]

    def host(self, name: str) -> Host:
        """No host of it can be reached any more."""
        raise UsageError(f"{name}: the slots of {self.run.run_id} are over")

    def follow(self, events: bool = True) -> Outcome | None:
        """Show the logs; returns how the run ended, if that is known.  Raises RecordError."""
        self.print_logs()
        told = self._record.outcome()
        if not events or told is None:
            return None
        with reading(self._record.path):
            outcome = outcome_from(self.run.run_id, told, self.exits)
        return dataclasses.replace(outcome, record=str(self._record.path))

    def print_logs(self) -> None:
        """Show what the tasks have printed, as far as it came here."""
        shown = False
        for state in self.run.tasks:
            task = TaskId.parse(state.task)
            if self._wanted.tasks and task not in self._wanted.tasks:
                continue
            shown |= self._print(task, state.host, state.attempts)
        if not shown:
            self._watcher.note(
                "what its tasks printed has ended with their slots; the engine's log of each slot may have it"
            )

    def _print(self, task: TaskId, host: str, attempts: int) -> bool:
        paths = [self._record.logs.path(task, attempt) for attempt in range(attempts)]
        texts = [path.read_bytes() if path.exists() else b"" for path in paths]
        skip = _before_tail(b"".join(texts), self._wanted.tail)
        for attempt, text in enumerate(texts):
            for at in range(min(skip, len(text)), len(text), PIECE_BYTES):
                self._watcher.log(task, host, at, text[at : at + PIECE_BYTES], attempt=attempt)
            skip = max(0, skip - len(text))
        self._watcher.log_end(task)
        return any(texts)


def _before_tail(text: bytes, lines: int | None) -> int:
    """How many bytes come before the last lines."""
    if lines is None:
        return 0
    kept = text.splitlines(keepends=True)
    return len(text) - sum(map(len, kept[len(kept) - lines :])) if lines else len(text)
