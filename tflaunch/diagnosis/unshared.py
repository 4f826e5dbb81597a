"""An evaluator that waits for a checkpoint which its chief writes on another host.

    evaluator/0 on c has waited 125 s for a checkpoint, at evaluate.py:6 in evaluate(), though chief/0 on a has written
    files since: ...

An evaluator sleeps until a checkpoint comes, which may take long: it is told only when the chief, on another host, has
written more than log lines since the evaluator began to wait, and a minute has passed; never after it has evaluated
once: then it sees them.  One that has waited so until the run was over, and was stopped then, is told in any case.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.movement import Movement
from tflaunch.diagnosis.rule import Rule, Sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched
    from tflaunch.protocol.outcome import TaskExit

ANSWER_S = 20.0
ENDED_STILL_S = 30.0  # an evaluator sees a checkpoint within a second, and restores it in a few
SIGN = "checkpoint_awaited"
SHARED = "does the directory of the checkpoints lie on a disk that both hosts share?"


class Unshared(Rule):
    """Takes looks and inspections, and tells of evaluators whose checkpoints do not come."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._limits = watched.thresholds
        chief = watched.places.get(watched.chief)
        self._evaluators = {
            task: Movement(self._limits, None)
            for task, place in watched.places.items()
            if task.startswith("evaluator/") and chief is not None and place.host != chief.host
        }
        self._evaluated: set[str] = (
            set()
        )  # evaluators that have gone on after a wait: they see the checkpoints
        self._chief: Mapping[str, Any] = {}  # the last look at it
        self._wrote_at: list[float] = []  # when the chief wrote much at once
        self._asked: dict[str, float] = {}
        self._inspected: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._told: dict[str, str] = {}

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        for name, look in fields["tasks"].items():
            if name in self._evaluators:
                evaluator = self._evaluators[name]
                since, before = evaluator.still_since, evaluator.look
                evaluator.seen(look, now, ())
                if since is None or now - since < self._limits.fresh_s:
                    continue
                # An evaluation of milliseconds shows in its log alone, where the line is not one of waiting.
                reports = evaluator.wrote_at == now and _awaited(look) == _awaited(before)
                reports = reports and any(at > since for at in self._wrote_at)
                if evaluator.still_since is None or reports:
                    self._evaluated.add(name)
            elif name == self._watched.chief and self._evaluators:
                before, self._chief = self._chief, look
                old, new = before.get("wrote"), look.get("wrote")
                if old is None or new is None:
                    continue
                logged = max(0, look["log_bytes"] - before["log_bytes"])
                lately = self._wrote_at and now - self._wrote_at[-1] < self._limits.wait_s / 4
                if new - old - logged >= self._limits.checkpoint_bytes and not lately:
                    self._wrote_at = [*self._wrote_at[-9:], now]

    def exited(self, exit: TaskExit, now: float) -> None:
        self._gone(str(exit.task))

    def why_stopped(self, exit: TaskExit, now: float) -> str:
        name = str(exit.task)
        waits = self._evaluators.get(name)
        if waits is None or waits.still_since is None or name in self._evaluated or name in self._told:
            return ""
        still_s = now - waits.still_since
        silent = exit.log_bytes <= waits.look.get(
            "log_bytes", 0
        )  # nobody has looked at it since the work was done
        if still_s < ENDED_STILL_S or not silent or not any(at > waits.still_since for at in self._wrote_at):
            return ""
        who, chief = self._watched.who([name]), self._watched.who([self._watched.chief])
        return (
            f"{who} was stopped when the work was done, and had done nothing for {still_s:.0f} s, though {chief} has "
            f"written files since: {SHARED}"
        )

    def lost(self, task: str, now: float) -> None:
        self._gone(task)

    def started(self, task: str, now: float) -> None:
        if task in self._evaluators:
            self._gone(task)
            self._evaluated.discard(task)
            self._evaluators[task] = Movement(self._limits, None)

    def _gone(self, task: str) -> None:
        self._told.pop(task, None)
        self._asked.pop(task, None)
        self._inspected.pop(task, None)
        if task in self._evaluators:
            self._evaluators[task].still_since = None

    def _waiting(self, now: float) -> dict[str, float]:
        """The evaluators that wait in vain, as it seems, and since when."""
        found = {}
        for name, each in self._evaluators.items():
            since = each.still_since
            if since is None or now - each.at > self._limits.fresh_s or name in self._evaluated:
                continue
            written = [at for at in self._wrote_at if at > since and now - at >= self._limits.wait_s]
            if written and now - since >= self._limits.evaluator_s:
                found[name] = since
        return found

    def questions(self, now: float) -> list[tuple[str, str, dict[str, Any]]]:
        asked = []
        for name in self._waiting(now):
            if name not in self._asked:
                self._asked[name] = now
                fields = {"tasks": [name], "stacks": self._watched.stacks}
                asked.append((self._watched.places[name].host, "inspect", fields))
        return asked

    def answered(self, host: str, type: str, fields: Mapping[str, Any], now: float) -> None:
        if type == "inspected":
            for name, processes in fields["tasks"].items():
                if name in self._asked and self._watched.places[name].host == host:
                    self._inspected[name] = processes

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        said = []
        for name in list(self._told):
            if self._evaluators[name].still_since is None:
                del self._told[name]
                self._asked.pop(name, None)
                self._inspected.pop(name, None)
                said.append(Sentence(f"{self._watched.who([name])} goes on", True))
        for name, since in self._waiting(now).items():
            asked = self._asked.get(name)
            if name in self._told or name in explained or asked is None:
                continue
            if name not in self._inspected and now - asked < ANSWER_S:
                continue
            text = self._tell(name, now - since)
            if text:
                self._told[name] = text
                said.append(Sentence(text, False))
        return said

    def _tell(self, name: str, waited_s: float) -> str:
        from tflaunch.diagnosis.standing import from_the_trainer_on, stand_of

        sign = (self._evaluators[name].look.get("signs") or {}).get(SIGN)
        line = sign[1] if sign else ""
        processes = self._inspected.get(name)
        stand = stand_of(from_the_trainer_on(processes)) if processes else None
        if not line and (stand is None or stand.kind not in ("checkpoint", "sleep")):
            return ""  # it may wait for something else
        who, chief = self._watched.who([name]), self._watched.who([self._watched.chief])
        place = f", at {stand.place}" if stand is not None and stand.place else ""
        quoted = f' ("{line[:120]}")' if line else ""
        return (
            f"{who} has waited {waited_s:.0f} s for a checkpoint{place}{quoted}, though {chief} has written files"
            f" since: {SHARED}"
        )

    def explains(self, now: float) -> Iterable[str]:
        return list(self._told)

    def holds(self) -> Iterable[str]:
        return list(self._told.values())

    def memory(self) -> dict[str, Any]:
        return {
            "since": {name: each.still_since for name, each in self._evaluators.items()},
            "wrote_at": self._wrote_at,
            "told": self._told,
            "evaluated": sorted(self._evaluated),
        }

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import Each, a_number, a_text, check, of_the_run, or_null

        a_task = of_the_run("an evaluator", self._evaluators)
        check(
            {
                "since": Each(a_task, or_null(a_number)),
                "wrote_at": [a_number],
                "told": Each(a_task, a_text),
                "evaluated": [a_task],
            },
            memory,
        )
        for name, since in memory["since"].items():
            self._evaluators[name].still_since = since
        self._evaluated = set(memory["evaluated"])
        self._wrote_at, self._told = list(memory["wrote_at"]), dict(memory["told"])


def _awaited(look: Mapping[str, Any]) -> int:
    """How often its log has said that it waits for a checkpoint."""
    count: int = look.get("signs", {}).get(SIGN, [0])[0]
    return count
