"""How much each host can send to each other one: `check --bandwidth`.

The pairs take turns, so that no two share the link of a host: a turn has each host in one pair at most, which sends
first one way, then the other (the rounds of a tournament).  With many hosts only some of the rounds are made.  A host
that does not answer, or is not reached, is left out of all turns that follow: the wait for it comes once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tflaunch.planning.networks import speed
from tflaunch.planning.ways import Odd, Pair, grouped

SECONDS = 1.0  # for each way of each pair
ANSWER_S = 12.0  # for an agent to answer, beyond that
FEW_HOSTS = 16  # with more, only SAMPLE rounds are made, unless the user wants all
SAMPLE = 8
SLOW_SHARE = 1 / 3  # of the median: a way with less is slow
AGAIN = 12  # ways that look slow and are measured again
SLOW_STEP = (
    "`ethtool DEVICE` on both hosts shows what speed their links have agreed on; look at the cable, the port of the"
    " switch, and at what else sends there"
)
LONG_STEP = (
    "no cable is to blame: over a long way one connection waits for its acknowledgements; let hosts that are near each "
    "other train together (--exclude, --worker-hosts), or raise the limits of net.ipv4.tcp_rmem and tcp_wmem on both"
)
_LONG_MS = 2.0  # within a building it is less ...
_LONGER = 5  # ... and a long way takes so many times the median


@dataclass(frozen=True)
class Throughput:
    """What came of one way: bits that arrived per second, or why nothing did."""

    bits_per_s: float | None
    rtt_ms: float = 0.0  # the shortest while it was measured
    lost: int = 0  # packets sent again
    failed: tuple[str, str] | None = None  # as a dial fails

    @classmethod
    def from_wire(cls, said: Mapping[str, Any]) -> Throughput:
        """Read the fields of a `pushed`."""
        if said["failed"] is not None or not said["seconds"]:
            return cls(None, failed=tuple(said["failed"]) if said["failed"] else ("failed", ""))
        return cls(said["bytes"] * 8 / said["seconds"], said["rtt_ms"], said["lost"])


def rounds(hosts: Sequence[str], everything: bool = False) -> list[list[Pair]]:
    """Turns of pairs; no host is twice in one turn.  All pairs, or with more than FEW_HOSTS hosts a sample of them."""
    ring: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    made = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        made.append([(a, b) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    if everything or len(hosts) <= FEW_HOSTS:
        return made
    return [made[number * len(made) // SAMPLE] for number in range(SAMPLE)]


class Bandwidth:
    """Measures turn by turn.

    `push` has the hosts of some ways send at once, and returns what came of those that have answered.
    """

    def __init__(
        self,
        push: Callable[[Sequence[Pair]], Mapping[str, Throughput]],
        closed: set[Pair],
        phase: Callable[[int, int], None],
    ) -> None:
        """`closed` are the ways that the calls of the check have found blocked: they are left out."""
        self._push = push
        self._closed = closed
        self._phase = phase
        self._mute: set[str] = set()

    def measure(self, hosts: Sequence[str], everything: bool = False) -> dict[str, dict[str, Throughput]]:
        """{from: {to: what came of it}}; the ways that look slow are measured twice, and the better figure counts."""
        found: dict[Pair, Throughput] = {}
        turns = [way for turn in rounds(hosts, everything) for way in (turn, [(b, a) for a, b in turn])]
        for number, turn in enumerate(turns):
            self._phase(number, len(turns))
            found.update(self._turn(turn))
        for way in slow(found)[:AGAIN]:
            for pair, again in self._turn([way]).items():
                before = found[pair].bits_per_s or 0.0
                found[pair] = again if (again.bits_per_s or 0.0) > before else found[pair]
        self._phase(len(turns), len(turns))
        return {a: {b: found[a, b] for b in hosts if (a, b) in found} for a in hosts}

    def _turn(self, turn: Sequence[Pair]) -> dict[Pair, Throughput]:
        ways = [way for way in turn if way not in self._closed and self._mute.isdisjoint(way)]
        if not ways:
            return {}
        answered = self._push(ways)
        found = {}
        for source, target in ways:
            result = answered.get(source)
            if result is None:
                self._mute.add(source)
                result = Throughput(None, failed=("failed", "it did not answer in time"))
            elif result.bits_per_s is None:
                self._mute.add(target)
            found[source, target] = result
        return found


def best(found: Mapping[str, Mapping[str, Throughput]]) -> float | None:
    """What the fastest way had, in bit/s; None where nothing was measured."""
    speeds = [each.bits_per_s for row in found.values() for each in row.values()]
    return max((each for each in speeds if each is not None), default=None)


def slow(found: Mapping[Pair, Throughput]) -> list[Pair]:
    """The ways with less than SLOW_SHARE of the median, the slowest first."""
    speeds = {pair: each.bits_per_s for pair, each in found.items() if each.bits_per_s is not None}
    if len(speeds) < 3:
        return []
    least = SLOW_SHARE * statistics.median_high(speeds.values())
    return sorted((pair for pair, each in speeds.items() if each < least), key=lambda pair: speeds[pair])


def odd_ways(found: Mapping[str, Mapping[str, Throughput]]) -> Iterator[Odd]:
    """What to tell of ways that are slow."""
    ways = {(a, b): each for a, row in found.items() for b, each in row.items()}
    speeds = {pair: each.bits_per_s for pair, each in ways.items() if each.bits_per_s is not None}
    late = slow(ways)
    for name, hosts, pairs in grouped(late):
        own = [speeds[pair] for pair in pairs]
        span = speed(min(own)) if len(own) == 1 else f"{speed(min(own))} to {speed(max(own))}"
        usual = f"the median of the {len(speeds)} ways is {speed(statistics.median_high(speeds.values()))}"
        if there_and_back := _long([ways[pair] for pair in pairs], ways.values()):
            yield Odd(hosts, f"{name}: {span}, {usual}; {there_and_back}", LONG_STEP)
        else:
            yield Odd(hosts, f"{name}: {span}, {usual}", SLOW_STEP)


def _long(late: Sequence[Throughput], every: Iterable[Throughput]) -> str:
    """How long these slow ways are, if that explains that they are slow: they are long, and lose nothing."""
    usual = statistics.median([each.rtt_ms for each in every if each.bits_per_s is not None])
    least = min(each.rtt_ms for each in late)
    if least < max(_LONG_MS, _LONGER * usual) or any(each.lost for each in late):
        return ""
    return f"packets take {least:.3g} ms there and back, and {usual:.2g} ms on half of the ways"
