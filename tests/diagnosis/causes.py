"""What a cause is: a program, what befalls it, and the words that name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.diagnosis.play import Play

HANGS, NETWORKS, ENDS, SLOW, HEALTHY = "hangs", "networks", "ends", "slow", "healthy"
GROUPS = (HANGS, NETWORKS, ENDS, SLOW, HEALTHY)
NEVER = r"(?!)"


@dataclass(frozen=True)
class Cause:
    """All patterns are regular expressions, searched for without regard to case."""

    name: str
    group: str
    story: str  # what is wrong, in a sentence
    trainer: str  # the source of trainer.py
    command: tuple[str, ...]  # the words after `tflaunch run hosts.yaml trainer.py`

    proof: str = ""  # the output of the run shows that the fault came about
    absent: str = NEVER  # the output would show that it did not
    after: str = ""  # the output says so when it is time for `fault`; "": as soon as the proof is there
    fault: Callable[[Play], None] | None = None  # what befalls the run
    prepare: Callable[[Play], None] | None = None  # what is wrong before it starts

    cause: str = NEVER  # names the cause
    place: str = NEVER  # names the task or the host that is to blame
    fix: str = ""  # says what to do; "": whoever knows the cause knows the fix
    symptom: str = NEVER  # scores 1
    misleading: str = ""  # scores 0

    hosts: int = 3
    settings: Mapping[str, object] = field(default_factory=dict)  # `defaults:` of the hostfile
    files: Mapping[str, str] = field(default_factory=dict)  # beside the trainer
    patience_s: float = 150.0  # from the fault until it must have been named; a healthy run may take longer
