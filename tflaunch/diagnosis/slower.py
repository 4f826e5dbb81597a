"""A run whose steps take longer than they did before.

The steps are those that the logs name.  A rate is told by six of them or more in a minute, and the first minute does
not count, as programs compile and fill their buffers then.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import median

if TYPE_CHECKING:
    from tflaunch.diagnosis.paces import Pace, Paces

A_MINUTE_S = 60.0
MINUTES = 60  # that are remembered
BEFORE = 3  # minutes, at least, with which the last ones are compared
SLOW = 2  # minutes that are slower
CHANGES = 6  # in a minute: of fewer, their rate says little
AGAIN = 0.85  # of the rate before: it is as fast again


class Steps:
    """The steps of each minute, of the task in the middle."""

    def __init__(self) -> None:
        self._minutes: deque[float] = deque(maxlen=MINUTES)
        self._noted = 0.0
        self._before = 0.0  # the rate before it became slower; 0: it is not
        self._told: Finding | None = None

    def finding(self, paces: Paces, now: float) -> Finding | None:
        """That the run has become slower, if it is so now."""
        if now - self._noted >= A_MINUTE_S:
            rates = [
                rate
                for pace in paces.tasks.values()
                if pace.trains and (rate := _rate(pace, now - A_MINUTE_S)) is not None
            ]
            if rates:
                self._noted = now
                self._minutes.append(median(rates))
                self._judge(paces)
        return self._told

    def _judge(self, paces: Paces) -> None:
        minutes = [*self._minutes][1:]
        last, before = minutes[-SLOW:], minutes[:-SLOW]
        if self._told is not None:
            if last[-1] > AGAIN * self._before:
                self._told = None
            return
        if len(before) < BEFORE:
            return
        usual, is_now = median(before), median(last)
        if max(last) < paces.limits.slower_ratio * usual and is_now > 0:
            self._before = usual
            self._told = Finding(
                f"the run has become {usual / is_now:.1f}x slower: {is_now:.3g} steps/s in the last {SLOW} minutes,"
                f" {usual:.3g} before; has a host got other work, or the program? `tflaunch stacks` shows where the"
                " tasks are",
                "the run is as fast as before",
                (),
            )


def _rate(pace: Pace, since: float) -> float | None:
    """Steps a second since then; None if its log names too few."""
    seen = [each for each in pace.samples if each.at >= since and each.step >= 0]
    grown = [new.step - old.step for old, new in zip(seen, seen[1:])]  # noqa: B905, RUF007  Python 3.8
    forward = [each for each in grown if each > 0]
    if len(forward) < CHANGES or seen[-1].at - seen[0].at < A_MINUTE_S / 2:
        return None
    return sum(forward) / (seen[-1].at - seen[0].at)
