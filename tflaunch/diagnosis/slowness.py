"""A run that goes on, and is slower than it could be: which task or host holds it up, why, and what that costs.

    worker/1 on gpu02 has been 3.4x slower than the other workers for 60 s: its threads wait 2.1 s for a processor for
    each second that they run (the others' 0.1 s), and programs that are not the run's use 1.9 cores of gpu02
    (pid 4711 stress); end them, or give the task another host

The finders (each a function in a file of its own) say what is so over the last minute; this rule says each
finding once, and once more when it has been over for a while.  What stands still is for other rules: a finder looks at
tasks that move bytes all the time, so that a checkpoint, an evaluation or a compilation is no slowness.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.lasting import NOT_YET, Finding
from tflaunch.diagnosis.lockstep import held_up
from tflaunch.diagnosis.paces import Paces
from tflaunch.diagnosis.rule import Rule, Sentence
from tflaunch.diagnosis.slow_disks import sick_disks
from tflaunch.diagnosis.slow_gpus import fewer_nvlinks, held_gpus, idle_gpus, narrow_links
from tflaunch.diagnosis.slow_hosts import crowded, lossy, short_of_memory, swapping
from tflaunch.diagnosis.slow_input import out_of_step, waits_for_input
from tflaunch.diagnosis.slow_ps import bound
from tflaunch.diagnosis.slower import Steps
from tflaunch.diagnosis.stack_rounds import StackRounds
from tflaunch.diagnosis.stragglers import stragglers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched
    from tflaunch.protocol.outcome import TaskExit

    Finder = Callable[[Paces, float], Mapping[str, Finding]]

CROWDED = " crowded"  # ends the key of a host whose tasks lack processors
# Keys that say of a worker, or of all tasks of a host, that they are slow.
OF_WORKERS = (" slow", " holds up", " out of step", "input", CROWDED)
A_ROUND_S = 0.9  # of look_s: the finders are not asked again sooner


class Slowness(Rule):
    """Takes looks, and tells what makes the run slow."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._limits = watched.thresholds
        self._paces = Paces(watched)
        self._steps = Steps()
        rounds = self._rounds = StackRounds(watched)
        # Who knows the reason stands first: a task that one of them has told is not told by the next.
        self._finders: tuple[Finder, ...] = (
            *(
                lossy,
                swapping,
                short_of_memory,
                held_gpus,
                narrow_links,
                fewer_nvlinks,
                bound,
                stragglers,
                held_up,
            ),
            lambda paces, now: out_of_step(paces, rounds, now),
            lambda paces, now: waits_for_input(paces, rounds, now),
            *(crowded, sick_disks, idle_gpus),
        )
        self._told: dict[str, tuple[Finding, float]] = {}  # with the time when it was last so
        self._asked = 0.0
        self._resumed: float | None = None  # when looks came again, if another watchdog handed on its memory

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        self._paces.looked(host, fields, now)

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        if type == "inspected":
            mine = {
                task: processes
                for task, processes in fields["tasks"].items()
                if task in self._watched.places and self._watched.places[task].host == host
            }
            self._rounds.answered(mine)

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        return [] if self._watched.serves else self._rounds.questions(self._paces, now)

    def exited(self, exit: TaskExit, now: float) -> None:
        self._gone(str(exit.task))

    def lost(self, task: str, now: float) -> None:
        self._gone(task)

    def started(self, task: str, now: float) -> None:
        self._gone(task)

    def _gone(self, task: str) -> None:
        self._paces.gone(task)
        self._rounds.gone(task)
        self._told = {key: told for key, told in self._told.items() if task not in told[0].tasks}

    def _findings(self, now: float) -> dict[str, Finding]:
        found: dict[str, Finding] = {}
        told: set[str] = set()
        for finder in self._finders:
            of_it = {
                key: finding
                for key, finding in finder(self._paces, now).items()
                if self._adds(key, finding, told)
            }
            found.update(of_it)
            told.update(task for finding in of_it.values() for task in finding.tasks)
        slower = self._steps.finding(self._paces, now)
        if slower is not None and not found:
            found["slower"] = slower
        return found

    def _adds(self, key: str, finding: Finding, told: set[str]) -> bool:
        """Whether it says of any task more than was found of those `told`.

        That a host is crowded says nothing more of a task of which something else was said, and is not over.
        """
        if key.endswith(CROWDED):
            others = [each.tasks for other, (each, _) in self._told.items() if not other.endswith(CROWDED)]
            return told.union(*others).isdisjoint(finding.tasks)
        return told.isdisjoint(finding.tasks) or (
            key.endswith(OF_WORKERS) and not told.issuperset(finding.tasks)
        )

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        if self._watched.serves or now - self._asked < A_ROUND_S * self._limits.look_s:
            return []
        self._asked = now
        self._resumed = now if self._resumed == NOT_YET else self._resumed
        # The windows must fill first.
        settled = self._resumed is None or now - self._resumed > 2 * self._limits.slow_s
        said, found = [], self._findings(now)
        for key, finding in found.items():
            same, unexplained = self._told_of(key, finding), explained.isdisjoint(finding.tasks)
            if same and not (unexplained and self._is_news(key, finding, same)):
                for each in same:
                    self._told[each] = (self._told[each][0], now)
            elif unexplained:
                self._told[key] = (finding, now)
                said.append(Sentence(finding.text, False, True))
        for key, (told, last) in list(self._told.items()):
            # Whom nobody looks at may be as slow as before.
            seen = all(self._fresh(task, now) for task in told.tasks)
            if seen and settled and now - last >= self._limits.slow_s:
                del self._told[key]
                said.append(Sentence(told.over, True))
        return said

    def _told_of(self, key: str, finding: Finding) -> list[str]:
        """The keys of what was told of this, or else of some of these workers by other ways to find slow ones."""
        if key in self._told or not key.endswith(OF_WORKERS):
            return [key] if key in self._told else []
        return [
            other
            for other, (told, _) in self._told.items()
            if other.endswith(OF_WORKERS) and not set(told.tasks).isdisjoint(finding.tasks)
        ]

    def _is_news(self, key: str, finding: Finding, same: Iterable[str]) -> bool:
        """Whether it is so of workers of which nothing was told; of one key, of as many as were told at least."""
        untold = set(finding.tasks).difference(*(self._told[each][0].tasks for each in same))
        told = self._told[key][0].tasks if key in self._told else ()
        return len(untold) >= max(1, len(told))

    def _fresh(self, task: str, now: float) -> bool:
        samples = self._paces.tasks[task].samples
        return bool(samples) and now - samples[-1].at <= self._limits.fresh_s

    def holds(self) -> Iterable[str]:
        return [told.text for told, _ in self._told.values()]

    def memory(self) -> Any:
        return {"told": {key: [list(told), last] for key, (told, last) in self._told.items()}}

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import Each, a_number, a_text, check, of_the_run

        a_task = of_the_run("a task", self._watched.places)
        check({"told": Each(a_text, ((a_text, a_text, [a_task]), a_number))}, memory)
        self._resumed = NOT_YET
        self._told = {
            key: (Finding(text, over, tuple(tasks)), last)
            for key, ((text, over, tasks), last) in memory["told"].items()
        }
