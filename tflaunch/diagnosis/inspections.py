"""What the agents said of the threads and stacks of tasks that stand still, and when to ask them again.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tflaunch.diagnosis.standing import Stand
    from tflaunch.diagnosis.thresholds import Thresholds

    Inspected = tuple[float, Sequence[Mapping[str, Any]]]  # when, and its processes

ANSWER_S = 20.0  # for the answers of agents; then the looks must do
TWICE_S = 12.0  # between two looks at the stacks; an agent asks a task no sooner again
NEVER: Inspected = (-1.0, ())


class Inspections:
    """The last two of each task."""

    def __init__(self, limits: Thresholds) -> None:
        self.stacks_at: dict[str, float] = {}  # task -> when it was last asked for its stacks
        self.servers: set[str] = set()  # tasks that served when their stack was last seen
        self._limits = limits
        self._asked: dict[str, float] = {}  # task -> when its agent was last asked about it
        self._last: dict[str, Inspected] = {}
        self._before: dict[str, Inspected] = {}  # the one before that

    def last(self, task: str) -> Inspected:
        """The last one; NEVER without one."""
        return self._last.get(task, NEVER)

    def take(self, task: str, processes: Sequence[Mapping[str, Any]], now: float) -> None:
        """Take an answer, if the task was asked about."""
        if task in self._asked:
            if task in self._last:
                self._before[task] = self._last[task]
            self._last[task] = (now, processes)

    def started(self, task: str) -> None:
        """A new attempt of that task has begun."""
        self._last.pop(task, None)
        self._before.pop(task, None)
        self.stacks_at.pop(task, None)
        self.servers.discard(task)

    def due(self, task: str, since: float, *, twice: bool, now: float) -> bool | None:
        """Whether to ask about a task that stands still since then; None: not now.

        Else whether for its stacks, too; it counts as asked.
        """
        once = self.last(task)[0] >= since
        enough = once and (not twice or self._before.get(task, NEVER)[0] >= since)
        if enough or now - self._asked.get(task, -ANSWER_S) < (TWICE_S if once else ANSWER_S):
            return None
        last = self.stacks_at.get(task)
        again = last is None or now - last >= self._limits.stacks_again_s
        # The second look of a case follows the first.
        again = again or (once and last is not None and last >= since)
        self._asked[task] = now
        return again

    def awaited(self, tasks: Iterable[str], since: float, now: float) -> bool:
        """Whether an answer about one of these tasks may still come."""
        every = list(tasks)
        missing = any(self.last(task)[0] < since for task in every)
        return missing and now - max(self._asked.get(task, now) for task in every) < ANSWER_S

    def agree(self, task: str, since: float) -> bool:
        """Whether the last two are of this standstill, and found the task at the same line."""
        at, earlier = self._before.get(task, NEVER)
        return at >= since and _where(earlier) == self.where(task)

    def where(self, task: str) -> tuple[str, str]:
        """What a task does, as `standing` calls it, and at which line."""
        return _where(self.last(task)[1])

    def remembered(self, task: str, stand: Stand) -> Stand:
        """The same; where the stack is unknown, a task that has served once still does."""
        if not stand.place:
            return stand._replace(kind="serves") if task in self.servers else stand
        if stand.kind == "serves":
            self.servers.add(task)
        else:
            self.servers.discard(task)
        return stand


def _where(processes: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    from tflaunch.diagnosis.standing import from_the_trainer_on, stand_of

    if not processes:
        return "", ""
    stand = stand_of(from_the_trainer_on(processes))
    return stand.kind, stand.place
