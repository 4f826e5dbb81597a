"""What the user looks at, and what each key does to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tflaunch.console.gpu_watch.history import History
from tflaunch.console.gpu_watch.host_rows import ORDERS, HostRow, Order, Rows, rows
from tflaunch.survey.gpu_overview import Answer, WantedGpus
from tflaunch.text.safe import one_line

Page = Literal["hosts", "host", "help"]
_MOST_FILTER = 200  # characters

_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}
_FAR = 1_000_000


@dataclass(frozen=True)
class Look:
    """What the hosts have said at one time."""

    answers: Sequence[Answer] = ()
    at: float = 0.0  # monotonic
    clock: float = 0.0  # epoch seconds


@dataclass
class WatchView:
    """One user's view; `press` is called for each key, `take` for each look."""

    history: History
    wanted: WantedGpus
    order: Order = "host"
    reverse: bool = False
    page: Page = "hosts"
    filtered: str = ""
    typing: bool = False  # the keys go into the filter
    paused: bool = False
    unfolded: bool | None = None  # whether the GPUs are shown below their hosts; None: where all fit
    selected: str = ""  # the name of a host
    top: int = 0  # the first line of the list that is shown
    scrolled: int = 0  # lines of the host's page, or of the help
    page_lines: int = 10  # as many as a page key moves: pages.py tells
    all_fit: bool = True  # the hosts with all their GPUs fit the window: pages.py tells
    look: Look = field(default_factory=Look)
    _frozen: History | None = None  # what is shown while the screen is paused
    _behind: str = "hosts"  # the page behind the help
    _newest: Look = field(default_factory=Look)
    _before: str = ""  # the filter before it was typed anew
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
            self._rows = rows(self.look.answers, self.wanted, self.filtered, self.order, reverse=self.reverse)
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
    def number(self) -> int:
        """The place of the selected host in the list; the first one where it is gone."""
        return next((n for n, row in enumerate(self.rows.hosts) if row.name == self.selected), 0)

    @property
    def host(self) -> HostRow | None:
        """The selected host, with those of its GPUs that the list shows."""
        hosts = self.rows.hosts
        return hosts[self.number] if hosts else None

    @property
    def whole_host(self) -> HostRow | None:
        """The host whose page is shown, with all its GPUs; a filter that it no longer passes does not hide it."""
        every = rows(self.look.answers, WantedGpus(), "", "host").hosts
        return next((row for row in every if row.name == self.selected), None)

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does, by textual's name of it; returns False when the watch is to end."""
        if self.typing:
            self._type(key, character)
        elif key == "q":
            return False
        elif key in ("question_mark", "h", "f1"):
            self.page, self._behind = ("help", self.page) if self.page != "help" else (self._back(), "hosts")
            self.scrolled = 0
        elif key == "space":
            self._pause()
        elif self.page == "hosts":
            self._press_in_list(key)
        else:
            self._press_in_page(key)
        return True

    def paste(self, text: str) -> None:
        """Take text that the user pasted: into the filter, while it is typed."""
        if self.typing:
            self._filter(self.filtered + one_line(" ".join(text.split())))

    def _back(self) -> Page:
        return "host" if self._behind == "host" else "hosts"

    def _pause(self) -> None:
        self.paused = not self.paused
        self._frozen = self.history.copy() if self.paused else None
        if not self.paused:
            self.look, self._rows = self._newest, None

    def _type(self, key: str, character: str | None) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing = False
            self._filter(self._before)
        elif key in ("backspace", "ctrl+h"):
            self._filter(self.filtered[:-1])
        elif key == "ctrl+u":
            self._filter("")
        elif key in ("up", "down", "pageup", "pagedown"):
            self._press_in_list(key)
        elif character and character.isprintable():
            self._filter(self.filtered + character)

    def _filter(self, text: str) -> None:
        self.filtered, self._rows = text[:_MOST_FILTER], None

    def _press_in_list(self, key: str) -> None:
        if key in ("slash", "/"):
            self.typing, self._before = True, self.filtered
        elif key == "escape":
            self._filter("")
        elif key in ("s", "r"):
            names = [*ORDERS]
            if key == "s":
                self.order, self.reverse = names[(names.index(self.order) + 1) % len(names)], False
            else:
                self.reverse = not self.reverse
            self._rows, self.top = None, 0
        elif key == "g":
            self.unfolded = not self.shows_gpus
        elif key == "enter" and self.host is not None:
            self.page, self.scrolled, self.selected = "host", 0, self.host.name
        else:
            self._select(self._step(key))

    def _press_in_page(self, key: str) -> None:
        if key in ("escape", "backspace", "enter"):
            self.page = self._back() if self.page == "help" else "hosts"
            self.scrolled = 0
        elif key in ("left", "right") and self.page == "host":
            self._select(-1 if key == "left" else 1)
            self.scrolled = 0
        else:
            self.scrolled = max(0, self.scrolled + self._step(key))  # pages.py knows the end

    def _step(self, key: str) -> int:
        far = {"pageup": -self.page_lines, "pagedown": self.page_lines, "home": -_FAR, "end": _FAR}
        return _STEPS.get(key) or far.get(key, 0)

    def _select(self, step: int) -> None:
        hosts = self.rows.hosts
        if step and hosts:
            self.selected = hosts[max(0, min(len(hosts) - 1, self.number + step))].name
