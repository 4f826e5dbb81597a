"""What a run shows to those who watch it, beyond what every command shows (tflaunch.sessions.watcher)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tflaunch.hosts import fold
from tflaunch.sessions.watcher import Watcher

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.protocol.outcome import Outcome
    from tflaunch.runs.fetch_result import Fetched


class RunWatcher(Watcher, Protocol):
    """Shows a whole run; `tflaunch.documents.reporter.Reporter` says what each method promises."""

    def waiting(self, turn: Turn) -> None: ...
    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None: ...
    def shipped(self, bundle: Bundle, shipped: Shipped) -> None: ...
    def report(self, outcome: Outcome) -> None: ...
    def fetched(self, fetched: Fetched) -> None: ...
    def detached(self, run_id: str, tasks: int, host: str) -> None: ...
    def handed_over(self, run_id: str, tasks: int, host: str) -> None: ...


@dataclass(frozen=True)
class Turn:
    """How far a run is from its turn, while it waits for GPUs."""

    place: int  # in the queue: 1 is the next to be served
    behind: tuple[str, ...]  # the runs before it: `bob's run mnist-a3k2xq`
    free: int  # how many GPUs that it could take are free
    needed: int
    held: tuple[tuple[str, str], ...]  # GPUs in use, and by what: (`gpu01:0,2`, `alice's run ...`)
    lost: tuple[str, ...] = ()  # hosts to which there is no connection
    why: str = ""  # where as many are free as it needs: why it cannot take them

    @property
    def count(self) -> str:
        """How many GPUs are free: of as many as the run needs, unless that many are."""
        if self.free < self.needed:
            return f"{self.free} of {self.needed} GPUs free"
        return f"{self.free} GPUs free, {self.needed} needed"

    @property
    def parts(self) -> list[str]:
        """Its place in the queue; then what each GPU that it could take is in use by."""
        ending = {1: "st", 2: "nd", 3: "rd"}.get(self.place % 10 if self.place % 100 // 10 != 1 else 0, "th")
        parts = [
            f"{self.place}{ending} in line" + (f", behind {', '.join(self.behind)}" if self.behind else "")
        ]
        parts += [self.why] if self.why else []
        parts += [f"{gpus} {why}" for gpus, why in self.held]
        parts += [f"{fold(self.lost)} cannot be asked"] if self.lost else []
        return parts

    def __str__(self) -> str:
        return "; ".join(self.parts)
