"""Curves of a metric, and the rule by which --stop-below stops trials."""

from __future__ import annotations

import pytest

from tflaunch.protocol.errors import UsageError
from tflaunch.sweeps.curves import Curve, StopBelow

MEDIAN = StopBelow.parse("median")


def curve(*values: float) -> Curve:
    made = Curve()
    for value in values:
        made.add(value)
    return made


ENDED = [curve(1.0, 0.5, number / 10) for number in range(5)]  # after three reports: 0.0 ... 0.4


def test_the_median_rule_compares_the_best_value_with_those_of_the_same_report() -> None:
    assert MEDIAN.bound(2, ENDED, False) == pytest.approx(0.2)
    assert MEDIAN.verdict(curve(0.9, 0.8, 0.3), ENDED, False, "loss") == (
        "its best loss 0.3 at report 3 is worse than 0.2, the median of 5 trials"
    )
    assert not MEDIAN.verdict(curve(0.9, 0.8, 0.2), ENDED, False, "loss")
    assert not MEDIAN.verdict(curve(0.9, 0.1, 0.3), ENDED, False, "loss"), "it was better before"
    assert not MEDIAN.verdict(curve(1.0), ENDED, False, "loss"), "all began so"
    assert not MEDIAN.verdict(curve(9.0, 9.0, 9.0, 9.0), ENDED, False, "loss"), "none came to so many reports"
    assert not MEDIAN.verdict(curve(9.0), ENDED[1:], False, "loss"), "too few have ended"
    assert not MEDIAN.verdict(curve(), ENDED, False, "loss")


def test_more_is_better_with_maximize() -> None:
    assert MEDIAN.verdict(curve(0.0, 0.0, 0.1), ENDED, True, "accuracy")
    assert not MEDIAN.verdict(curve(0.0, 0.0, 0.3), ENDED, True, "accuracy")


def test_a_share_stops_only_the_worst() -> None:
    quarter = StopBelow.parse("25%")
    assert quarter.bound(2, ENDED, False) == pytest.approx(0.3)
    assert quarter.bound(2, ENDED, True) == pytest.approx(0.1)
    assert "the worst 25%" in quarter.verdict(curve(0.9, 0.9, 0.35), ENDED, False, "loss")
    assert not quarter.verdict(curve(0.9, 0.9, 0.25), ENDED, False, "loss")


@pytest.mark.parametrize("text", ["", "25", "0%", "100%", "-5%", "mean", "1e1%"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(UsageError, match="neither `median` nor a percentage"):
        StopBelow.parse(text)


def test_a_curve_keeps_few_points_of_many_reports() -> None:
    made = curve(*map(float, range(100_000)))
    assert len(made.values) <= 129
    assert (made.low, made.high, made.count) == (0.0, 99_999.0, 100_000)
    assert made.at(0) == 0.0
    assert made.at(100_000) is None
    kept = made.at(50_000)
    assert kept is not None
    assert 50_000 - made.stride < kept <= 50_000
