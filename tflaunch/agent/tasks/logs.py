"""The logs of a task: one plain file for each attempt, read by offset, never locked; the task may truncate it."""

import os
import time

from tflaunch.agent.host.journal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from tflaunch.agent.host.rundir import RunDirectory

TAIL_BYTES = 64 * 1024
CLOCK_S = 5.0  # how precisely the agent knows when a byte was written
MARK_BYTES = 64  # compared before the known end, to recognize a file that was truncated and has grown again
_PIECE = 64 * 1024


class _File:
    """The log of one attempt.  Offsets count all that was written, so they never go back when the task truncates it.

    While its disk gives an error, nothing new is in it: that ends no task.
    """

    __slots__ = (
        "_ahead",
        "_mark",
        "_size",
        "_told",
        "begins",
        "cut_at",
        "descriptor",
        "modified",
        "path",
        "whole",
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1
        self.begins = 0  # the offset of the first byte that is still in the file
        self.cut_at = 0.0  # when the agent last found the file truncated (epoch seconds); 0: never
        self.whole = None  # type: Optional[int]  # the offset of the end, once nothing more is written
        self._ahead = 0  # the offset of a byte minus its place in the file
        self._size = self.modified = 0  # (in ns) of the file, when the agent last looked
        self._mark = b""  # the file's last bytes at that time
        self._told = False  # that it cannot be read

    def open(self) -> bool:
        """Whether it is open now."""
        if self.descriptor < 0:
            try:
                self.descriptor = os.open(self.path, os.O_RDONLY)
            except OSError:
                return False
        return True

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def end(self) -> int:
        """The offset after the last byte, as of the last look."""
        return self._ahead + self._size

    def look(self) -> bool:
        """Take note of the file's size; returns whether it has been truncated since the last look."""
        if not self.open():
            return False
        try:
            info = os.fstat(self.descriptor)
            size = info.st_size
            if (size, info.st_mtime_ns) == (self._size, self.modified):
                return False
            # The size is not enough: a truncated file may by now be as long as it was, or longer.
            cut = size < self._size or self._piece(self._size) != self._mark
            mark = self._piece(size)
        except OSError as error:
            self._unread(error)
            return False
        if cut:
            self.truncated(self.end)
        elif not self._size and self.cut_at:
            self._skip_hole()
        self._size, self._mark, self.modified = size, mark, info.st_mtime_ns
        return cut

    def _unread(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            note("%s: %s" % (self.path, error))

    def truncated(self, end: int, when: float = 0.0) -> None:
        """Note that the file was truncated when its end was `end`: offsets of its present bytes begin there."""
        self.begins, self.cut_at = end, when or time.time()
        self._skip_hole()

    def _skip_hole(self) -> None:
        # A program that truncates the file, and did not open it to append, goes on writing at its old position.
        try:
            first = os.lseek(self.descriptor, 0, os.SEEK_DATA)
        except OSError:  # the file holds nothing
            first = 0
        self._ahead = self.begins - first

    def _piece(self, end: int) -> bytes:
        start = max(0, end - MARK_BYTES)
        return os.pread(self.descriptor, end - start, start)

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on, of those that were there at the last look."""
        size = min(size, self.end - offset)
        there = self.begins <= offset and size > 0 and self.descriptor >= 0
        try:
            return os.pread(self.descriptor, size, offset - self._ahead) if there else b""
        except OSError as error:
            self._unread(error)
            return b""


class TaskLogs:
    """The logs of one task; `attempt` is the newest.  An offset counts all that an attempt has written."""

    def __init__(self, directory: "RunDirectory", task: str, attempt: int = 0) -> None:
        self.task = task
        self.attempt = attempt
        self._directory = directory
        self._files = {}  # type: Dict[int, _File]
        self._clock_at = 0.0
        self._clock_size = (0, 0)

    def find(self) -> "TaskLogs":
        """Take up the logs that an earlier agent has left; returns self."""
        stem = os.path.basename(self._directory.log_path(self.task, 0))[: -len("log")]
        try:
            names = os.listdir(self._directory.logs)
        except OSError:
            names = []
        # Attempt numbers may be missing: when a cluster restarts, all its tasks get the same number.
        numbers = [name[len(stem) : -len(".log")] for name in names if name.startswith(stem)]
        self.attempt = max([int(number) for number in numbers if number.isdigit()], default=0)
        for at, attempt, _, begins in self._clock():
            file = self._file(attempt)
            if begins and begins != file.begins and file.open():
                file.truncated(begins, at)
        return self

    def end(self) -> None:
        """Note that the present attempt writes no more: keep its log open only while a viewer reads it."""
        size = self.size(self.attempt)
        file = self._file(self.attempt)
        file.whole = size
        file.close()

    def hold(self) -> None:
        """Open the newest attempt's log, so that viewers can still read it after its file is removed."""
        self._file(self.attempt).open()

    def size(self, attempt: int) -> int:
        """How many bytes that attempt has written; 0 when it has no log."""
        whole = self._file(attempt).whole
        return self._looked_at(attempt).end if whole is None else whole

    def begins(self, attempt: int) -> "Tuple[int, float]":
        """(offset of the first byte that is still there, when what came before was truncated: epoch seconds, or 0)."""
        file = self._file(attempt)
        if file.whole is not None:  # do not open it again
            return min(file.begins, file.whole), file.cut_at
        file = self._looked_at(attempt)
        return file.begins, file.cut_at

    def written_at(self) -> float:
        """When the newest attempt last wrote (epoch seconds); 0 when it has no log."""
        return self._looked_at(self.attempt).modified / 1e9

    def read(self, attempt: int, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on; none if they have been truncated or are not written yet."""
        file = self._file(attempt)
        if file.whole is not None and offset >= file.whole:
            return b""
        file = self._looked_at(attempt)
        data = file.read(offset, size)
        if file.whole is not None and offset + len(data) >= file.whole:
            file.close()
        return data

    def tail(self, attempt: int, size: int = TAIL_BYTES) -> bytes:
        """The last bytes of that attempt's log, at most `size`."""
        end = self.size(attempt)
        return self.read(attempt, max(self.begins(attempt)[0], end - size), size)

    def last_lines(self, count: int) -> "Tuple[int, int]":
        """(attempt, offset) where the newest attempt's last `count` lines begin."""
        end, first = self.size(self.attempt), self.begins(self.attempt)[0]
        if end > first and self.read(self.attempt, end - 1, 1) == b"\n":
            end -= 1  # the newline of the last line
        at, wanted = end, count
        while at > first and wanted > 0:
            start = max(first, at - _PIECE)
            piece = self.read(self.attempt, start, at - start)
            while wanted > 0:
                newline = piece.rfind(b"\n")
                if newline < 0:
                    break
                piece, wanted = piece[:newline], wanted - 1
                if wanted == 0:
                    return self.attempt, start + newline + 1
            at = start
        return self.attempt, first if count else self.size(self.attempt)

    def since(self, when: float) -> "Tuple[int, int]":
        """(attempt, offset) from which bytes are newer than `when` (epoch seconds); up to CLOCK_S early, never late."""
        found = (0, 0)
        for at, attempt, offset, _ in self._clock():
            if at > when:
                break
            found = (attempt, offset)
        return found

    def note_time(self, now: float) -> None:
        """Write down how long the log is, every CLOCK_S seconds if it grows; call it often, since it costs little."""
        if now - self._clock_at < CLOCK_S:
            return
        self._clock_at = now
        size = (self.attempt, self.size(self.attempt))
        if size == self._clock_size:
            return
        self._clock_size = size
        self._note(time.time(), *size, self._file(self.attempt).begins)

    def _note(self, now: float, attempt: int, end: int, begins: int) -> None:
        try:
            with open(self._directory.log_path(self.task, 0) + ".times", "a") as file:
                file.write("%.3f %d %d %d\n" % (now, attempt, end, begins))
        except OSError:
            pass  # a full disk: `logs --since` then shows more than the user asked for

    def _clock(self) -> "List[Tuple[float, int, int, int]]":
        """[(epoch seconds, attempt, offset of the end then, offset of the first byte that was there)]"""
        found = []
        try:
            with open(self._directory.log_path(self.task, 0) + ".times") as file:
                for line in file:
                    at, attempt, end, begins = [*line.split(), "0"][:4]  # an older agent wrote three
                    found.append((float(at), int(attempt), int(end), int(begins)))
        except (OSError, ValueError):
            pass
        return found

    def _looked_at(self, attempt: int) -> _File:
        file = self._file(attempt)
        if file.look():
            self._note(file.cut_at, attempt, file.begins, file.begins)
        return file

    def _file(self, attempt: int) -> _File:
        if attempt not in self._files:
            for old in self._files:
                if old < attempt - 1:
                    self._files[old].close()
            self._files[attempt] = _File(self._directory.log_path(self.task, attempt))
        return self._files[attempt]


def start(logs: TaskLogs, wanted: "Dict[str, object]") -> "List[int]":
    """[attempt, offset] where a viewer begins that wants `{tail: N}`, `{since: epoch seconds}`, or everything."""
    position = None  # type: Optional[Tuple[int, int]]
    if wanted.get("since") is not None:
        position = logs.since(float(wanted["since"]))  # type: ignore[arg-type]
    if wanted.get("tail") is not None:
        tail = logs.last_lines(int(wanted["tail"]))  # type: ignore[call-overload]
        position = max(position, tail) if position else tail
    return list(position or (0, 0))
