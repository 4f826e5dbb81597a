"""What the user looks at, and what each key does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tflaunch.console.gpu_watch.history import History
from tflaunch.console.gpu_watch.host_rows import ORDERS, HostRow, Order, Rows, rows
from tflaunch.console.list_view import ListView
from tflaunch.survey.gpu_overview import Answer, WantedGpus


@dataclass(frozen=True)
class Look:
    """What the hosts have said at one time."""

    answers: Sequence[Answer] = ()
    at: float = 0.0  # monotonic
    clock: float = 0.0  # epoch seconds


@dataclass
class WatchView(ListView[Order]):
    """One user's view; `press` is called for each key, `take` for each look."""

    order: Order = field(default="host", kw_only=True)
    history: History
    wanted: WantedGpus
    unfolded: bool | None = None  # whether the GPUs are shown below their hosts; None: where all fit
    all_fit: bool = True  # the hosts with all their GPUs fit the window: pages.py tells
    look: Look = field(default_factory=Look)
    _frozen: History | None = None  # what is shown while the screen is paused
    _newest: Look = field(default_factory=Look)
    _rows: Rows | None = None

    def take(self, look: Look) -> None:
        """Take what the hosts have said; while the screen is paused it is only noted."""
        self._newest = look
        self.history.take(look.answers, look.at)
        if not self.paused:
            self.look, self._rows = look, None

    @property
    def rows(self) -> Rows:
        """The hosts to show."""
        if self._rows is None:
            self._rows = rows(self.look.answers, self.wanted, self.words, self.order, reverse=self.reverse)
        return self._rows

    @property
    def graphs(self) -> History:
        """The history to show."""
        return self._frozen or self.history

    @property
    def column(self) -> int:
        """The newest column of the graphs to show."""
        return self.history.column(self.look.at)

    @property
    def shows_gpus(self) -> bool:
        """Whether the list shows the GPUs below their hosts."""
        return self.all_fit if self.unfolded is None else self.unfolded

    @property
    def names(self) -> Sequence[str]:
        """See ListView."""
        return [row.name for row in self.rows.hosts]

    @property
    def orders(self) -> Sequence[Order]:
        """See ListView."""
        return [*ORDERS]

    @property
    def whole_host(self) -> HostRow | None:
        """The host whose page is shown, with all its GPUs; a filter that it no longer passes does not hide it."""
        every = rows(self.look.answers, WantedGpus(), "", "host").hosts
        return next((row for row in every if row.name == self.selected), None)

    def arrange(self) -> None:
        """See ListView."""
        self._rows = None

    def freeze(self) -> None:
        """See ListView."""
        self._frozen = self.history.copy() if self.paused else None
        if not self.paused:
            self.look, self._rows = self._newest, None

    def press_in_list(self, key: str) -> None:
        """See ListView."""
        if key == "g":
            self.unfolded = not self.shows_gpus
        else:
            super().press_in_list(key)
