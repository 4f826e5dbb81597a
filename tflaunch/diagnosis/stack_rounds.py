"""Where the main threads of the workers stand, asked a few times within a minute: what each of them spends its time on.

A round asks all workers at each look, until each has answered LOOKS times.  One begins when another worker moves, or
when one has become slower or faster, which makes what is known void; without that one begins every `stacks_again_s`,
and adds to it.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tflaunch.diagnosis.paces import goes_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from tflaunch.diagnosis.paces import Paces, Window
    from tflaunch.diagnosis.rule import Watched
    from tflaunch.diagnosis.standing import Stand

LOOKS, MOST_LOOKS = 10, 15  # an answer may come late, or not at all
KEPT = 60  # answers of a task
ENOUGH = 8  # of fewer, a share says too little
MOST = 32  # workers of a run that are asked: of more, the messages would be large
OLD_S = 3.0  # a stack that was written longer ago was an answer to an earlier question
WINDOW_S = 30.0
CHANGED = 0.7  # of its bytes or processor time: something is different from the last round
LEAST_CORES = 0.1
SOON_S = 90.0  # between two rounds, however much changes


class PartOfLooks(NamedTuple):
    """A part of some answers."""

    part: float
    answers: int

    @property
    def blur(self) -> float:
        """What two such parts differ by that are alike, but for chance, in one of some hundreds at most."""
        return float(2 / self.answers**0.5)


class StackRounds:
    """Asks, and keeps the answers of the last round."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._found: dict[str, list[Stand]] = {}
        self._paces: dict[str, Window] = {}  # when the last round began
        self._began = 0.0
        self._left = 0
        self._new: dict[str, int] = {}  # answers of this round

    def questions(self, paces: Paces, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        """What to ask the agents now, as `Rule.questions`."""
        if not self._watched.stacks:
            return []
        windows = paces.over(now - WINDOW_S, now)
        working = {
            name: window for name, window in windows.items() if paces.tasks[name].trains and goes_on(window)
        }
        if 0 < len(working) <= MOST:
            self._begin(working, now)
        if self._left and min(self._new.values(), default=0) >= LOOKS:
            self._left = 0
        if not self._left:
            return []
        self._left -= 1
        of_host: dict[str, list[str]] = {}
        for name in self._paces:
            of_host.setdefault(self._watched.places[name].host, []).append(name)
        # A task that goes on answers without a signal, which might break off a call in C that sleeps.
        return [
            (host, "inspect", {"tasks": tasks, "stacks": True, "on_demand": True, "signals": False})
            for host, tasks in of_host.items()
        ]

    def _begin(self, working: Mapping[str, Window], now: float) -> None:
        """Begin a round, if it is time."""
        since, fresh = now - self._began, working.keys() - self._paces.keys()
        changed = any(
            _is_new(self._paces[name], window) for name, window in working.items() if name not in fresh
        )
        again = not self._left and since >= (SOON_S if changed else self._watched.thresholds.stacks_again_s)
        if not fresh and not again:
            return
        if fresh or changed:
            self._found = {}
            self._paces.update(working)
        self._began, self._left = now, MOST_LOOKS
        self._new = dict.fromkeys(self._paces, 0)

    def answered(self, tasks: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Take the fields `tasks` of an `inspected` message."""
        from tflaunch.diagnosis.standing import from_the_trainer_on, step_of

        for name, processes in tasks.items():
            found = self._found.setdefault(name, [])
            if name in self._paces and processes:
                seen = from_the_trainer_on(processes)
                told = any(stack["main"] for stack in seen[0]["stacks"] or ())
                if told and seen[0].get("age_s", 0.0) <= OLD_S:
                    found.append(step_of(seen))
                    self._new[name] += 1
            del found[:-KEPT]

    def gone(self, task: str) -> None:
        """That task has ended, is lost, or begins anew."""
        self._found.pop(task, None)
        self._paces.pop(task, None)
        self._new.pop(task, None)

    def share(self, task: str, fits: Callable[[Stand], bool]) -> PartOfLooks | None:
        """In what part of the answers of that task its stand fits; None: there are too few."""
        found = self._found.get(task, ())
        return None if len(found) < ENOUGH else PartOfLooks(sum(map(fits, found)) / len(found), len(found))

    def place(self, task: str, fits: Callable[[Stand], bool]) -> str:
        """Where it stood most often when it did, ` at train.py:31 in read()`; "" where that is not known."""
        places = [each.place for each in self._found.get(task, ()) if fits(each) and each.place]
        return f" at {max(places, key=places.count)}" if places else ""

    def words(self, task: str, fits: Callable[[Stand], bool]) -> str:
        """What it did then most often, in words."""
        words = [each.words for each in self._found.get(task, ()) if fits(each)]
        return max(words, key=words.count) if words else ""


def _is_new(before: Window, window: Window) -> bool:
    """Whether a task does not go as it did when the last round began."""
    less, more = sorted((before.bytes_s, window.bytes_s))
    lighter, heavier = sorted((before.cores, window.cores))
    return less < CHANGED * more or (lighter < CHANGED * heavier and heavier > LEAST_CORES)
