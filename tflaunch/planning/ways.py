"""Ways between hosts that are much longer than the others, or that lose packets; pure.

The calls of a dial check measure each way once, all at the same moment, so a single figure may be bad luck: a burst of
answers, a busy host.  Therefore what looks odd (`suspects`) is measured REPEATS times more while nothing else is
called, and only what is odd again is told (`odd_ways`).  Where all ways are alike, none is odd, however long it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tflaunch.diagnosis.paces import median
from tflaunch.hosts import fold

FAR_TIMES = 10.0  # a way is far with so many times the median round trip of all ways ...
FAR_MS = 3.0  # ... and at least that
LOSSY = 2  # a way is lossy when so many of its REPEATS connections lost packets
REPEATS = 8
MOST = 24  # ways that are measured again
SHARED = 3  # so many odd ways of one host become one sentence

FAR_STEP = (
    "`ping {to}` on {source} shows it; is there a VPN, a detour or a full link between them? If the hosts share another"
    " network, name it by `address:` in the hostfile"
)
LOSSY_STEP = (
    "`ip -s link` and `ethtool -S DEVICE` on both hosts count errors and drops: a cable, a port of the switch, or a"
    " full link?"
)

Pair = tuple[str, str]  # the host that calls, and the one that it calls


class Measured(NamedTuple):
    """One connection: its shortest round trip, and how many of its packets were lost."""

    rtt_ms: float
    lost: float


class Odd(NamedTuple):
    """What is told of some ways: the hosts at their ends, what is wrong, and the next step."""

    hosts: tuple[str, ...]
    what: str
    fix: str


def by_pair(
    source: str, targets: Sequence[str], ways: Sequence[Sequence[float] | None]
) -> Iterator[tuple[Pair, Measured]]:
    """The measured connections from `source` to these hosts, those to itself left out."""
    for target, way in zip(targets, ways, strict=False):
        if way is not None and target != source:
            yield (source, target), Measured(*way)


def collected(found: Iterable[tuple[Pair, Measured]]) -> dict[Pair, list[Measured]]:
    """All connections of each pair."""
    ways: dict[Pair, list[Measured]] = {}
    for pair, measured in found:
        ways.setdefault(pair, []).append(measured)
    return ways


def _usual(first: Mapping[Pair, Sequence[Measured]]) -> tuple[float, str]:
    """The round trip in ms that the others are compared with, and what it is, in words."""
    times = sorted(min(way)[0] for way in first.values())
    median_ms, quarter_ms = times[(len(times) - 1) // 2], times[(len(times) - 1) // 4]
    # Of three hosts a far one is in most of the pairs.
    if len({host for pair in first for host in pair}) == 3 and _is_far(median_ms, quarter_ms):
        return quarter_ms, f"a quarter of the {len(times)} pairs take {milliseconds(quarter_ms)} or less"
    return median_ms, f"the median of the {len(times)} pairs is {milliseconds(median_ms)}"


def _is_far(rtt_ms: float, usual_ms: float) -> bool:
    return rtt_ms >= max(FAR_MS, FAR_TIMES * usual_ms)


def suspects(first: Mapping[Pair, Sequence[Measured]]) -> list[Pair]:
    """The pairs to measure again, at most MOST, the worst first."""
    if not first:
        return []
    usual_ms, _ = _usual(first)
    far = {pair: min(way)[0] for pair, way in first.items() if _is_far(min(way)[0], usual_ms)}
    lossy = {pair: lost for pair, way in first.items() if (lost := sum(each.lost for each in way))}
    ranked = [sorted(each, key=lambda pair: -each[pair]) for each in (far, lossy)]
    return list(dict.fromkeys([*ranked[0][: MOST // 2], *ranked[1][: MOST // 2], *ranked[0], *ranked[1]]))[
        :MOST
    ]


def odd_ways(first: Mapping[Pair, Sequence[Measured]], again: Mapping[Pair, Sequence[Measured]]) -> list[Odd]:
    """What to tell of the ways that are odd `again`; `first` has all ways."""
    if not first:
        return []
    usual_ms, usual = _usual(first)
    far, lossy = {}, {}
    for pair, way in again.items():
        rtt_ms = median(each.rtt_ms for each in way)
        if _is_far(rtt_ms, usual_ms):
            far[pair] = rtt_ms
        lost = sum(bool(each.lost) for each in way)
        if lost >= LOSSY:
            lossy[pair] = lost
    told = []
    for name, hosts, pairs in grouped(far):
        times = [far[pair] for pair in pairs]
        source, to = pairs[0]
        what = f"{name}: {_span(min(times), max(times))}, {usual}"
        told.append(Odd(hosts, what, FAR_STEP.format(source=source, to=to)))
    for name, hosts, pairs in grouped(lossy):
        lost, of = sum(lossy[pair] for pair in pairs), sum(len(again[pair]) for pair in pairs)
        told.append(Odd(hosts, f"{name}: packets are lost, in {lost} of {of} short connections", LOSSY_STEP))
    return told


def milliseconds(ms: float) -> str:
    """`0.2 ms`, `48 ms`."""
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 0.1 else f"{ms:.2f} ms"


def _span(least: float, most: float) -> str:
    words = milliseconds(least), milliseconds(most)
    return words[0] if words[0] == words[1] else f"{words[0].removesuffix(' ms')} to {words[1]}"


def grouped(pairs: Collection[Pair]) -> Iterator[tuple[str, tuple[str, ...], list[Pair]]]:
    """(`gpu03 -> gpu07`, the hosts, the pairs): the ways of a host that has many odd ones together."""
    left = list(pairs)
    while left:
        count = Counter(host for pair in left for host in set(pair))
        host, _ = max(count.items(), key=lambda item: item[1])
        own = [pair for pair in left if host in pair]
        others = list(dict.fromkeys(other for pair in own for other in pair if other != host))
        if len(others) < SHARED:
            host, others = left[0][0], [left[0][1]]
            own = [pair for pair in left if set(pair) == set(left[0])]
        left = [pair for pair in left if pair not in own]
        away, back = (any(pair[end] == host for pair in own) for end in (0, 1))
        arrow = "<->" if away and back else "->" if away else "<-"
        yield f"{host} {arrow} {fold(others)}", (host, *others), own
