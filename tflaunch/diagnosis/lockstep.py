"""The task that the others wait for in each step of a synchronous run without parameter servers.

All have one step time, and move bytes alike.  The one that works while the others wait is the one whose callers have
sent since they last received: measured with MultiWorkerMirroredStrategy, in 0.9 of the looks for a worker that takes
0.3 s longer for a step of 0.05 s, and in none for the others.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import Finding
from tflaunch.diagnosis.stragglers import STEADY, why

if TYPE_CHECKING:
    from tflaunch.diagnosis.paces import Paces

LOOKS = 8  # at calls, so that their share says something
MOST = 0.9  # a share from a dozen looks is no surer
CHANCE = 1.5  # over the root of how many looks there are: what shares that are alike differ by in one of some hundreds


def held_up(paces: Paces, now: float) -> dict[str, Finding]:
    """The worker that all wait for, if there is one."""
    watched, limits = paces.watched, paces.limits
    # gRPC's own frames answer for a ps at once, so there the calls do not show who works.
    if any(task.startswith("ps/") for task in watched.places):
        return {}
    windows = paces.over(now - limits.slow_s, now)
    workers = [
        name for name, window in windows.items() if paces.tasks[name].trains and window.moving >= STEADY
    ]
    living = [name for name, pace in paces.tasks.items() if pace.trains and pace.samples]
    if len(workers) < 2 or len(workers) < len(living):
        return {}
    calls = paces.unanswered(now - limits.slow_s, workers)
    asked = {name: share for name, (looks, share) in calls.items() if looks >= LOOKS and name in workers}
    slow = [name for name, share in asked.items() if share >= limits.awaited_share]
    if len(slow) != 1 or len(asked) < 2 or len(asked) < len(workers):
        return {}
    [name] = slow
    others = [other for other in workers if other != name]
    theirs = max(asked[other] for other in others)
    # Of few looks, shares that are alike may lie so far apart by chance.
    if theirs > limits.awaited_share / 2 or asked[name] - theirs < CHANCE / calls[name][0] ** 0.5:
        return {}
    share = min(MOST, asked[name])
    who = watched.who([name])
    text = (
        f"{who} holds up the others: in {share:.0%} of the looks of the last {limits.slow_s:.0f} s a call to it waited"
        f" for its answer, to the others in {theirs:.0%}; as fast as they are, it would"
        f" make the run up to {1 / (1 - share):.1f}x faster: {why(paces, name, others, now)}"
    )
    return {f"{name} holds up": Finding(text, f"{who} holds up the others no more", (name,))}
