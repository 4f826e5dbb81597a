"""What the reporters for people and for programs both do with the logs of tasks.

They join bytes to whole lines, show a progress bar now and then, and show the end of a task after its output.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tflaunch.documents.log_tail import meaning_of
from tflaunch.documents.writer import Stream, Writer
from tflaunch.ends.known_end import NOWHERE, Here
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome, TaskExit, how
from tflaunch.text.lines import LineAssembler

if TYPE_CHECKING:
    from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan

_PROGRESS_S = (0.5, 8.0)  # from one view of a progress bar to the next: at first, and at most
# A task's end is shown once all its output is here, but at most so long after (its last output, the end).
_HELD_S = (3.0, 15.0)
_ENDS_READ = 8


@dataclass(frozen=True)
class Options:
    """Which lines of logs are shown, and how, and what else a reporter may leave out."""

    # Show no logs.
    quiet: bool = False
    # Show the logs of these tasks; of all where none is named.
    only: Collection[TaskId] | None = None
    # Name the host in each line.
    show_host: bool = False
    # Show only lines that match.
    grep: re.Pattern[str] | None = None
    # Put nothing in front of them.
    bare: bool = False
    # On a terminal, leave out and count the lines that TensorFlow writes at each start, and those that several tasks
    # write alike.
    fold: bool = False
    # With --json, print one object at the end instead of a line for each event, for a dry run.
    one_document: bool = False
    # Show also the warnings that earlier runs have shown (Reporter.warn_once).
    repeat: bool = False

    def wanted(self, lines: str) -> str:
        """Return those of the lines that match `grep`, each with its newline."""
        if self.grep is None:
            return lines
        return "".join(line + "\n" for line in lines.split("\n")[:-1] if self.grep.search(line))

    def shows(self, task: TaskId) -> bool:
        """Return whether the logs of a task are shown."""
        return not self.quiet and (not self.only or task in self.only)


@dataclass
class _Log:
    """What the writer's thread knows of one task's log."""

    host: str
    assembler: LineAssembler
    attempt: int = 0
    offset: int | None = None  # of the next byte
    moved: float = 0.0  # when the last piece came
    show_progress_at: float = 0.0
    progress_every_s: float = _PROGRESS_S[0]


@dataclass
class _Held:
    """What is shown later: the end of a task, which waits for its output, or what comes after such an end."""

    show: Callable[[int], None]  # takes how many bytes of the output are still to come
    exit: TaskExit | None
    since: float


class LogReporter:
    """Joins the bytes of logs to lines, and keeps all that is shown in order; its two subclasses show it."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        self._options = options
        self._raw = False  # a log goes to stdout byte for byte
        self._logs: dict[TaskId, _Log] = {}
        self._rewriting: set[TaskId] = set()
        self._held: deque[_Held] = deque()
        self._ends: dict[tuple[TaskId, int], TaskExit] = {}  # (task, attempt) -> its end; output is to come
        self._through: dict[TaskId, int] = {}  # task -> the attempt up to which no more output comes
        self._tasks: dict[TaskId, TaskPlan] = {}
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
        def end() -> None:
            self._log_end(task)
            self._through[task] = self._logs[task].attempt if task in self._logs else 0

        self._writer.put("log", end)

    def _take_plan(self, plan: ClusterPlan) -> list[str]:
        """Remember the tasks of the plan; return a sentence for each `--only` that the plan lacks."""
        self._tasks = {task.id: task for task in plan.tasks}
        strange = frozenset(self._options.only or ()) - self._tasks.keys()
        so = ", so nothing is shown" if strange and strange == frozenset(self._options.only or ()) else ""
        return [f"--only {task}: the plan has {tasks_there(task.job, plan)}{so}" for task in sorted(strange)]

    def _next_step(self, outcome: Outcome) -> str:
        first = outcome.first_failure
        if not isinstance(first, TaskExit):
            return ""
        ends = list(outcome.exits.values())
        held = [f"{host}: {gpu.text}" for host, gpus in outcome.gpus.items() for gpu in gpus]
        said = meaning_of(first, self._tasks.get(first.task), self._here(first.host), ends, held)
        if said.cause:
            return said.text
        # An error that follows from another: which of the tasks that failed, too, names a cause?
        failed = [exit for exit in ends if exit.exit_code and exit != first and not exit.stopped]
        for exit in failed[:_ENDS_READ]:  # each log takes its time, and hosts choose what is in it
            other = meaning_of(exit, self._tasks.get(exit.task), self._here(exit.host), ends, held)
            if other.cause:
                return f"{exit.task} on {exit.host} {how(exit)}, which may be the cause: {other.text}"
        return said.text

    def _here(self, host: str) -> Here:
        if not self._code:
            return NOWHERE
        from tflaunch.ends.here import where_file_lies, where_module_lies

        directory, program = Path(self._code["directory"]), self._code["program"]
        return Here(
            lambda module: where_module_lies(module, directory, program),
            lambda path: where_file_lies(path, directory, program, host),
        )

    def close(self, wait: bool = True) -> None:
        def show() -> None:
            self._show_held(all_of_them=True)

        self._writer.put("message", show)
        self._writer.close(wait)

    def _in_turn(self, show: Callable[[], None], last: bool = False) -> None:
        """Show something after all that is held back; `last`: it is the last of the run, so wait for no output."""

        def take() -> None:
            self._held.append(_Held(lambda _: show(), None, 0.0))
            self._show_held(all_of_them=last)

        self._writer.put("message", take)

    def _behind_output(self, exit: TaskExit, show: Callable[[int], None]) -> None:
        """Show the end of a task once all its output is shown, or has not come in time (_HELD_S).

        `show` takes how many bytes of the output are still to come.
        """

        def end() -> None:
            self._ends[exit.task, exit.attempt] = exit
            self._maybe_end_line(exit.task)

        def take() -> None:
            self._held.append(_Held(show, exit, time.monotonic()))
            self._show_held()

        self._writer.put("log", end)
        self._writer.put("message", take)

    # From here on: in the writer's thread.

    def _show_held(self, all_of_them: bool = False) -> float | None:
        """Show what is held back and due; return the seconds until the next is due (None: none is held)."""
        while self._held:
            first, missing, left_s = self._held[0], 0, 0.0
            if first.exit is not None and (missing := self._still_to_come(first.exit)):
                log, now = self._logs.get(first.exit.task), time.monotonic()
                moved = max(first.since, log.moved) if log is not None else first.since
                left_s = min(moved + _HELD_S[0], first.since + _HELD_S[1]) - now
                through = self._through.get(first.exit.task, -1) >= first.exit.attempt
                if not (all_of_them or through or left_s <= 0):
                    return left_s
            self._held.popleft()
            if first.exit is not None:
                self._ends.pop((first.exit.task, first.exit.attempt), None)
            first.show(missing)
        return None

    def _still_to_come(self, exit: TaskExit) -> int:
        """Return how many bytes of an attempt's output are not here yet; 0 where the task's log is not shown."""
        if self.broken or not self._options.shows(exit.task):
            return 0
        log = self._logs.get(exit.task)
        attempt, offset = (log.attempt, log.offset or 0) if log is not None else (0, 0)
        if attempt > exit.attempt:
            return 0
        return max(0, exit.log_bytes - (offset if attempt == exit.attempt else 0))

    def _maybe_end_line(self, task: TaskId) -> None:
        """Show the last line of an attempt that has ended, even without a newline, once all its output is here."""
        log = self._logs.get(task)
        exit = self._ends.get((task, log.attempt)) if log is not None else None
        if exit is not None and not self._still_to_come(exit):
            del self._ends[task, exit.attempt]
            self._writer.end_batch()
            self._log_end(task)

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
        log.offset, log.moved = offset + len(data), time.monotonic()
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
        if self._ends:
            self._maybe_end_line(task)

    def _log_end(self, task: TaskId) -> None:
        log = self._logs.get(task)
        if log is None:
            return
        self._rewriting.discard(task)
        if lines := self._options.wanted(log.assembler.end()):
            self._show_lines(task, log.host, lines)

    def _tick(self) -> float | None:
        """Show the progress bars and ends of tasks that are due; return the seconds until the next is."""
        waits = [each for each in (self._show_progress(), self._show_held()) if each is not None]
        return min(waits, default=None)

    def _show_progress(self) -> float | None:
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
        if error.errno != errno.EPIPE:  # EPIPE is no error: `| head` has enough
            reason = os.strerror(error.errno or 0)
            self._writer.err(f"cannot write to stdout: {reason}; the run goes on, its logs are on record\n")


def tasks_there(job: str, plan: ClusterPlan) -> str:
    """Return the tasks of a job, or of all jobs where there is none of that name: `worker/0 to worker/3`."""
    jobs: dict[str, list[TaskId]] = {}
    for task in plan.tasks:
        jobs.setdefault(task.id.job, []).append(task.id)
    chosen = [jobs[job]] if job in jobs else jobs.values()
    return ", ".join(f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else str(ids[0]) for ids in chosen)
