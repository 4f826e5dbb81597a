"""A parameter server that the workers wait for: bound by its processors, or by its network.

Its processor time, the quota of its cgroup, its threads' wait for a processor and its send queues tell.  A ps whose own
calls to the workers wait for their answers is not what holds them up.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.paces import median
from tflaunch.diagnosis.stragglers import MORE_WAITING, STEADY, others_of
from tflaunch.text.numbers import amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tflaunch.diagnosis.paces import Paces, Window
    from tflaunch.diagnosis.thresholds import Thresholds

WAITED = "have waited for one"
UNEVEN = 2.0  # times the bytes of the other parameter servers


def bound(paces: Paces, now: float) -> dict[str, Finding]:
    """The parameter servers that hold up the workers."""
    watched, limits = paces.watched, paces.limits
    ps = [task for task in watched.places if task.startswith("ps/")]
    if not ps:
        return {}
    since = now - limits.slow_s
    windows = paces.over(since, now)
    workers = [name for name, pace in paces.tasks.items() if pace.trains and name in windows]
    awaits = paces.unanswered(since, ps)
    shares = [awaits[name][1] for name in workers if name in awaits]
    if not workers or median(shares) >= limits.awaited_share:
        return {}
    usual = median(windows[name].waits for name in workers)
    # Where the workers wait, too, all are on full machines; a ps runs little, and waits long for each second of it.
    least = max(limits.ps_waiting, MORE_WAITING * median(windows[name].waiting for name in workers))
    found = {}
    for name in ps:
        window = windows.get(name)
        if window is None or window.moving < STEADY:
            continue
        crowded = window.waits >= max(limits.crowded_wait, 2 * usual)
        crowded = crowded and usual < limits.crowded_wait and window.waiting >= least
        what = _by_cpu(window, paces.tasks[name].cores, limits, crowded=crowded)
        what = what or _by_network(window, windows, workers, limits)
        if what:
            who = watched.who([name])
            # A ps that has cores left, and waits for them, shares them.
            others = others_of(paces, name, now) if what.endswith(WAITED) else ""
            text = f"{who} holds up the workers by its {what}; {others or _remedy(name, ps, windows)}"
            found[f"{name} bound"] = Finding(text, f"{who} holds up the workers no more", (name,))
    return found


def _by_cpu(window: Window, cores: float, limits: Thresholds, *, crowded: bool) -> str:
    used = f"processors: it has used {window.cores:.2g}"
    if window.held >= limits.held_share:
        return (
            f"{used} cores for {window.seconds:.0f} s, and the quota of its cgroup stops it in {window.held:.0%} of the"
            " time"
        )
    if cores and window.cores >= limits.ps_cores * cores:
        return f"{used} of its {cores:.2g} cores for {window.seconds:.0f} s"
    if crowded:
        return f"{used} cores for {window.seconds:.0f} s, and {window.waiting:.1f} of its threads {WAITED}"
    return ""


def _by_network(
    window: Window, windows: Mapping[str, Window], workers: Sequence[str], limits: Thresholds
) -> str:
    share = max(window.full, median(windows[name].full for name in workers))
    if share < limits.full_share:
        return ""
    return (
        f"network: {amount(window.bytes_s)}/s go in and out, and more than 64 KiB wait to be sent in {share:.0%} of the"
        " looks"
    )


def _remedy(name: str, ps: Sequence[str], windows: Mapping[str, Window]) -> str:
    others = [windows[other].bytes_s for other in ps if other != name and other in windows]
    if others and windows[name].bytes_s > UNEVEN * median(others):
        times = windows[name].bytes_s / max(median(others), 1.0)
        much = f"{times:.1f}x as much as" if times < 100 else "far more than"
        return (
            f"it moves {much} the other ps: divide its largest variable (partitioner=, or"
            " GreedyLoadBalancingStrategy)"
        )
    return f"more ps share that (--ps={2 * len(ps)}), or give it a faster host or network"
