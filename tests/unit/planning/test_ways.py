"""Which ways between hosts are odd, and what is told of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from tflaunch.planning.ways import (
    LOSSY,
    MOST,
    REPEATS,
    Measured,
    Odd,
    Pair,
    by_pair,
    collected,
    odd_ways,
    suspects,
)

Ways = dict[Pair, list[Measured]]


def every(hosts: int, ms: Callable[[str, str], float] = lambda _, __: 0.2, lost: float = 0.0) -> Ways:
    """Ways between h1, h2, ...; `ms` says how long each is."""
    names = [f"h{number}" for number in range(1, hosts + 1)]
    return {(a, b): [Measured(ms(a, b), lost)] for a in names for b in names if a != b}


def told(first: Ways, again: Mapping[Pair, list[Measured]] | None = None) -> list[Odd]:
    repeated = again or {pair: first[pair] * REPEATS for pair in suspects(first)}
    return odd_ways(first, repeated)


def test_one_way_of_twelve_is_far() -> None:
    first = every(4) | {("h3", "h4"): [Measured(48.2, 0)]}
    assert suspects(first) == [("h3", "h4")]
    [odd] = told(first)
    assert odd.what == "h3 -> h4: 48 ms, the median of the 12 pairs is 0.2 ms"
    assert odd.hosts == ("h3", "h4")
    assert "`ping h4` on h3" in odd.fix


def test_what_is_far_only_once_is_not_told() -> None:
    first = every(4) | {("h3", "h4"): [Measured(48.2, 0)]}
    assert told(first, {("h3", "h4"): [Measured(48.2, 0)] * 3 + [Measured(0.2, 0)] * 5}) == []


def test_both_ways_of_a_pair_are_one_sentence_and_those_of_a_host_too() -> None:
    [odd] = told(every(4, lambda a, b: 30.0 if {a, b} == {"h1", "h2"} else 0.25))
    assert odd.what == "h1 <-> h2: 30 ms, the median of the 12 pairs is 0.2 ms"
    [odd] = told(every(4, lambda a, b: 20.0 + int(b[1]) if "h4" in (a, b) else 0.1))
    assert odd.what == "h4 <-> h[1-3]: 21 to 24 ms, the median of the 12 pairs is 0.1 ms"
    assert odd.hosts == ("h4", "h1", "h2", "h3")


def test_one_far_host_of_three() -> None:
    odd = told(every(3, lambda a, b: 600.0 if "h2" in (a, b) else 0.1))
    assert [each.hosts for each in odd] == [("h1", "h2"), ("h2", "h3")]
    assert odd[0].what == "h1 <-> h2: 600 ms, a quarter of the 6 pairs take 0.1 ms or less"


@pytest.mark.parametrize("ms", [0.02, 0.2, 48.0, 300.0])
def test_where_all_ways_are_alike_none_is_odd(ms: float) -> None:
    chance = random.Random(7)  # noqa: S311
    for hosts in (2, 3, 4, 8):
        first = every(hosts, lambda *_: ms * chance.uniform(0.5, 4.0))
        assert suspects(first) == []
    assert suspects({}) == []
    assert odd_ways({}, {}) == []


def test_ten_times_nothing_is_still_nothing() -> None:
    assert suspects(every(4, lambda a, b: 1.9 if (a, b) == ("h1", "h2") else 0.01)) == []


def test_two_sites_are_no_fault_of_one_pair() -> None:
    def ms(a: str, b: str) -> float:
        return 0.2 if (a in ("h1", "h2")) == (b in ("h1", "h2")) else 12.0

    assert suspects(every(4, ms)) == []


def test_packets_that_are_lost_now_and_again() -> None:
    first = every(3) | {("h1", "h2"): [Measured(0.2, 2)]}
    assert suspects(first) == [("h1", "h2")]
    some = [Measured(0.2, 1)] * LOSSY
    [odd] = told(first, {("h1", "h2"): some + [Measured(0.2, 0)] * (REPEATS - LOSSY)})
    assert odd.what == "h1 -> h2: packets are lost, in 2 of 8 short connections"
    assert "ethtool -S" in odd.fix
    once = some[1:] + [Measured(0.2, 0)] * (REPEATS - LOSSY + 1)
    assert told(first, {("h1", "h2"): once}) == []


def test_a_large_run_measures_a_few_ways_again() -> None:
    first = every(64, lambda a, b: 40.0 if "h7" in (a, b) else 0.2)
    assert len(suspects(first)) == MOST
    [odd] = told(first)
    assert odd.what.startswith("h7 ")
    assert "the median of the 4032 pairs is 0.2 ms" in odd.what
    assert len(suspects(every(64, lost=1))) == MOST


def test_ways_are_read_from_what_a_host_has_sent() -> None:
    ways = [[0.1, 0], None, [0.3, 2], [9.0, 0]]
    assert collected(by_pair("a", ["b", "b", "c", "a"], ways)) == {
        ("a", "b"): [Measured(0.1, 0)],
        ("a", "c"): [Measured(0.3, 2)],
    }
    assert collected(by_pair("a", ["b"], [])) == {}  # not Linux
