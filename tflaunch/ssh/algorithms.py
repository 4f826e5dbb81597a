"""The algorithms that ssh_config allows, of those that tflaunch has."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

ALGORITHMS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms", "pubkeyacceptedalgorithms")


@dataclass(frozen=True)
class Algorithms:
    """What a line of ssh_config says of one kind of algorithm."""

    keyword: str  # one of ALGORITHMS
    value: str  # a list of names or patterns with commas between; `+`, `-` or `^` in front change the default
    where: str  # FILE:LINE

    def allowed(self, names: Iterable[str]) -> list[str]:
        """Those of tflaunch's own algorithms that may be used, in the order of `names`."""
        if self.value[:1] in ("+", "^"):
            return list(names)  # what is added or comes first takes nothing away
        patterns = self.value.removeprefix("-").split(",")
        hit = self.value[:1] != "-"
        return [name for name in names if any(fnmatch.fnmatchcase(name, each) for each in patterns) == hit]
