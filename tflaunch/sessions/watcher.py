"""What a command shows to the person, or the program, that watches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, TaskExit

SLOTS = "waiting for slots"  # a step that may take hours; its `line` says why


class ProgressWatcher(Protocol):
    """Shows how far a step has come."""

    def phase(
        self,
        name: str,
        done: int,
        total: int,
        note: str = "",
        *,
        moved: tuple[int, int] | None = None,
        line: str = "",
    ) -> None: ...


class Watcher(ProgressWatcher, Protocol):
    """Shows what happens, and asks the user; `tflaunch.documents.reporter.Reporter` says what each method promises."""

    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def slowed(self, text: str) -> None: ...
    def say(self, text: str) -> None: ...

    @property
    def can_ask(self) -> bool: ...
    def ask(self, question: str) -> None: ...
    def end_question(self, typed: bool) -> None: ...

    def log(
        self,
        task: TaskId,
        host: str,
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None = None,
        *,
        attempt: int = 0,
    ) -> None: ...
    def log_end(self, task: TaskId) -> None: ...
    def joined(self, tasks: int, since_s: float, output_s: float | None) -> None: ...
    def started(self, started: TaskStarted) -> None: ...
    def exited(self, exit: TaskExit) -> None: ...
    def unreachable(self, host: str, reason: str) -> None: ...
    def back(self, host: str, away_s: float) -> None: ...
    def lost(self, lost: HostLost) -> None: ...
    def tensorboard(self, run_id: str, url: str, host: str, logdir: str) -> None: ...
