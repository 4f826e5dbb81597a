"""Hosts that slow their tasks down: packets that are sent again and again, swap, too little memory, too few processors.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.movement import starves
from tflaunch.diagnosis.paces import KEPT_S, goes_on
from tflaunch.diagnosis.stragglers import limit_of, others_of
from tflaunch.text.numbers import agreeing, amount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.diagnosis.paces import Paces, Window

SEGMENTS = 50  # of fewer, a share says little
PARTS = 3
FAULTS_S = 5.0  # pages a second that a disk must bring back for a task
# Times slow_s: a straggler, and a ps that holds the others up, are told before, with what they cost.
LATER = 1.5
OTHERS_PART = 0.2  # of the cores in use there: so much other programs must have, beside OTHERS_CORES


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
        names = [name for name in paces.on(host) if paces.tasks[name].swapped and paces.tasks[name].samples]
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
        # Other programs of the host may be short of memory in a part of it that is theirs.
        here = [name for name in paces.on(host) if name in windows and windows[name].faults_s >= FAULTS_S]
        share = paces.lasting(host, "memory", now - limits.slow_s, now) if here else 0.0
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
    """Hosts whose tasks want processors, and get too few: other programs have them, or a quota holds the tasks back.

    Who hardly runs is told, whatever the reason.  Others that want more cores than there are, and have them to
    themselves, wait for each other, and are well.
    """
    limits, starving = paces.limits, _starving(paces, now)
    seconds = min(LATER * limits.slow_s, KEPT_S - 2 * limits.look_s)
    windows = paces.over(now - seconds, now)
    waiting = {
        name: window.waiting
        for name, window in windows.items()
        if window.waiting >= limits.starved_wait * max(1.0, window.cores)
    }
    found = {}
    for host in paces.hosts:
        whom = tasks = [name for name in paces.on(host) if name in starving]
        what = _hardly_run(paces, {name: starving[name] for name in tasks}, now) if tasks else ""
        if not tasks:
            tasks = [name for name in paces.on(host) if name in waiting]
            whom = [max(tasks, key=lambda each: waiting[each])] if tasks else []
            what = _short(paces, whom[0], windows, now - seconds, now) if tasks else ""
        if what:
            who = paces.watched.who(whom)
            text = f"{host} has too few processors for {who}: {what}"
            found[f"{host} crowded"] = Finding(text, f"{host} has processors for {who} again", tuple(tasks))
    return found


def _starving(paces: Paces, now: float) -> dict[str, Window]:
    """The tasks that have wanted to run for a minute, and hardly have."""
    limits = paces.limits
    minute, *halves = (
        # Their agents are late, too.
        paces.over(now - limits.slow_s * begin, now - limits.slow_s * end, slack_s=limits.fresh_s)
        for begin, end in ((1, 0), (1, 0.5), (0.5, 0))
    )
    return {
        name: window
        for name, window in minute.items()
        if not goes_on(window)
        and all(name in half and starves(half[name].cores, half[name].waiting, limits) for half in halves)
    }


def _hardly_run(paces: Paces, tasks: Mapping[str, Window], now: float) -> str:
    """How little these tasks of one host have run in the last minute, why, and what to do."""
    slow_s, name = paces.limits.slow_s, max(tasks, key=lambda each: tasks[each].held)
    had = slow_s * sum(each.cores for each in tasks.values())
    waited = slow_s * sum(each.waiting for each in tasks.values())
    why = limit_of(tasks[name].held, paces.tasks[name].cores, paces.limits) or others_of(paces, name, now)
    return (
        f"{agreeing(len(tasks), 'it', 'they')} had one for {had:.1f} s in {slow_s:.0f} s, and"
        f" {agreeing(len(tasks), 'its', 'their')} threads waited {waited:.0f} s;"
        f" {why or 'put fewer tasks there, or give them another host'}"
    )


def _short(paces: Paces, name: str, windows: Mapping[str, Window], since: float, now: float) -> str:
    """How long that task and the programs of its host have waited for a processor, why, and what to do.

    "" where they have not, to speak of, or only for each other.
    """
    host, limits, mine = paces.watched.places[name].host, paces.limits, windows[name]
    share = paces.lasting(host, "cpu", since, now)
    if share < limits.cpu_share:
        return ""
    why = limit_of(mine.held, paces.tasks[name].cores, limits)
    used = sum(windows[each].cores for each in paces.on(host) if each in windows)
    if not why and paces.other(host, since)[1] >= OTHERS_PART / (1 - OTHERS_PART) * used:
        why = others_of(paces, name, now)
    if not why:
        return ""
    return (
        f"programs have waited for one in {share:.0%} of the last {now - since:.0f} s, and its threads"
        f" {mine.waits:.1f} s for each second that they run; {why}"
    )
