"""What the Xids of a task's GPUs say of its end; diagnosis/xids.py has those that are told while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tflaunch.diagnosis.xids import SICK

# A kernel of the program is at fault, as a rule.
OF_PROGRAMS = {
    13: "a kernel has made an error, such as an index that is out of range",
    31: "a kernel has used memory that is not its own",
    43: "its program was stopped after an error of its own",
    69: "a kernel has made an error",
}
FATAL = (48, 62, 79, 94, 95, 119, 120, 140)  # no program that uses the card goes on after these
STOPPED, CLEARED = 43, 45  # what others lead to; 45 also an end by a signal, so that it tells nothing


class XidEnd(NamedTuple):
    """What the Xids of a task's GPUs say of its end."""

    words: str  # `GPU 3 of gpu02 has told of Xid 79 (it has fallen off the bus)`; "": nothing
    card: str = ""  # `gpu02:3`, if the task died of that card
    program: bool = False  # a kernel of the program is at fault


def at_the_end(host: str, xids: Sequence[Sequence[int]]) -> XidEnd:
    """Of the [index, Xid] of a task's GPUs the one that tells most."""
    told = [(index, number) for index, number in xids if number != CLEARED]
    if not told:
        return XidEnd("")
    index, number = min(
        told, key=lambda each: (each[1] not in FATAL, each[1] not in SICK, each[1] == STOPPED)
    )
    words = SICK.get(number) or OF_PROGRAMS.get(number)
    more = f" ({words})" if words else ", which https://docs.nvidia.com/deploy/xid-errors explains"
    text = f"GPU {index} of {host} has told of Xid {number}{more}"
    return XidEnd(text, f"{host}:{index}" if number in FATAL else "", number in OF_PROGRAMS)
