"""What stands still: all trainers, all but a few, those that spin or talk while they wait, or one whose peers go on.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tflaunch.diagnosis.movement import Movement
    from tflaunch.diagnosis.rule import Watched
    from tflaunch.diagnosis.thresholds import Thresholds


class Case(NamedTuple):
    """A standstill to be judged."""

    # all, busy (all but a few, which compute), gpus (who waits may spin), talk (who waits talks to its peers), one
    kind: str
    tasks: tuple[str, ...]  # that are looked at
    since: float
    patience_s: float  # before the agents are asked


class Standstills:
    """Finds them by the movements of the tasks, and by what NVML says of their GPUs."""

    def __init__(self, watched: Watched, moves: Mapping[str, Movement]) -> None:
        self._watched = watched
        self._limits = watched.thresholds
        self._moves = moves
        self._gpus_idle: dict[str, float] = {}  # task -> since when NVML has seen its GPUs idle
        self._stood_at = float("-inf")  # when all tasks, or all but a few, were last seen to stand still

    def note_gpus(self, task: str, gpus: Mapping[str, Any], at: float) -> None:
        """Note what NVML has said of the GPUs of a task."""
        own = [gpus.get(uuid, {}) for uuid in self._watched.gpus[task]]
        if all(not each.get("error") and _idle(each.get("use"), self._limits) for each in own):
            self._gpus_idle.setdefault(task, at)
        else:
            self._gpus_idle.pop(task, None)

    def started(self, task: str) -> None:
        """A new attempt of that task has begun."""
        self._gpus_idle.pop(task, None)

    def cases(self, living: Sequence[str], now: float) -> list[Case]:
        """What stands still of the trainers that live."""
        moves = {task: self._moves[task] for task in living}
        if not moves or any(
            not each.compared or now - each.at > self._limits.fresh_s or not each.sees_bytes
            for each in moves.values()
        ):
            return []  # what cannot be seen may move
        still = {task: each.still_since for task, each in moves.items() if each.still_since is not None}
        busy = {
            task: each.busy_since
            for task, each in moves.items()
            if task not in still and each.busy_since is not None
        }
        if len(still) == len(living):
            self._stood_at = now
            return [self._all(still)]
        if self.have_gpus(living):
            held = _held(moves)
            if held is not None:
                self._stood_at = now
                return [Case("gpus", tuple(living), held, self._patience(living, held))]
        elif len(still) + len(busy) == len(living) and 0 < len(busy) <= max(1, len(living) // 4):
            if not still:
                return []  # nobody waits for those that compute
            self._stood_at = now
            since = max(*still.values(), *busy.values())
            return [Case("busy", tuple(living), since, self._limits.busy_s)]
        if (talk := _talking(moves)) is not None:
            return [Case("talk", tuple(living), talk, self._limits.wait_s)]
        if any(self._trains(task, now) for task in living):
            # What stood still together with its peers has just been waiting for them.
            alone = {
                task: max(since, self._stood_at)
                for task, since in still.items()
                if not moves[task].trickles(6 * self._limits.look_s)
            }
            return [
                Case("one", (task,), since, self._patience([task], since))
                for task, since in alone.items()
                if any(self._trains(other, now) for other in living if other != task)
            ]
        return []

    def _all(self, still: Mapping[str, float]) -> Case:
        since = max(still.values())
        alone = len(self._watched.places) == 1
        patience_s = self._limits.chatty_s if alone else self._patience(still, since)
        return Case("all", tuple(still), since, patience_s)

    def have_gpus(self, tasks: Iterable[str]) -> bool:
        """Whether one of these tasks has a GPU."""
        return any(self._watched.gpus.get(task) for task in tasks)

    def gpus_rest(self, task: str, now: float) -> bool:
        """Whether its GPUs, if it has any, are seen to do nothing."""
        idle_s = now - self._gpus_idle.get(task, now)
        return not self._watched.gpus.get(task) or idle_s >= self._limits.wait_s / 2

    def _patience(self, tasks: Iterable[str], since: float) -> float:
        chatty = any(self._moves[task].chatty(since) for task in tasks)
        return self._limits.chatty_s if chatty else self._limits.wait_s

    def _trains(self, task: str, now: float) -> bool:
        """Whether it has just moved bytes to or from its peers."""
        at = self._moves[task].peers_moved_at
        return at is not None and now - at <= self._limits.fresh_s


def _idle(use: float | None, limits: Thresholds) -> bool:
    return use is not None and use <= limits.gpu_idle_use


def _talking(moves: Mapping[str, Movement]) -> float | None:
    """Since when no task has written a line, and no main thread has woken once; None: that is not so.

    Horovod's ranks exchange what they wait for many times in a second, in a thread of its own.  A program that trains
    in one long call of TensorFlow looks alike: only stacks tell the two apart.
    """
    since = [
        max(each.rested_since, each.unwritten_since)
        for each in moves.values()
        if each.rested_since is not None and each.unwritten_since is not None
    ]
    return max(since) if len(since) == len(moves) > 1 else None


def _held(moves: Mapping[str, Movement]) -> float | None:
    """Since when no task, some of which have GPUs, writes or moves anything, and all but a few wait; None: they do not.

    Whoever waits on a GPU may use a whole core, in other threads or in its loop, but its main thread never wakes.
    """
    since: list[float] = []
    loose = 0
    for each in moves.values():
        rests = [at for at in (each.still_since, each.rested_since) if at is not None]
        if each.mute_since is None or not (rests or each.busy_since is not None):
            return None
        loose += not rests
        since.append(max(each.mute_since, min(rests) if rests else each.mute_since))
    if len(since) < 2 or loose > max(1, len(since) // 4):
        return None
    return max(since)
