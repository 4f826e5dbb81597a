"""Which pairs measure when, what is slow among them, and which network is faster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.checks import found, host_answer, ways
from tflaunch.planning.inventory import Nic
from tflaunch.planning.networks import speed
from tflaunch.planning.ways import Pair
from tflaunch.survey.check_bandwidth import (
    FEW_HOSTS,
    SAMPLE,
    Bandwidth,
    Throughput,
    odd_ways,
    rounds,
    slow,
)

FAST, LATE = Throughput(9.4e9, 0.1), Throughput(None, failed=("silent", ""))


def names(count: int) -> list[str]:
    return [f"h{number}" for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_every_pair_has_one_turn_and_no_host_two_at_once(count: int) -> None:
    turns = rounds(names(count))
    pairs = [frozenset(pair) for turn in turns for pair in turn]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    for turn in turns:
        hosts = [host for pair in turn for host in pair]
        assert len(hosts) == len(set(hosts))
    assert len(turns) == count - 1 + count % 2


def test_many_hosts_measure_a_sample_in_which_each_has_its_turns() -> None:
    turns = rounds(names(64))
    assert len(turns) == SAMPLE
    assert all(len({host for pair in turn for host in pair}) == 64 for turn in turns)
    assert len({frozenset(pair) for turn in turns for pair in turn}) == SAMPLE * 32
    assert len(rounds(names(64), everything=True)) == 63
    assert len(rounds(names(FEW_HOSTS + 1))) == SAMPLE
    assert not any(rounds(["h1"]))


class Hosts:
    """What they send each other; each turn is noted."""

    def __init__(self, odd: Mapping[Pair, Throughput | None]) -> None:
        self.odd = odd
        self.turns: list[list[Pair]] = []

    def push(self, pairs: Sequence[Pair]) -> dict[str, Throughput]:
        self.turns.append(list(pairs))
        said = {source: self.odd.get((source, to), FAST) for source, to in pairs}
        return {source: each for source, each in said.items() if each is not None}

    def measure(self, count: int, closed: set[Pair] | None = None) -> dict[str, dict[str, Throughput]]:
        return Bandwidth(self.push, closed or set(), lambda *_: None).measure(names(count))


def test_all_ways_are_measured_both_ways() -> None:
    hosts = Hosts({})
    measured = hosts.measure(4)
    assert {(a, b) for a, row in measured.items() for b in row} == {
        (a, b) for a in names(4) for b in names(4) if a != b
    }
    assert len(hosts.turns) == 6


def test_a_mute_host_costs_one_wait() -> None:
    mute = {("h2", name): None for name in names(6)}
    hosts = Hosts(mute)
    measured = hosts.measure(6)
    late = [pair for turn in hosts.turns for pair in turn if pair[0] == "h2"]
    assert len(late) == 1
    ((to, way),) = measured["h2"].items()
    assert (to, way.failed) == (late[0][1], ("failed", "it did not answer in time"))
    assert all(FAST in row.values() for name, row in measured.items() if name != "h2")


def test_a_host_that_nobody_reaches_costs_one_wait_and_closed_ways_none() -> None:
    hosts = Hosts({(name, "h2"): LATE for name in names(6)})
    hosts.measure(6)
    assert len([pair for turn in hosts.turns for pair in turn if pair[1] == "h2"]) == 1
    hosts = Hosts({})
    measured = hosts.measure(4, {("h1", "h2")})
    assert "h2" not in measured["h1"]
    assert ("h1", "h2") not in [pair for turn in hosts.turns for pair in turn]


def test_a_slow_host_is_named_and_one_slow_moment_is_not() -> None:
    weak = Throughput(0.94e9, 0.1)
    hosts = Hosts({(a, b): weak for a in names(4) for b in names(4) if "h4" in (a, b)})
    [odd] = odd_ways(hosts.measure(4))
    assert odd.what == "h4 <-> h[1-3]: 940 Mbit/s to 940 Mbit/s, the median of the 12 ways is 9.4 Gbit/s"
    assert "`ethtool DEVICE`" in odd.fix
    hosts = Hosts({("h1", "h2"): weak})
    hosts.push = _once(hosts)  # type: ignore[method-assign]
    assert list(odd_ways(hosts.measure(4))) == []
    assert slow({("a", "b"): weak, ("b", "a"): FAST}) == []  # of two, neither is the odd one


def _once(hosts: Hosts) -> Any:
    push = hosts.push

    def first_only(pairs: Sequence[Pair]) -> dict[str, Throughput]:
        said = push(pairs)
        if ("h1", "h2") in pairs:
            hosts.odd = {}
        return said

    return first_only


@pytest.mark.parametrize(
    ("rtt_ms", "lost", "words"),
    [(40.0, 0, "no cable is to blame"), (40.0, 9, "`ethtool DEVICE`"), (0.3, 0, "`ethtool DEVICE`")],
)
def test_a_way_that_is_merely_long_is_no_broken_cable(rtt_ms: float, lost: int, words: str) -> None:
    far = Throughput(0.4e9, rtt_ms, lost)
    hosts = Hosts({pair: far for pair in itertools.permutations(names(6), 2) if "h1" in pair})
    (odd,) = odd_ways(hosts.measure(6))
    assert odd.fix.startswith(words)
    assert ("packets take 40 ms there and back, and 0.1 ms on half of the ways" in odd.what) == (
        words[0] == "n"
    )


def test_what_an_agent_says_is_read() -> None:
    said: dict[str, Any] = {"bytes": 10**9, "seconds": 0.8, "rtt_ms": 0.2, "lost": 3, "failed": None}
    assert Throughput.from_wire(said) == Throughput(1e10, 0.2, 3)
    assert Throughput.from_wire({**said, "failed": ["silent", ""]}).failed == ("silent", "")
    assert Throughput.from_wire({**said, "seconds": 0.0}).bits_per_s is None


def test_speeds_in_words() -> None:
    assert [speed(each) for each in (1e11, 9.41e9, 1e9, 9.4e7, 2.5e6, 1e4, 0)] == [
        *("100 Gbit/s", "9.4 Gbit/s", "1 Gbit/s", "94 Mbit/s", "2.5 Mbit/s", "0.0 Mbit/s", "0 Mbit/s")
    ]


def test_a_faster_network_is_told() -> None:
    def nics(n: int) -> dict[str, Any]:
        faces = (
            Nic("eth0", (f"10.0.0.{n}/24",), 1000, "", ""),
            Nic("ib0", (f"10.2.0.{n}/16",), 100_000, "", ""),
        )
        return {
            "nics": faces,
            "addresses": (f"10.0.0.{n}", f"10.2.0.{n}"),
            "interfaces": ("eth0", "ib0"),
        }

    def told(**more: Any) -> list[tuple[str, str, str]]:
        hosts = [host_answer(name, facts=nics(n), host=more) for n, name in enumerate("ab", 1)]
        dials = ways("aa", "ab", "ba", "bb", hosts="ab")
        every = found(*hosts, dials=dials, outside={"a": {}})
        return [(each.level, each.what, each.fix) for each in every if "connects all hosts" in each.what]

    [(level, what, fix)] = told()
    assert level == "note"
    assert what.endswith("; ib0 (100 Gbit/s, 10.2.0.0/16) connects all hosts, too: a run takes it")
    [(level, what, fix)] = told(address="10.0.0.1")
    assert (level, fix.partition(" takes")[0]) == ("warning", "--network 10.2.0.0/16")
