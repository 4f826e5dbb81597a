"""The launcher's copies of the logs of a run, in its record."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from tflaunch.protocol.errors import RecordError
from tflaunch.protocol.job import TaskId, log_name
from tflaunch.runs.record_files import sentence

_MOST_OPEN = 64  # a laptop allows 256 descriptors, and every host needs some of them too


@dataclass
class _Log:
    """A log file that is open; only this launcher writes to it."""

    descriptor: int
    size: int


class RecordLogs:
    """The log files of one record: one for each attempt of each task."""

    def __init__(self, directory: Path) -> None:
        self.failure = ""  # why writing stopped; "": it goes on
        self._directory = directory
        self._open: OrderedDict[tuple[TaskId, int], _Log] = OrderedDict()  # least recently used first
        self._skipped: dict[tuple[TaskId, int], int] = {}  # bytes at the beginning of a log that never come

    def path(self, task: TaskId, attempt: int = 0) -> Path:
        """Return where the copy of that log is; the file exists once the task wrote something."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", task.job):
            raise ValueError(f"not a job name: {task.job!r}")
        return self._directory / log_name(task, attempt)

    def of(self, task: TaskId) -> list[Path]:
        """The copies of the logs of its attempts that are here, the first attempt first."""
        first = self.path(task)
        begin, found = len(f"{first.stem}."), {0: first}
        for path in self._directory.glob(f"{first.stem}.*.log"):
            if (attempt := path.stem[begin:]).isdecimal():
                found[int(attempt)] = path
        return [path for _, path in sorted(found.items()) if path.exists()]

    def append(self, task: TaskId, offset: int, data: bytes, attempt: int = 0) -> None:
        """Store bytes that begin at `offset` of the log on the host; what is stored already is not stored twice.

        Missing bytes become a hole in the file, so that its offsets are those of the host's log; only bytes before
        `skip_to` leave none.  Raises RecordError the first time the disk refuses, and stores nothing after that: the
        run goes on, and the host has the log.
        """
        if self.failure:
            return
        try:
            log = self._opened(task, attempt)
            offset -= self._skipped.get((task, attempt), 0)
            known = max(0, log.size - offset)
            rest, at = memoryview(data)[known:], offset + known
            while rest:
                written = os.pwrite(log.descriptor, rest, at)
                rest, at = rest[written:], at + written
                log.size = at
        except OSError as error:
            self.failure = sentence(error)
            raise RecordError(
                f"cannot write {self.path(task, attempt)}: {self.failure}",
                "The run goes on; its logs stay on the hosts, this machine's copies are no longer complete, "
                "and for that its exit code is 73 if nothing else fails.",
            ) from error

    def _opened(self, task: TaskId, attempt: int) -> _Log:
        log = self._open.get((task, attempt))
        if log is None:
            while len(self._open) >= _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1].descriptor)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path(task, attempt), flags, 0o600)
            log = self._open[task, attempt] = _Log(descriptor, os.fstat(descriptor).st_size)
        self._open.move_to_end((task, attempt))
        return log

    def skip_to(self, task: TaskId, offset: int, attempt: int = 0) -> None:
        """Note that the bytes before `offset` that are not here never come: store what follows without a hole."""
        log = self._open.get((task, attempt))
        try:
            size = log.size if log is not None else self.path(task, attempt).stat().st_size
        except OSError:
            size = 0
        self._skipped[task, attempt] = max(0, offset - size)

    def end(self, task: TaskId, attempt: int = 0) -> None:
        """Close that log: nothing more comes."""
        log = self._open.pop((task, attempt), None)
        if log is not None:
            os.close(log.descriptor)

    def close(self) -> None:
        """Close all logs; may be called twice."""
        for log in self._open.values():
            os.close(log.descriptor)
        self._open.clear()
