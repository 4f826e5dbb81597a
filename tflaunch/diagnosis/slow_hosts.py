"""Hosts that slow their tasks down: packets that are sent again and again, swap, too little memory, too few processors.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import KEPT_S, goes_on
from tflaunch.diagnosis.rule import names_of
from tflaunch.diagnosis.stragglers import limit_of, others_of
from tflaunch.text.numbers import agreeing, amount

if TYPE_CHECKING:
    from tflaunch.diagnosis.paces import Paces

SEGMENTS = 50  # of fewer, a share says little
PARTS = 3
FAULTS_S = 5.0  # pages a second that a disk must bring back for a task
# Times slow_s: a straggler, and a ps that holds the others up, are told before, with what they cost.
LATER = 1.5
WAITS = 0.5  # seconds that threads wait for a processor, for each that they run
OTHERS_PART = 0.2  # of the cores in use there: so much other programs must have


def lossy(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts many of whose packets are lost on the way."""
    watched, limits = paces.watched, paces.limits
    # In each of its parts, so that it was not a burst.
    parts = [
        paces.over(now - limits.slow_s * left / PARTS, now - limits.slow_s * (left - 1) / PARTS)
        for left in range(PARTS, 0, -1)
    ]
    shares = {
        name: min(part[name].again for part in parts)
        for name in parts[0]
        if all(name in part and part[name].segments >= SEGMENTS for part in parts)
    }
    worst = max(shares.values(), default=0.0)
    if worst < limits.lost_share:
        return {}
    found: dict[str, Finding] = {}
    # Those at the other end of a bad cable send less again, for they have other ways, too.
    for name, share in sorted(shares.items(), key=lambda each: -each[1]):
        host = watched.places[name].host
        if share < max(limits.lost_share, 0.7 * worst) or f"{host} loses" in found:
            continue
        who = watched.who([name])
        text = (
            f"{share:.0%} of the packets of {who} are lost on the way, and sent again (in the last"
            f" {limits.slow_s:.0f} s), which makes it slow; look at the cable, the port of the switch and the network"
            f" card of {host} (`ethtool -S`: errors, drops)"
        )
        found[f"{host} loses"] = Finding(text, f"packets of {who} are hardly lost any more", (name,))
    return found


