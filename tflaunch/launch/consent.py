"""Asks the user before a run without a number of workers takes much; the run holds no GPU meanwhile."""

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
    """Asks the user: `tflaunch.launch.cluster.Cluster`."""

    def ask(self, question: str) -> bool | None: ...


@dataclasses.dataclass
class Consent:
    """The user's consent to what one run takes of its hosts."""

    hostfile: Hostfile
    run_id: str
    user_on: Callable[[str], str]  # host -> the user's account there
    needed: bool = True  # False: the number of workers was given, or --yes
    agreed: Taking | None = None  # what the user has agreed to so far

    def lacking(self, shares: Iterable[Share], inventory: Inventory) -> Taking | None:
        """What the user must agree to before the run takes these shares; None: the user need not be asked."""
        if not self.needed:
            return None
        wanted = taking(shares, self.hostfile, inventory, self.run_id, self.user_on)
        return wanted if wanted.exceeds(self.agreed) else None

    def agree(self, shares: Iterable[Share], inventory: Inventory) -> None:
        """Count these shares as agreed to: the user's answer to another question covers them."""
        self.agreed = taking(shares, self.hostfile, inventory, self.run_id, self.user_on)

    def agree_for_later(self, shares: Iterable[Share], inventory: Inventory) -> None:
        """Count these shares as agreed to when the run's turn comes, whichever other users are on the hosts then.

        The user has agreed to the most that the run may take, and may be away by then.
        """
        before = self.agreed or taking(shares, self.hostfile, inventory, self.run_id, self.user_on)
        full = {host.name: () for host in self.hostfile.hosts}
        self.agreed = dataclasses.replace(before, full=full)

    def note_question(self, shares: Iterable[Share], inventory: Inventory, watcher: Watcher) -> None:
        """For a dry run: show which question a run would ask."""
        if wanted := self.lacking(shares, inventory):
            watcher.note(f"a run would ask first (--yes answers yes): {wanted}: go on?")

    def ask(self, cluster: Asks, wanted: Taking, before: str = "", after: str = "") -> None:
        """Ask the user to agree; raises UsageError when the answer is no or no user can be asked; Stopped."""
        again = "more is free now: " if self.agreed is not None else ""
        answer = cluster.ask(f"{again}{before}{wanted}{after}: go on?")
        if not answer:
            workers = wanted.tasks.get(WORKER, 0)
            hint = f"say how many: --workers {workers}, or agree to what there is: --yes"
            if not workers:  # the trials of a sweep
                out = "GPUs out: --exclude HOST[:0,2]" if wanted.gpus else "hosts out: --exclude HOST"
                hint = f"agree to it: --yes, or leave {out}"
            raise UsageError(
                "nothing was started"
                if answer is False
                else f"this takes {before}{wanted}{after}, and tflaunch cannot ask whether it may: stdin and stderr "
                "are no terminal, or --json was given",
                hint,
            )
        self.agreed = wanted
