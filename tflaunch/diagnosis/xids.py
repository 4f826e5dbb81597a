"""Xids: errors of GPUs that NVIDIA's driver tells of, each with a number: the card's own fault, or the program's.

What the numbers mean is from NVIDIA's list, https://docs.nvidia.com/deploy/xid-errors.  While a run goes on, only those
of a sick card are told: those of a program come with its end, which ends/xid_ends.py explains.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.rule import Rule, Sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched

_MEMORY = "an error of its memory that ECC cannot correct"
_LINK = "an error of an NVLink"
_GSP = "its own controller (GSP) does not answer"
# The card, or what it is plugged into, is at fault.
SICK = {
    48: _MEMORY,
    62: "its own controller has stopped",
    63: "a bad row of its memory is replaced at its next reset",
    64: "a bad row of its memory cannot be replaced",
    74: _LINK,
    79: "it has fallen off the bus",
    92: "many errors of its memory that ECC corrects",
    94: f"{_MEMORY}, in the memory of one program",
    95: f"{_MEMORY}, in the memory of any program",
    119: _GSP,
    120: _GSP,
    121: "an error of its link to the CPU",
    140: _MEMORY,
    143: "it does not start",
    **dict.fromkeys(range(144, 151), _LINK),
    154: "it needs a reset, or its host a restart",
}


class Xids(Rule):
    """Tells each Xid of a sick card once."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._owners = {uuid: task for task, uuids in watched.gpus.items() for uuid in uuids}
        self._told: dict[str, str] = {}  # UUID and Xid -> the sentence
        self._new: list[str] = []

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        for uuid, index, number, _ in fields.get("xids", ()):
            task, key = self._owners.get(uuid, ""), f"{uuid} {number}"
            place = self._watched.places.get(task)
            if number not in SICK or key in self._told or place is None or place.host != host:
                continue
            text = (
                f"GPU {index} of {host}, which {task} has, has told of Xid {number}: {SICK[number]}; the card, or what"
                f" it is plugged into, is at fault, not the program; `nvidia-smi -q -i {index}` there tells more, and"
                f" --exclude {host}:{index} keeps the next run off it"
            )
            self._told[key] = text
            self._new.append(text)

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        new, self._new = self._new, []
        return [Sentence(text, False) for text in new]

    def holds(self) -> Iterable[str]:
        return self._told.values()

    def memory(self) -> Any:
        return self._told

    def resume(self, memory: Any) -> None:
        from tflaunch.protocol.fields import Each, a_text, check

        check(Each(a_text, a_text), memory)
        self._told = dict(memory)
