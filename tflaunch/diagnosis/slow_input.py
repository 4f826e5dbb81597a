"""Workers that wait for their input, and the one that the others wait for in a synchronous run with parameter servers.

Both show in where the main threads stand (stack_rounds.py): within `next()` or a read; within the program's own code
while the others are in session.run.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import goes_on, median
from tflaunch.diagnosis.slow_disks import disk_of
from tflaunch.diagnosis.standing import FOR_PEERS
from tflaunch.diagnosis.stragglers import STEADY, limit_of, why

if TYPE_CHECKING:
    from tflaunch.diagnosis.paces import Paces, Window
    from tflaunch.diagnosis.stack_rounds import StackRounds
    from tflaunch.diagnosis.standing import Stand
    from tflaunch.diagnosis.thresholds import Thresholds

# What brings nothing but data.  A socket, a pipe, a queue, a future or a process of the program's own may bring what
# its peers have computed, or compute itself.
INPUT = ("data", "disk")
MOST = 0.9  # a share from a few looks is no surer
WORKS = 0.9  # of its time: who is waited for waits for nobody
LEAST_GAIN = 0.25  # how much less the others must do
ALIKE = 0.15  # what the speeds of workers differ by that go in step


def for_input(stand: Stand) -> bool:
    """Whether a task that stands there waits for its input."""
    return stand.kind in INPUT or stand.loads


def alone(stand: Stand) -> bool:
    """Whether it is in its own code, or in a library, and waits for no peer."""
    return stand.kind not in FOR_PEERS


def waits_for_input(paces: Paces, rounds: StackRounds, now: float) -> dict[str, Finding]:
    """All workers that do."""
    watched, limits = paces.watched, paces.limits
    windows = paces.over(now - limits.slow_s, now)
    shares = {
        name: share.part
        for name, window in windows.items()
        if paces.tasks[name].trains and goes_on(window)
        if (share := rounds.share(name, for_input))
        and share.part >= max(limits.input_share, 0.65 * share.blur)
    }
    if not shares:
        return {}
    names = sorted(shares)
    first, part = max(names, key=lambda name: shares[name]), median(shares.values())
    who, wait = watched.who(names), "waits for its" if len(names) == 1 else "wait for their"
    text = (
        f"{who} {wait} input: in {part:.0%} of the looks the main thread"
        f" {rounds.words(first, for_input)}{rounds.place(first, for_input)}; without that it would be up to"
        f" {1 / (1 - min(MOST, part)):.1f}x faster: {_limit(paces, first, windows[first])}"
    )
    over = f"{who} {wait} input no more"
    return {"input": Finding(text, over, tuple(names))}


def _limit(paces: Paces, name: str, window: Window) -> str:
    """What bounds the input on that host, and what to do."""
    host, cores = paces.watched.places[name].host, paces.tasks[name].cores
    return (
        limit_of(window.held, cores, paces.limits)
        or disk_of(window, host, paces)
        or _by_cores(window, cores, host, paces.limits)
        or f"it uses {window.cores:.2g} cores, and no thread of it waits for a disk of {host}: where the data come from"
        " is slow (a file server, another process); read several files at once (interleave with num_parallel_calls),"
        " keep a copy on the host (cache()), and read ahead (prefetch())"
    )


def _by_cores(window: Window, cores: float, host: str, limits: Thresholds) -> str:
    if cores and window.cores >= limits.ps_cores * cores:
        return (
            f"it uses {window.cores:.2g} of its {cores:.2g} cores; give it more, or store the data ready-made"
        )
    if 0.8 <= window.cores <= 1.2 and cores >= 2:
        return (
            f"one thread prepares the data, with {window.cores:.2g} of {cores:.2g} cores of {host}; use map() with"
            " num_parallel_calls=tf.data.AUTOTUNE, and prefetch()"
        )
    return ""


def out_of_step(paces: Paces, rounds: StackRounds, now: float) -> dict[str, Finding]:
    """The worker that works while all others are in session.run, though all are as fast."""
    watched = paces.watched
    if not any(task.startswith("ps/") for task in watched.places):
        return {}
    windows = paces.over(now - paces.limits.slow_s, now)
    living = [name for name, pace in paces.tasks.items() if pace.trains and pace.samples]
    shares = {
        name: share
        for name in living
        if name in windows and windows[name].moving >= STEADY
        if (share := rounds.share(name, alone))
    }
    slow = [name for name, share in shares.items() if share.part >= WORKS]
    usual = median(windows[name].bytes_s for name in shares)
    if len(shares) < max(2, len(living)) or len(slow) != 1:
        return {}
    [name] = slow
    others = [other for other in shares if other != name]
    mine, theirs = shares[name], sum(shares[other].part for other in others) / len(others)
    # Workers that do not go in step would differ by what one of them does besides.
    alike = all(abs(windows[each].bytes_s - usual) <= ALIKE * usual for each in shares)
    if mine.part - theirs < max(LEAST_GAIN, mine.blur) or not alike:
        return {}
    who, of_input = watched.who([name]), rounds.share(name, for_input)
    by_input = of_input is not None and of_input.part >= 0.5
    reason = _limit(paces, name, windows[name]) if by_input else why(paces, name, others, now)
    text = (
        f"{who} holds up the others: in {mine.part:.0%} of {mine.answers} looks its main thread was in no session.run"
        f" ({rounds.words(name, alone)}{rounds.place(name, alone)}), the others' in {theirs:.0%}; as fast as they are,"
        f" it would make the run up to {1 / max(1 - MOST, theirs):.1f}x faster: {reason}"
    )
    return {f"{name} out of step": Finding(text, f"{who} holds up the others no more", (name,))}
