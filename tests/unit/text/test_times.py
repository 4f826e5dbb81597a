"""Times as they are shown."""

from __future__ import annotations

import math
import time

from tflaunch.text.times import clock_time, duration


def test_how_long() -> None:
    told = [duration(each) for each in (-1, 4.2, 9.96, 12.4, 59.7, 125, 12000)]
    assert told == ["0.0 s", "4.2 s", "10.0 s", "12 s", "1 min 0 s", "2 min 5 s", "3 h 20 min"]


def test_when() -> None:
    now = time.localtime()
    noon = time.mktime((*now[:3], 12, 5, 0, 0, 0, -1))
    assert clock_time(noon) == "12:05"
    assert clock_time(time.mktime((2020, 3, 4, 5, 6, 0, 0, 0, -1))) == "Mar 04 05:06"
    assert [clock_time(each) for each in (math.nan, math.inf, 1e300, -1e300)] == ["?"] * 4
