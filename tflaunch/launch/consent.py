"""The user is asked before a run takes much that nobody has counted; until he agrees, no card is leased."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from tflaunch.planning.taking import Share, Taking, taking
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import WORKER

if TYPE_CHECKING:
    from tflaunch.hosts import Hostfile
    from tflaunch.planning.inventory import Inventory
    from tflaunch.sessions.watcher import Watcher


class Asks(Protocol):
    """`tflaunch.launch.cluster.Cluster`, as far as it is needed here."""

    def ask(self, question: str) -> bool | None: ...


@dataclasses.dataclass
class Consent:
    """To what one run takes of its hosts."""

    hostfile: Hostfile
    run_id: str
    mine: Callable[[str], str]  # the user's name on a host
    needed: bool = True  # nobody has counted the workers, nor agreed to whatever it is
    agreed: Taking | None = None  # so much was asked for

    def lacking(self, shares: Iterable[Share], inventory: Inventory) -> Taking | None:
        """What has to be agreed to before that is taken, if anything."""
        if not self.needed:
            return None
        wanted = taking(shares, self.hostfile, inventory, self.run_id, self.mine)
        return wanted if wanted.exceeds(self.agreed) else None

    def agree(self, shares: Iterable[Share], inventory: Inventory) -> None:
        """Take it that the user has agreed to these, by the answer to another question."""
        self.agreed = taking(shares, self.hostfile, inventory, self.run_id, self.mine)

    def wait(self, shares: Iterable[Share], inventory: Inventory) -> None:
        """Take it that these are agreed to for when their turn has come, whoever uses the same hosts by then.

        Nobody may be here any more, and the user has heard the most that it may come to.
        """
        before = self.agreed or taking(shares, self.hostfile, inventory, self.run_id, self.mine)
        full = {host.name: () for host in self.hostfile.hosts}
        self.agreed = dataclasses.replace(before, full=full)

    def tell(self, shares: Iterable[Share], inventory: Inventory, watcher: Watcher) -> None:
        """Say what a run would ask for."""
        if wanted := self.lacking(shares, inventory):
            watcher.note(f"this would be asked first (--yes agrees): {wanted}: go on?")

    def ask(self, cluster: Asks, wanted: Taking, before: str = "", after: str = "") -> None:
        """Have the user agree; raises UsageError when he does not, or nobody can be asked; Stopped."""
        again = "more is free now: " if self.agreed is not None else ""
        answer = cluster.ask(f"{again}{before}{wanted}{after}: go on?")
        if not answer:
            workers = wanted.tasks.get(WORKER, 0)
            hint = f"say how many: --workers {workers}, or agree to what there is: --yes"
            if not workers:  # the trials of a sweep
                hint = "agree to it: --yes, or leave cards out: --exclude HOST[:0,2]"
            raise UsageError(
                "nothing was started"
                if answer is False
                else f"this takes {before}{wanted}{after}, and nobody can be asked whether it shall: stdin and stderr "
                "are no terminal, or --json was given",
                hint,
            )
        self.agreed = wanted