def swapping(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts that move memory to and from their swap all the time."""
    limits = paces.limits
    found = {}
    for host, seen in paces.machines.items():
        since = [each for each in seen if each.at >= now - limits.slow_s - limits.look_s]
        names = [
            name
            for name, place in paces.watched.places.items()
            if place.host == host and paces.tasks[name].swapped and paces.tasks[name].samples
        ]
        if not names or len(since) < 3 or since[-1].at - since[0].at < limits.slow_s / 2:
            continue
        rate = (since[-1].swapped - since[0].swapped) / (since[-1].at - since[0].at)
        moving = sum(new.swapped > old.swapped for old, new in zip(since, since[1:]))  # noqa: B905, RUF007  Python 3.8
        if rate < limits.swap_bytes_s or 2 * moving < len(since):
            continue
        name = max(names, key=lambda each: paces.tasks[each].swapped)
        pace, who = paces.tasks[name], paces.watched.who([name])
        text = (
            f"{host} has moved {amount(rate)}/s to and from its swap for {limits.slow_s:.0f} s, and {who} has"
            f" {amount(pace.swapped)} there beside {amount(pace.memory)} in memory: it needs less memory (a smaller"
            " shuffle buffer, fewer batches ahead), or a host with more"
        )
        found[f"{host} swaps"] = Finding(text, f"{host} swaps no more", (name,))
    return found


def short_of_memory(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts whose programs wait for memory all the time, though they may swap nothing."""
    limits = paces.limits
    windows = paces.over(now - limits.slow_s, now)
    found = {}
    for host in paces.machines:
        share = paces.lasting(host, "memory", now - limits.slow_s, now)
        # Other programs of the host may be short of memory in a part of it that is theirs.
        here = [
            name
            for name, window in windows.items()
            if paces.watched.places[name].host == host and window.faults_s >= FAULTS_S
        ]
        if not here or share < limits.memory_share:
            continue
        name = max(here, key=lambda each: windows[each].faults_s)
        who, much = paces.watched.who([name]), amount(paces.tasks[name].memory)
        text = (
            f"{host} is short of memory: programs have waited for it in {share:.0%} of the last {limits.slow_s:.0f} s,"
            f" and {who}, which has {much}, for {windows[name].faults_s:.0f} of its own pages a second that the kernel"
            " had dropped: it needs less (a smaller shuffle buffer, fewer batches ahead), or a host, or a limit, with"
            " more"
        )
        found[f"{host} short"] = Finding(text, f"{host} is no more short of memory", (name,))
    return found


def crowded(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts whose tasks wait for a processor all the time: other programs have it, or a quota holds them back.

    Tasks that want more cores than there are, and have them to themselves, wait for each other, and are well.
    """
    watched, limits = paces.watched, paces.limits
    seconds = min(LATER * limits.slow_s, KEPT_S - 2 * limits.look_s)
    windows = paces.over(now - seconds, now)
    found = {}
    for host in paces.machines:
        share = paces.lasting(host, "cpu", now - seconds, now)
        here = {name: each for name, each in windows.items() if watched.places[name].host == host}
        waiting = [name for name, each in here.items() if each.waiting >= max(WAITS * each.cores, WAITS)]
        if share < limits.cpu_share or not waiting:
            continue
        name = max(waiting, key=lambda each: here[each].waiting)
        mine, used = here[name], sum(each.cores for each in here.values())
        why = limit_of(mine, paces.tasks[name].cores, limits)
        if not why and paces.other(host, now - seconds)[1] >= OTHERS_PART / (1 - OTHERS_PART) * used:
            why = others_of(paces, host, now)
        if why:
            who = watched.who([name])
            text = (
                f"{host} has too few processors for {who}: programs have waited for one in {share:.0%} of the last"
                f" {seconds:.0f} s, and its threads {mine.waiting / max(mine.cores, 0.001):.1f} s for each second that"
                f" they run; {why}"
            )
            over = f"{host} has processors for {who} again"
            found[f"{host} crowded"] = Finding(text, over, tuple(waiting))
    return found


def starved(paces: Paces, now: float) -> dict[str, Finding]:
    """Hosts that are so crowded that tasks there want to run, and hardly do."""
    limits = paces.limits
    minute, *halves = (
        # Their agents are late, too.
        paces.over(now - limits.slow_s * begin, now - limits.slow_s * end, slack_s=limits.fresh_s)
        for begin, end in ((1, 0), (1, 0.5), (0.5, 0))
    )
    names = [
        name
        for name, window in minute.items()
        if all(name in half and half[name].waiting >= limits.starved_wait for half in halves)
        and window.cores < limits.idle_cores
        and window.held < limits.held_share  # else its quota is the reason
        and not goes_on(window)
    ]
    if not names:
        return {}
    hosts = list(dict.fromkeys(paces.watched.places[name].host for name in names))
    had, waited = (
        sum(getattr(minute[name], what) for name in names) * limits.slow_s for what in ("cores", "waiting")
    )
    text = (
        f"{names_of(hosts)} {agreeing(len(hosts), 'is', 'are')} crowded: {names_of(names)} had a processor for"
        f" {had:.1f} s in {limits.slow_s:.0f} s, and threads waited {waited:.0f} s for one;"
        f" {others_of(paces, hosts[0], now) or 'put fewer tasks there, or give them another host'}"
    )
    over = f"{names_of(names)} {agreeing(len(names), 'gets', 'get')} a processor again"
    return {"starved": Finding(text, over, tuple(names))}
