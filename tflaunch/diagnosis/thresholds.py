"""From when on the rules speak: every number that they compare with, in one table; users set them by --threshold.

Shipped to hosts, for the coordinator of a detached run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Thresholds:
    """The numbers of all rules; a unit ends each name (`_s`: seconds)."""

    look_s: float = 5.0  # how often the agents are asked to look at their tasks
    wait_s: float = 60.0  # a task that waits for a peer so long is told
    stopped_s: float = 10.0  # ... and one that is stopped (state T)
    dial_again_s: float = 60.0  # how often a connection that fails is tried again
    idle_cores: float = 0.03  # a task that uses less of a core does nothing

    @property
    def fresh_s(self) -> float:
        """A look that is older says nothing about now."""
        return 3 * self.look_s


DEFAULTS: dict[str, float] = {each.name: float(each.default) for each in fields(Thresholds)}  # type: ignore[arg-type]


def thresholds(changed: Mapping[str, float]) -> Thresholds:
    """The defaults, but for those that are named here; raises ValueError for a name that is none."""
    unknown = changed.keys() - DEFAULTS.keys()
    if unknown:
        raise ValueError(f"{min(unknown)!r} is no threshold; there are {', '.join(sorted(DEFAULTS))}")
    return Thresholds(**{**DEFAULTS, **changed})
