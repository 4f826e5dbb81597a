"""Lines that several tasks write alike: on a terminal the first is shown, and how many others wrote it follows.

No line waits for that.  The first is shown at once; equal ones of other tasks within ALIKE_S are left out.  When that
time is over, or every task of these jobs has written it, a line tells who did; where other output has come between, it
quotes the line that it means.  Tracebacks stay whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tflaunch.protocol.job import TaskId

ALIKE_S = 2.0
_QUIET_S = 0.2  # after the last task has written a line: then the lines that follow it have come, too
_BURST_S = 0.5  # lines that came so soon after each other are told together
_MOST = 2000  # lines that are remembered
_QUOTED = 40  # characters
# Lines that a traceback begins with, or that stand between two of one error.
_TRACEBACK = (
    "Traceback (most recent call last)",
    "During handling of the above exception, another",
    "The above exception was the direct cause of",
)


@dataclass
class _Shown:
    """A line that is on the screen, and who else has written it since."""

    text: str
    task: TaskId
    at: float
    place: int  # which of all lines on the screen it is, but for empty ones
    others: list[TaskId] = field(default_factory=list)
    complete_at: float | None = None  # when the last task of their jobs wrote it

    @property
    def due(self) -> float:
        """When to tell of it, if no more output comes."""
        return self.at + ALIKE_S if self.complete_at is None else self.complete_at + _QUIET_S


class Alike:
    """Leaves out lines that another task has just written; only the writer's thread calls it."""

    def __init__(self, more: str) -> None:
        """`more` stands for the rest of a line that is quoted."""
        self._more = more
        self._lines: deque[_Shown] = deque()  # the oldest first
        self._by_text: dict[str, _Shown] = {}
        self._tasks: Mapping[str, int] = {}  # of each job
        self._left_out: dict[TaskId, bool] = {}  # whether its last line was
        self._in_traceback: set[TaskId] = set()
        self._counted = 0  # lines with others
        self._place = 0

    def expect(self, tasks: Mapping[str, int]) -> None:
        """Each job has so many tasks."""
        self._tasks = tasks

    def printed(self, lines: int) -> None:
        """So many lines that are of no task have come onto the screen."""
        self._place += lines

    def rest(self, task: TaskId, lines: str, now: float) -> str:
        """Return these whole lines without those that are left out; the others come onto the screen now."""
        every = lines.removesuffix("\n").split("\n")
        kept = [line for line in every if not self._leaves_out(task, line, now)]
        self._forget(now)
        return lines if len(kept) == len(every) else "".join(line + "\n" for line in kept)

    def _of_traceback(self, task: TaskId, line: str) -> bool:
        """Whether a line is part of a traceback: one that lacked the lines that others have, too, could not be read."""
        begins = line.startswith(_TRACEBACK)
        inside = begins or task in self._in_traceback
        if begins or (inside and not line.strip()):
            self._in_traceback.add(task)
        elif inside and not line[0].isspace():
            self._in_traceback.discard(task)  # the last line, which names the exception
        return inside

    def _leaves_out(self, task: TaskId, line: str, now: float) -> bool:
        if self._of_traceback(task, line):
            self._left_out[task] = False
            self._place += bool(line.strip())
            return False
        if not line.strip():
            out = self._left_out.get(task, False)  # it belongs to the lines before it
        else:
            known = self._by_text.get(line)
            out = known is not None and self._joins(known, task, now)
            self._left_out[task] = out
        if not out and line.strip():
            self._place += 1
            shown = self._by_text[line] = _Shown(line, task, now, self._place)
            self._lines.append(shown)
        return out

    def _joins(self, known: _Shown, task: TaskId, now: float) -> bool:
        """Count the task among those that have written that line, if it is another one, and in time."""
        if task == known.task or task in known.others or now - known.at >= ALIKE_S:
            return False
        if self._counted >= _MOST:
            return False
        self._counted += not known.others
        known.others.append(task)
        jobs = {known.task.job, *(each.job for each in known.others)}
        if 1 + len(known.others) == sum(self._tasks.get(job, _MOST) for job in jobs):
            known.complete_at = now
        return True

    def _forget(self, now: float) -> None:
        """Drop lines that no other task has written: the old ones, or some where they are too many."""
        while self._lines and not self._lines[0].others and now - self._lines[0].at >= ALIKE_S:
            self._drop(self._lines.popleft())
        if len(self._lines) > 2 * _MOST:
            rest = deque(line for line in self._lines if line.others)
            for line in self._lines:
                if not line.others:
                    self._drop(line)
            self._lines = rest

    def _drop(self, line: _Shown) -> None:
        if self._by_text.get(line.text) is line:
            del self._by_text[line.text]

    def wait_s(self, now: float) -> float | None:
        """Return in how many seconds there is something to tell; None: nothing is left out."""
        if not self._counted:
            return None
        return max(0.0, min(line.due for line in self._lines if line.others) - now)

    def told(self, now: float, *, of: TaskId | None = None, over: bool = False) -> list[str]:
        """Return a sentence for each line, or each piece of several lines, of which it is time to tell.

        of: and for those that this task has left out.  over: for all.
        """
        if not self._counted:
            return []
        if not (over or any(of in line.others for line in self._lines if of) or self.wait_s(now) == 0.0):
            return []
        ready, rest = [], deque[_Shown]()
        for line in self._lines:
            soon = line.due <= now + (_BURST_S if line.complete_at is None else _QUIET_S)
            if line.others and (over or soon or (of is not None and of in line.others)):
                ready.append(line)
                self._drop(line)
            else:
                rest.append(line)
        self._lines = rest
        self._counted = sum(bool(line.others) for line in rest)
        return [self._sentence(piece) for piece in _pieces(ready)]

    def _sentence(self, piece: Sequence[_Shown]) -> str:
        first = piece[0]
        others = folded(first.others, first.task.job)
        who = f"+{len(first.others)} alike: {others}"
        above = piece[-1].place == self._place
        self._place += 1
        if above:
            return f"({who})" if len(piece) == 1 else f"(the {len(piece)} lines above: {who})"
        quoted = first.text.strip()
        quoted = quoted if len(quoted) <= _QUOTED else quoted[:_QUOTED] + self._more
        if len(piece) == 1:
            return f"({who}: {quoted})"
        return f"({others} wrote the same {len(piece)} lines as {first.task}, from this one on: {quoted})"


def folded(tasks: Sequence[TaskId], first: str = "") -> str:
    """`worker/1-3,5 ps/0`, the job `first` first."""
    jobs: dict[str, list[str]] = {}
    ends: dict[str, int] = {}  # job -> its last index so far
    for task in sorted(tasks, key=lambda task: (task.job != first, task.job, task.index)):
        ranges = jobs.setdefault(task.job, [])
        if ranges and task.index == ends[task.job] + 1:
            ranges[-1] = f"{ranges[-1].partition('-')[0]}-{task.index}"
        else:
            ranges.append(str(task.index))
        ends[task.job] = task.index
    return " ".join(f"{job}/{','.join(ranges)}" for job, ranges in jobs.items())


def _pieces(lines: Sequence[_Shown]) -> Iterator[list[_Shown]]:
    """Put together what stands together on the screen and was written by the same tasks."""
    piece: list[_Shown] = []
    for line in lines:
        if piece and not (
            line.task == piece[0].task
            and line.place == piece[-1].place + 1
            and set(line.others) == set(piece[0].others)
        ):
            yield piece
            piece = []
        piece.append(line)
    if piece:
        yield piece
