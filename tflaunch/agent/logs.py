"""The logs of a task: one plain file for each attempt, read by offset, never locked, never rotated."""

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

    from tflaunch.agent.rundir import RunDirectory

TAIL_BYTES = 64 * 1024
CLOCK_S = 5.0  # how finely it is known when a byte was written
_PIECE = 64 * 1024


class TaskLogs:
    """The logs of one task; `attempt` is the newest."""

    def __init__(self, directory: "RunDirectory", task: str, attempt: int = 0) -> None:
        self.task = task
        self.attempt = attempt
        self._directory = directory
        self._open = {}  # type: Dict[int, int]
        self._whole = {}  # type: Dict[int, int]  # attempts that write no more -> their size
        self._clock_at = 0.0
        self._clock_size = (0, 0)

    def find(self) -> "TaskLogs":
        """The logs that an agent that is no more has left."""
        stem = os.path.basename(self._directory.log_path(self.task, 0))[: -len("log")]
        try:
            names = os.listdir(self._directory.logs)
        except OSError:
            names = []
        # Not all in a row: when a cluster starts again, all its tasks get one number.
        numbers = [name[len(stem) : -len(".log")] for name in names if name.startswith(stem)]
        self.attempt = max([int(number) for number in numbers if number.isdigit()], default=0)
        return self

    def end(self) -> None:
        """The present attempt writes no more: its log is open only while somebody reads it."""
        self._whole[self.attempt] = self.size(self.attempt)
        self._close(self.attempt)

    def hold(self) -> None:
        """The file is about to be removed: the newest attempt's log can be read all the same."""
        self._descriptor(self.attempt)

    def size(self, attempt: int) -> int:
        """How many bytes that attempt has written; 0 when it has no log."""
        if attempt in self._whole:
            return self._whole[attempt]
        descriptor = self._descriptor(attempt)
        return os.fstat(descriptor).st_size if descriptor >= 0 else 0

    def written_at(self) -> float:
        """When the newest attempt wrote last (epoch seconds); 0 when it has no log."""
        descriptor = self._descriptor(self.attempt)
        return os.fstat(descriptor).st_mtime if descriptor >= 0 else 0.0

    def read(self, attempt: int, offset: int, size: int) -> bytes:
        whole = self._whole.get(attempt)
        if whole is not None and offset >= whole:
            return b""
        descriptor = self._descriptor(attempt)
        data = os.pread(descriptor, size, offset) if descriptor >= 0 else b""
        if whole is not None and offset + len(data) >= whole:
            self._close(attempt)
        return data

    def tail(self, attempt: int) -> bytes:
        """The end of that attempt's log, TAIL_BYTES at most."""
        return self.read(attempt, max(0, self.size(attempt) - TAIL_BYTES), TAIL_BYTES)

    def last_lines(self, count: int) -> "Tuple[int, int]":
        """(attempt, offset) where the last `count` lines begin; they are all of one attempt."""
        end = self.size(self.attempt)
        if end and self.read(self.attempt, end - 1, 1) == b"\n":
            end -= 1  # the newline of the last line
        at, wanted = end, count
        while at > 0 and wanted > 0:
            start = max(0, at - _PIECE)
            piece = self.read(self.attempt, start, at - start)
            while wanted > 0:
                newline = piece.rfind(b"\n")
                if newline < 0:
                    break
                piece, wanted = piece[:newline], wanted - 1
                if wanted == 0:
                    return self.attempt, start + newline + 1
            at = start
        return self.attempt, 0 if count else self.size(self.attempt)

    def since(self, when: float) -> "Tuple[int, int]":
        """(attempt, offset) of what was written after `when` (epoch seconds); some seconds too early, never late."""
        found = (0, 0)
        for at, attempt, offset in self._clock():
            if at > when:
                break
            found = (attempt, offset)
        return found

    def note_time(self, now: float) -> None:
        """Write down how far the log has come, if it has; call it often, it does little."""
        if now - self._clock_at < CLOCK_S:
            return
        self._clock_at = now
        size = (self.attempt, self.size(self.attempt))
        if size == self._clock_size:
            return
        self._clock_size = size
        try:
            with open(self._directory.log_path(self.task, 0) + ".times", "a") as file:
                file.write("%.3f %d %d\n" % (time.time(), size[0], size[1]))
        except OSError:
            pass  # a full disk: `logs --since` then tells more than was asked for

    def _clock(self) -> "List[Tuple[float, int, int]]":
        found = []
        try:
            with open(self._directory.log_path(self.task, 0) + ".times") as file:
                for line in file:
                    at, attempt, offset = line.split()
                    found.append((float(at), int(attempt), int(offset)))
        except (OSError, ValueError):
            pass
        return found

    def _descriptor(self, attempt: int) -> int:
        if attempt not in self._open:
            for old in [each for each in self._open if each < attempt - 1]:
                self._close(old)
            try:
                self._open[attempt] = os.open(self._directory.log_path(self.task, attempt), os.O_RDONLY)
            except OSError:
                return -1
        return self._open[attempt]

    def _close(self, attempt: int) -> None:
        if attempt in self._open:
            os.close(self._open.pop(attempt))


def start(logs: TaskLogs, wanted: "Dict[str, object]") -> "List[int]":
    """Where a viewer begins that says `{tail: N}`, `{since: epoch seconds}` or nothing of the kind."""
    position = None  # type: Optional[Tuple[int, int]]
    if wanted.get("since") is not None:
        position = logs.since(float(wanted["since"]))  # type: ignore[arg-type]
    if wanted.get("tail") is not None:
        tail = logs.last_lines(int(wanted["tail"]))  # type: ignore[call-overload]
        position = max(position, tail) if position else tail
    return list(position or (0, 0))
