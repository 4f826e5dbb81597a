"""Use and memory over time, and graphs of them."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.support.gpus import MIG, answer, gpu
from tflaunch.console.gpu_watch.history import COLUMNS, REFRESHES, History, Series
from tflaunch.console.graph import graph
from tflaunch.console.pen import UNICODE
from tflaunch.protocol.errors import ConnectError

BLOCKS = UNICODE.blocks


def series(*values: tuple[int, float | None]) -> Series:
    made = Series()
    for column, value in values:
        made.add(column, value)
    return made


def test_a_column_is_the_mean_of_its_values() -> None:
    assert series((7, 0.2), (7, 0.4), (8, 1.0)).until(8, 4) == [None, None, pytest.approx(0.3), 1.0]


def test_a_column_that_was_not_measured_has_the_value_before_it() -> None:
    assert series((1, 0.5), (4, 1.0)).until(5, 6) == [None, 0.5, 0.5, 0.5, 1.0, 1.0]


def test_from_an_end_to_the_next_value_nothing_is_known() -> None:
    made = series((1, 0.5))
    made.end(2)
    assert made.until(3, 3) == [0.5, None, None]
    made.add(4, 1.0)
    assert made.until(4, 4) == [0.5, None, None, 1.0]


def test_a_value_that_is_not_told_is_a_gap() -> None:
    assert series((1, 0.5), (2, None), (4, 1.0)).until(4, 4) == [0.5, None, None, 1.0]


def test_a_copy_stands_still() -> None:
    history = History(2.0)
    history.take([answer("gpu01", gpu(0, utilization_percent=50))], 0.0)
    frozen = history.copy()
    for number in range(20):
        history.take([answer("gpu01", gpu(0, utilization_percent=100))], 2.0 * number)
    assert frozen.of("gpu01").use.until(0, 2) == [None, 0.5]
    assert history.of("gpu01").use.until(3, 2) == [1.0, 1.0]


def test_only_so_much_is_kept() -> None:
    made = series(*((column, 0.5) for column in range(2 * COLUMNS)))
    shown = made.until(2 * COLUMNS - 1, 2 * COLUMNS)
    assert shown == [None] * COLUMNS + [0.5] * COLUMNS
    assert series((0, 0.5), (10**12, 1.0)).until(10**12, 2) == [0.5, 1.0]


@pytest.mark.parametrize("lie", [math.nan, math.inf, -math.inf, -3.0, 1e300])
def test_what_is_no_share_breaks_no_graph(lie: float) -> None:
    shown = series((1, lie)).until(1, 1)
    assert shown[0] is None or 0 <= shown[0] <= 1
    assert len(graph(shown, BLOCKS)[0]) == 1


def test_the_graphs_of_a_host_and_of_its_gpus() -> None:
    history = History(2.0)
    assert history.column_s == 2.0 * REFRESHES
    half = answer("gpu01", gpu(0, used=40, utilization_percent=100), gpu(1, utilization_percent=50))
    history.take([half, answer("gpu02", MIG)], 100.0)
    column = history.column(100.0)

    def last(host: str, label: str = "") -> tuple[float | None, float | None]:
        pair = history.of(host, label)
        return pair.use.until(column, 1)[0], pair.memory.until(column, 1)[0]

    assert last("gpu01") == (0.75, 0.25)
    assert last("gpu01", "0") == (1.0, 0.5)
    assert last("gpu02", "2.1") == (None, 0.9)
    assert last("nowhere") == (None, None)


def test_a_host_that_goes_down_has_a_gap_and_one_that_is_only_slow_has_none() -> None:
    history = History(2.0)
    first = answer("gpu01", gpu(0, utilization_percent=100))
    down = dataclasses.replace(first, error=ConnectError("no answer"))
    again = answer("gpu01", gpu(0, utilization_percent=100))
    at = iter(range(0, 1000, 2))
    for told in [first] * 10 + [down] * 10 + [again] * 10:  # one object: no new facts
        now = float(next(at))
        history.take([told], now)
    shown = history.of("gpu01").use.until(history.column(now), 6)
    assert shown == [1.0, 1.0, None, None, 1.0, 1.0]


def test_while_the_command_was_stopped_nothing_is_known() -> None:
    history = History(2.0)
    for now in (0.0, 2.0, 100.0):
        history.take([answer("gpu01", gpu(0, utilization_percent=50))], now)
    assert history.of("gpu01").use.until(history.column(100.0), 4) == [None, None, None, 0.5]


def test_a_host_that_renames_its_gpus_does_not_fill_the_memory() -> None:
    history = History(2.0)
    for number in range(100):
        history.take([answer("gpu01", gpu(number, used=80 * number / 100))], number)
    assert len(history._hosts["gpu01"]) == 2


def test_a_graph_is_as_high_as_its_values() -> None:
    assert graph([0.0, 0.5, 1.0, None], BLOCKS) == ["▁▅█ "]
    assert graph([0.0, 0.4, 1.0, None], BLOCKS, 2) == ["  █ ", "▁▇█ "]
    assert graph([0.0, 1.0], "_.-#", 1) == ["_#"]
