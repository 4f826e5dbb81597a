"""The values of a trial's metric, in the order in which it printed them, and whether to stop it for them; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tflaunch.protocol.errors import UsageError

_POINTS = 128  # of one trial; from then on, every second one is dropped: a sweep has up to 10,000 trials
ENDED_FIRST = 5  # trials that must have ended before any is stopped, as Optuna's median rule has it


class Curve:
    """What one attempt has reported, in bounded memory: values[i] is report number i * stride."""

    def __init__(self) -> None:
        self.count = 0  # reports so far
        self.values: list[float] = []
        self.stride = 1
        self.low = float("inf")  # of all reports
        self.high = float("-inf")

    def add(self, value: float) -> None:
        """Take the next report."""
        if self.count % self.stride == 0:
            self.values.append(value)
            if len(self.values) > _POINTS:
                self.values = self.values[::2]
                self.stride *= 2
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)

    def at(self, report: int) -> float | None:
        """The value of that report, or the last one kept before it; None if it came to fewer reports."""
        return self.values[min(report // self.stride, len(self.values) - 1)] if report < self.count else None


@dataclass(frozen=True)
class StopBelow:
    """The rule of --stop-below: a trial is stopped once its best value is worse than that share of the other trials.

    They are those that succeeded, and their values are those of the same report, counted from a trial's start.
    """

    percent: float  # 50: the median

    @classmethod
    def parse(cls, text: str) -> StopBelow:
        """Read `median` or `25%`; raises UsageError."""
        if text == "median":
            return cls(50.0)
        found = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)%", text)
        if found is None or not 0 < float(found[1]) < 100:
            raise UsageError(
                f"--stop-below {text}: neither `median` nor a percentage between 0% and 100%",
                "--stop-below 25% stops the worst quarter, --stop-below median the worse half",
            )
        return cls(float(found[1]))

    @property
    def name(self) -> str:
        """As a sentence calls the bound."""
        return "the median" if self.percent == 50 else f"the worst {self.percent:g}%"

    def bound(self, report: int, others: Sequence[Curve], maximize: bool) -> float | None:
        """What a trial must not be worse than at that report; None while too few others are known."""
        if len(others) < ENDED_FIRST:
            return None
        values = sorted(value for each in others if (value := each.at(report)) is not None)
        if not values:
            return None
        place = (self.percent if maximize else 100 - self.percent) / 100 * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return values[low] + (values[high] - values[low]) * (place - low)

    def verdict(self, curve: Curve, others: Sequence[Curve], maximize: bool, name: str) -> str:
        """Why the trial of this curve is to be stopped, as a predicate; "" while it is not."""
        if not curve.count:
            return ""
        bound, best = self.bound(curve.count - 1, others, maximize), curve.high if maximize else curve.low
        if bound is None or not (best < bound if maximize else best > bound):
            return ""
        return (
            f"its best {name} {best:.6g} at report {curve.count} is worse than {bound:.6g}, {self.name} of "
            f"{sum(each.count >= curve.count for each in others)} trials"
        )
