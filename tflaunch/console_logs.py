"""What both styles of console do with the logs of tasks: whole lines, and progress bars now and then."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.console_pages import (
    advice,
    tasks_there,
)
from tflaunch.job import TaskId
from tflaunch.log_lines import LineAssembler
from tflaunch.outcome import Outcome, TaskExit
from tflaunch.writer import Stream, Writer

if TYPE_CHECKING:
    from tflaunch.plan import ClusterPlan

_PROGRESS_S = (0.5, 8.0)  # a progress bar is shown this often at first, and at last


@dataclass(frozen=True)
class Options:
    quiet: bool
    only: frozenset[TaskId] | None
    show_host: bool
    grep: re.Pattern[str] | None
    bare: bool

    def wanted(self, lines: str) -> str:
        """Those of these lines, each with its newline, that are wanted."""
        if self.grep is None:
            return lines
        return "".join(line + "\n" for line in lines.split("\n")[:-1] if self.grep.search(line))

    def shows(self, task: TaskId) -> bool:
        return not self.quiet and (self.only is None or task in self.only)


@dataclass
class _Log:
    """What is known of one task's log by the writer's thread."""

    host: str
    assembler: LineAssembler
    attempt: int = 0
    offset: int | None = None  # of the next byte
    show_progress_at: float = 0.0
    progress_every_s: float = _PROGRESS_S[0]


class LogReporter:
    """What both styles do with logs: put lines together, and show progress bars now and then."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        self._options = options
        self._raw = False  # a log goes to stdout byte for byte
        self._logs: dict[TaskId, _Log] = {}
        self._rewriting: set[TaskId] = set()
        self._interpreters: dict[TaskId, str] = {}
        self._code: Mapping[str, Any] = {}
        self._writer = Writer(stdout, stderr, self._tick, self._break)

    @property
    def broken(self) -> bool:
        return self._writer.stdout.broken is not None

    def code(self, data: Mapping[str, Any]) -> None:
        self._code = data

    def log(
        self,
        task: TaskId,
        host: str,
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None = None,
        *,
        attempt: int = 0,
    ) -> None:
        self._writer.put("log", lambda: self._log(task, host, offset, data, written, attempt=attempt))

    def log_end(self, task: TaskId) -> None:
        self._writer.put("log", lambda: self._log_end(task))

    def _take_plan(self, plan: ClusterPlan) -> list[str]:
        """Remember what is needed of the plan; returns what does not fit it."""
        self._interpreters = {task.id: task.argv[0] for task in plan.tasks}
        strange = (self._options.only or frozenset()) - self._interpreters.keys()
        return [f"--only {task}: the plan has {tasks_there(task.job, plan)}" for task in sorted(strange)]

    def _next_step(self, outcome: Outcome) -> str:
        first = outcome.first_failure
        if not isinstance(first, TaskExit):
            return ""
        return advice(first, self._interpreters.get(first.task), self._where_it_lies)

    def _where_it_lies(self, module: str) -> str:
        if not self._code:
            return ""
        from tflaunch.code_page import where_it_lies

        return where_it_lies(module, Path(self._code["directory"]), self._code["program"])

    def close(self, wait: bool = True) -> None:
        self._writer.close(wait)

    # From here on: in the writer's thread.

    def _assembler(self) -> LineAssembler:
        raise NotImplementedError

    def _show_lines(self, task: TaskId, host: str, lines: str, partial: bool = False) -> None:
        raise NotImplementedError

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        raise NotImplementedError

    def _log(
        self,
        task: TaskId,
        host: str,
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None,
        *,
        attempt: int,
    ) -> None:
        if written is not None:
            self._writer.after(lambda: written(len(data)))
        if self.broken or not self._options.shows(task):
            return
        log = self._logs.get(task)
        if log is not None and log.attempt != attempt:
            self._log_end(task)
            log = None
        if log is None:
            log = self._logs[task] = _Log(host, self._assembler(), attempt)
        if log.offset is not None and offset != log.offset:
            if offset > log.offset:
                self._log_end(task)
                self._show_gap(task, host, offset - log.offset)
            data = data[max(0, log.offset - offset) :]
            offset = max(offset, log.offset)
        log.offset = offset + len(data)
        if self._raw:
            self._writer.out_bytes(data)
            return
        lines = self._options.wanted(log.assembler.feed(data))
        if lines:
            log.progress_every_s = _PROGRESS_S[0]
            self._show_lines(task, host, lines)
        if log.assembler.rewriting:
            self._rewriting.add(task)
        else:
            self._rewriting.discard(task)

    def _log_end(self, task: TaskId) -> None:
        log = self._logs.get(task)
        if log is None:
            return
        self._rewriting.discard(task)
        if lines := self._options.wanted(log.assembler.end()):
            self._show_lines(task, log.host, lines)

    def _tick(self) -> float | None:
        """Show the progress bars whose time has come; return when the next one's comes."""
        if not self._rewriting:
            return None
        now = time.monotonic()
        for task in list(self._rewriting):
            log = self._logs[task]
            if now < log.show_progress_at:
                continue
            state = log.assembler.progress()
            self._rewriting.discard(task)
            if state is not None and (line := self._options.wanted(state + "\n")):
                self._show_lines(task, log.host, line, partial=True)
                log.show_progress_at = now + log.progress_every_s
                log.progress_every_s = min(2 * log.progress_every_s, _PROGRESS_S[1])
        if not self._rewriting:
            return None
        return max(0.01, min(self._logs[task].show_progress_at for task in self._rewriting) - now)

    def _break(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:  # `| head` has what it wanted; a full disk is news
            reason = os.strerror(error.errno or 0)
            self._writer.err(f"cannot write to stdout: {reason}; the run goes on, its logs are on record\n")
