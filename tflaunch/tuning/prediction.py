"""What the layouts that have been measured say of one that has not; pure.

A step takes its share of the workers and its share of the ps: with W workers and P ps, the time between two steps of
all together is a/W + b/P.  The numbers a and b, none of them negative, are those that fit the measured layouts best by
least squares: of two layouts they are exact.  Where the ps hold up the workers, a/W is small beside b/P.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_SAME = 1e-9  # of a determinant: the layouts differ in nothing that tells a from b


class MeasuredLayout(NamedTuple):
    """A layout and its steps in a second."""

    workers: int
    ps: int
    rate: float


def predicted(measured: Iterable[MeasuredLayout], workers: int, ps: int) -> float | None:
    """The steps in a second of a layout with so many tasks; None where what is measured does not tell."""
    known = [each for each in measured if each.rate > 0 and each.workers > 0 and (each.ps > 0) == (ps > 0)]
    if workers <= 0 or not known:
        return None
    fit = _fit(known) if ps else _alone(known)
    if fit is None:
        return None
    a, b = fit
    seconds = a / workers + (b / ps if ps else 0.0)
    return 1 / seconds if seconds > 0 else None


def _alone(known: list[MeasuredLayout]) -> tuple[float, float]:
    """Without ps: the mean time of a step on one worker."""
    return sum(each.workers / each.rate for each in known) / len(known), 0.0


def _fit(known: list[MeasuredLayout]) -> tuple[float, float] | None:
    rows = [(1 / each.workers, 1 / each.ps, 1 / each.rate) for each in known]
    ww, wp, pp = (sum(x * y for x, y in pairs) for pairs in _products(rows, ((0, 0), (0, 1), (1, 1))))
    wt, pt = (sum(x * y for x, y in pairs) for pairs in _products(rows, ((0, 2), (1, 2))))
    determinant = ww * pp - wp * wp
    if determinant < _SAME * ww * pp:
        return None
    a, b = (wt * pp - pt * wp) / determinant, (pt * ww - wt * wp) / determinant
    if a < 0:
        return 0.0, pt / pp
    if b < 0:
        return wt / ww, 0.0
    return a, b


def _products(
    rows: list[tuple[float, float, float]], columns: Iterable[tuple[int, int]]
) -> Iterable[list[tuple[float, float]]]:
    return [[(row[one], row[other]) for row in rows] for one, other in columns]
