"""Steps in a second of a run, from the lines in which its tasks name their steps; pure.

Of tasks that count their own steps the rate is the sum: steps of all of them together.  A global step, which the tasks
share, is counted once.  The steps of a task between two of its lines lie evenly between them, so that it does not
matter how often it prints one.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tflaunch.diagnosis.steps import step_in

PARTS = 4  # of the time that is measured: their rates are the spread
_GLOBAL = re.compile(r"global[ _-]?step", re.IGNORECASE)
_LINE = 400  # characters of a line that are looked at
_ALL = ""  # who counts a global step


@dataclass(frozen=True)
class Rate:
    """Steps in a second, of all tasks together."""

    rate: float
    low: float  # of the slowest part of the time
    high: float  # of the fastest
    steps: float  # that were measured
    seconds: float
    shared: bool  # a global step
    silent: tuple[str, ...] = ()  # tasks that named no step


class StepRates:
    """Takes lines as they come, and tells the rate since all tasks that train have named a step."""

    def __init__(self, tasks: Iterable[str], *, shared: bool = False, patience_s: float = 5.0) -> None:
        """`patience_s`: so long after the first step, a task that still names none is taken to name none ever."""
        self._silent = dict.fromkeys(tasks)
        self._shared = shared
        self._patience_s = patience_s
        self._first: float | None = None
        self._complete = False  # whoever names steps has named one
        self._points: dict[str, tuple[list[float], list[float]]] = {}  # task -> times, and its steps then
        # task -> its steps before they began anew for the last time, and the step that its latest line names.
        self._latest: dict[str, tuple[float, float]] = {}

    @property
    def seen(self) -> bool:
        """Whether any task has named a step."""
        return self._first is not None

    def line(self, task: str, at: float, line: str) -> bool:
        """Take a line that this task has printed; return whether it names a step."""
        text = line[:_LINE]
        step = step_in(text)
        if step is None:
            return False
        if self._first is None:
            self._first = at
            self._shared = self._shared or _GLOBAL.search(text) is not None
        self._silent.pop(task, None)
        if not self._silent or self._shared or at - self._first >= self._patience_s:
            self._complete = True
        self._add(_ALL if self._shared else task, at, float(step))
        return True

    def _add(self, who: str, at: float, step: float) -> None:
        times, steps = self._points.setdefault(who, ([], []))
        if not self._shared:
            step = self._counted_on(who, step)
        if not times or (step > steps[-1] and at > times[-1]):
            times.append(at)
            steps.append(step)

    def _counted_on(self, who: str, step: float) -> float:
        """The step of a line, with those that the task had done before its steps began anew."""
        before, last = self._latest.get(who, (0.0, 0.0))
        if step < last:
            # An epoch that is counted from 0 has done one step by then, as one that is counted from 1 has.
            before += last + (step == 0)
        self._latest[who] = before, step
        return before + step

    def rate(self) -> Rate | None:
        """The rate so far; None until each task that names steps has named two, while all of them train."""
        known = [points for points in self._points.values() if len(points[0]) > 1]
        if not (known and self._complete) or len(known) < len(self._points):
            return None
        begin, end = max(times[0] for times, _ in known), min(times[-1] for times, _ in known)
        if end <= begin:
            return None

        def total(at: float) -> float:
            return sum(_between(times, steps, at) for times, steps in known)

        seconds, steps = end - begin, total(end) - total(begin)
        edges = [begin + seconds * part / PARTS for part in range(PARTS + 1)]
        sums = [total(edge) for edge in edges]
        parts = [(sums[part + 1] - sums[part]) * PARTS / seconds for part in range(PARTS)]
        silent = () if self._shared else tuple(self._silent)
        return Rate(steps / seconds, min(parts), max(parts), steps, seconds, self._shared, silent)


def _between(times: list[float], steps: list[float], at: float) -> float:
    """The step at that time."""
    place = min(max(bisect.bisect_right(times, at), 1), len(times) - 1)
    share = (at - times[place - 1]) / (times[place] - times[place - 1])
    return steps[place - 1] + share * (steps[place] - steps[place - 1])
