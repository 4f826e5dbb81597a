"""Workers of an asynchronous run that are slower than the others, and why.

Each step moves the same bytes to and from the parameter servers, so who moves fewer a second takes fewer steps.  Only
workers that move bytes all the time are compared, in two windows, one after the other: a worker that saves, evaluates
or compiles, or has ended, is not slow.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import median
from tflaunch.diagnosis.slow_disks import disk_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tflaunch.diagnosis.paces import Paces, Window
    from tflaunch.diagnosis.thresholds import Thresholds

SETTLED = 1.3  # the first window is hardly faster than the second: the slowness began before both
OTHERS_CORES = 0.2  # of other programs on its host, from which on they are named
# Times the others' time without a processor: so much more the host of a slow one is crowded.
MORE_WAITING = 1.5
STEADY = 0.8  # share of the looks in which a worker must have moved bytes


def stragglers(paces: Paces, now: float) -> dict[str, Finding]:
    """Of each job whose tasks call parameter servers: the tasks that are slower than the others."""
    watched, limits = paces.watched, paces.limits
    if not any(task.startswith("ps/") for task in watched.places):
        return {}
    half_s = limits.slow_s / 2
    early = paces.over(now - limits.slow_s, now - half_s)
    late = paces.over(now - half_s, now)
    steady = [
        name
        for name in late
        if name in early
        and paces.tasks[name].job == "worker"
        and min(early[name].moving, late[name].moving) >= STEADY
    ]
    if len(steady) < 2:
        return {}
    found = {}
    least = limits.slow_ratio if len(steady) > 2 else limits.slow_ratio_of_two
    # Of two, each is compared with the other.
    usual = [
        (median if len(steady) > 2 else max)(window[name].bytes_s for name in steady) or 1.0
        for window in (early, late)
    ]
    for name in steady:
        was, now_is = early[name].bytes_s / usual[0], late[name].bytes_s / usual[1]
        if max(was, now_is) < least and was <= SETTLED * now_is:
            others = [other for other in steady if other != name]
            times = 1 / now_is
            who = watched.who([name])
            than = others[0] if len(others) == 1 else "the other workers"
            text = f"{who} has been {times:.1f}x slower than {than} for {limits.slow_s:.0f} s"
            text += f", which costs the run {(1 - now_is) / len(steady):.0%} of its steps: "
            text += why(paces, name, others, now)
            found[f"{name} slow"] = Finding(text, f"{who} is as fast as {than} again", (name,))
    # Half of them or more are no exception.
    return found if 2 * len(found) <= len(steady) else {}


def why(paces: Paces, name: str, others: list[str], now: float) -> str:
    """What that task lacks that the others have, and what to do about it."""
    windows = paces.over(now - paces.limits.slow_s, now)
    mine = windows.get(name)
    theirs = [windows[other] for other in others if other in windows]
    if mine is None or not theirs:
        return "tflaunch stacks shows where it is"
    host = paces.watched.places[name].host
    return (
        limit_of(mine.held, paces.tasks[name].cores, paces.limits)
        or _crowded(paces, name, mine, theirs, now)
        or _link(mine, host, paces.limits)
        or disk_of(mine, host, paces)
        or _rest(mine, theirs)
    )


def limit_of(held: float, cores: float, limits: Thresholds) -> str:
    """That a quota of so many cores stops a task in that share of the time; "" if it does not, to speak of."""
    if held < limits.held_share:
        return ""
    return (
        f"the quota of its cgroup, {cores:.2g} cores, stops it in {held:.0%} of the time; raise its limit"
        " (Slurm: --cpus-per-task; Kubernetes: limits.cpu; docker: --cpus)"
    )


def _crowded(paces: Paces, name: str, mine: Window, theirs: list[Window], now: float) -> str:
    waits, usual = mine.waits, median(other.waits for other in theirs)
    # Who hardly runs, as it waits for a disk, waits long for each second that it does, and not long in all.
    least = max(0.1, MORE_WAITING * median(other.waiting for other in theirs))
    if waits < max(paces.limits.crowded_wait, 2 * usual) or mine.waiting < least:
        return ""
    text = f"its threads wait {waits:.1f} s for a processor for each second that they run"
    text += f" (the others' {usual:.1f} s)"
    others = others_of(paces, name, now)
    if others:
        return f"{text}, and {others}"
    return f"{text}; put fewer tasks on {paces.watched.places[name].host}, or give it another host"


def others_of(paces: Paces, name: str, now: float) -> str:
    """That other programs compute on that task's processors, and what to do; "" if they do not, to speak of."""
    host = paces.watched.places[name].host
    other, cores = paces.other(host, now - paces.limits.slow_s)
    if cores < OTHERS_CORES or not paces.may_use_all(name):
        return ""
    return (
        f"programs that are not the run's use {cores:.1f} cores of {host} ({other}); end them, or give the task another"
        " host"
    )


def _link(mine: Window, host: str, limits: Thresholds) -> str:
    if mine.full < limits.full_share:
        return ""
    return (
        f"more than 64 KiB wait to be sent in {mine.full:.0%} of the looks, so its network is slow; look at the link of"
        f" {host} (`ethtool`), and at what else uses it; tflaunch check --bandwidth measures it"
    )


def _rest(mine: Window, theirs: list[Window]) -> str:
    usual = median(other.cores for other in theirs)
    uses = f"it uses {mine.cores:.2g} cores, the others {usual:.2g}"
    if mine.cores < 0.7 * usual:
        return f"{uses}: does it wait for its input? `tflaunch stacks` shows where it is"
    return f"{uses}: has it more work in each step, slower processors, or a slower GPU?"
