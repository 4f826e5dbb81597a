"""What is to be measured, as the command line says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.beds import Lab


@dataclass(frozen=True)
class Plan:
    """How many hosts and rounds, which peers, and where progress is told."""

    lab: Lab
    rounds: int = 5
    counts: tuple[int, ...] = ()  # of hosts; none: each measurement has its own
    peers: tuple[str, ...] = ()  # parts of their names; none: all of them
    tell: Callable[[str], None] = field(default=lambda _: None)

    def sizes(self, *usual: int) -> Sequence[int]:
        """The numbers of hosts to measure with."""
        return self.counts or usual

    def size(self, usual: int) -> int:
        """The number of hosts of a measurement that has only one."""
        return max(self.counts, default=usual)

    def wants(self, name: str) -> bool:
        """Whether this peer is to be measured."""
        return not self.peers or any(part in name for part in self.peers)
