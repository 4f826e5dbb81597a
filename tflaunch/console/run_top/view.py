"""What the user of `top` looks at, and what each key does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tflaunch.console.list_view import ListView
from tflaunch.console.run_top.table_rows import SORTS, PastLooks, Row, Sort, host_rows, ordered, task_rows
from tflaunch.runs.looking import SeenRun


@dataclass
class TopView(ListView[Sort]):
    """One user's view; `press` is called for each key, `take` for each look."""

    order: Sort = field(default="name", kw_only=True)
    seen: SeenRun | None = None
    of_hosts: bool = False  # the list has hosts, not tasks
    past: PastLooks = field(default_factory=PastLooks)
    _newest: SeenRun | None = None
    _shown_past: PastLooks | None = None  # while the screen is paused
    # Made once for a look, not for each key: of a thousand tasks they take a while.
    _every: Sequence[Row] | None = None
    _rows: Sequence[Row] | None = None

    def take(self, look: SeenRun) -> None:
        """Take what the hosts have said; while the screen is paused it is only noted."""
        self._newest = look
        self.past.take(look.tasks, look.hosts)
        if not self.paused:
            self._show(look)

    def _show(self, look: SeenRun | None) -> None:
        self.seen, self._every, self._rows = look, None, None

    @property
    def every_row(self) -> Sequence[Row]:
        """All tasks, or all hosts."""
        if self._every is None and self.seen is not None:
            make = host_rows if self.of_hosts else task_rows
            self._every = make(self.seen, self._shown_past or self.past)
        return self._every or ()

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the list."""
        if self._rows is None:
            self._rows = ordered(self.every_row, self.order, reverse=self.reverse, words=self.words)
        return self._rows

    @property
    def names(self) -> Sequence[str]:
        """See ListView."""
        return [row.name for row in self.rows]

    @property
    def orders(self) -> Sequence[Sort]:
        """See ListView."""
        return SORTS

    @property
    def one(self) -> Row | None:
        """The row whose page is shown, also where the list does not have it any more."""
        return next((row for row in self.every_row if row.name == self.selected), None)

    def arrange(self) -> None:
        """See ListView."""
        self._rows = None

    def freeze(self) -> None:
        """See ListView."""
        self._shown_past = self.past.copy() if self.paused else None
        self._show(self.seen if self.paused else self._newest)

    def press_in_list(self, key: str) -> None:
        """See ListView."""
        if key == "tab":
            self.of_hosts, self.selected, self.top = not self.of_hosts, "", 0
            self._show(self.seen)
        else:
            super().press_in_list(key)
