"""NaN losses that go on: told once, and the end of the run with --stop-on-nan.

It lives on the signs `nan` and `loss` (a loss that is a number) in the looks; a loss that is NaN in a first step only,
or in lines between others with numbers, is not reported.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tflaunch.diagnosis.rule import Rule, Sentence, Stop, names_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched

EXIT_CODE = 1  # of a run that ends for it
LINE_CHARACTERS = 120
NEXT = (
    "such a run learns nothing more: look at its learning rate and its data (the mean of an empty last batch is NaN:"
    " batch(N, drop_remainder=True)); tf.debugging.enable_check_numerics() names the operation"
)


@dataclass
class _Losses:
    """What is known of one task's losses."""

    nans: int = 0  # lines with a NaN loss, as last seen
    numbers: int = 0  # lines with a loss that is a number
    begun: int = 0  # how many of `nans` came before those that count now
    looks: int = 0  # in how many looks NaN losses came since, and no number
    since: float = 0.0  # when the first of them was seen
    first: str = ""  # that line
    told: bool = False

    def forget(self) -> None:
        self.begun, self.looks, self.first = self.nans, 0, ""


class NanLoss(Rule):
    """Tells which tasks have NaN losses and nothing else."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._tasks = {task: _Losses() for task in watched.places}
        self._shown = ""  # the sentence that was told and holds
        self._over: list[str] = []  # tasks whose loss is a number again

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        for name, look in fields["tasks"].items():
            task, signs = self._tasks.get(name), look.get("signs") or {}
            if task is None:
                continue
            nans, line, _ = signs.get("nan", (0, "", 0.0))
            numbers = signs.get("loss", (0, "", 0.0))[0]
            if nans < task.nans or numbers < task.numbers:  # its log was written anew
                self._tasks[name] = task = _Losses(told=task.told)
            new, sound = nans - task.nans, numbers > task.numbers
            task.nans, task.numbers = nans, numbers
            if sound and task.looks:
                if task.told:
                    self._over.append(name)
                task.forget()
                task.told = False
            elif new and not sound:
                if not task.looks:
                    task.since, task.first, task.begun = now, line[:LINE_CHARACTERS], nans - new
                task.looks += 1

    def exited(self, exit: Any, now: float) -> None:
        self._tasks.pop(str(exit.task), None)

    def lost(self, task: str, now: float) -> None:
        self._tasks.pop(task, None)

    def started(self, task: str, now: float) -> None:
        self._tasks[task] = _Losses()

    def _found(self) -> list[str]:
        limits = self._watched.thresholds
        return [
            name
            for name, task in self._tasks.items()
            if task.looks >= limits.nan_looks
            or (task.looks > 1 and task.nans - task.begun >= limits.nan_lines)
        ]

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        found = self._found()
        fresh = [name for name in found if not self._tasks[name].told]
        said = []
        if fresh and not any(
            self._tasks[name].told for name in found
        ):  # all tasks have the same loss, mostly
            self._shown = self._text(fresh)
            said.append(Sentence(self._shown, False))
        for name in fresh:
            self._tasks[name].told = True
        over, self._over = [name for name in self._over if name in self._tasks], []
        if over and not any(task.told for task in self._tasks.values()):
            said.append(Sentence(f"the loss of {names_of(over)} is a number again", True))
        return said

    def _text(self, names: list[str]) -> str:
        task = self._tasks[names[0]]
        lines = task.nans - task.begun
        return (
            f"{self._watched.who(names)}: the loss is NaN in the last {lines} lines that tell it,"
            f" {task.first!r} among them; {NEXT}"
        ) + ("" if self._watched.stop_on_nan else "; --stop-on-nan ends such a run")

    def stop(self, now: float) -> Stop | None:
        found = self._found() if self._watched.stop_on_nan else []
        if not found:
            return None
        return Stop(f"{self._text(found)} (--stop-on-nan)", tuple(found), EXIT_CODE)

    def holds(self) -> list[str]:
        return [self._shown] if any(task.told for task in self._tasks.values()) else []

    def memory(self) -> dict[str, Any]:
        return {"tasks": {name: asdict(task) for name, task in self._tasks.items()}, "shown": self._shown}

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import Each, a_flag, a_number, a_text, a_whole_number, check, of_the_run

        a_task = of_the_run("a task", self._watched.places)
        numbers = dict.fromkeys(("nans", "numbers", "begun", "looks"), a_whole_number)
        of_task = {**numbers, "since": a_number, "first": a_text, "told": a_flag}
        check({"tasks": Each(a_task, of_task), "shown": a_text}, memory)
        self._tasks = {name: _Losses(**task) for name, task in memory["tasks"].items()}
        self._shown = memory["shown"]
