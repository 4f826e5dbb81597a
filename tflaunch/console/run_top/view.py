"""What the user looks at, and what each key does to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tflaunch.console.run_top.table_rows import SORTS, PastLooks, Row, Sort, host_rows, ordered, task_rows
from tflaunch.runs.looking import SeenRun
from tflaunch.text.safe import one_line

Page = Literal["list", "one", "help"]
MOST_FILTER = 200  # characters
STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}
FAR = 1_000_000


@dataclass
class TopView:
    """One user's view; `press` is called for each key, `take` for each look."""

    seen: SeenRun | None = None
    page: Page = "list"
    of_hosts: bool = False  # the list has hosts, not tasks
    sort: Sort = "name"
    reverse: bool = False
    words: str = ""  # only rows that have them
    typing: bool = False  # the keys go into them
    paused: bool = False
    selected: str = ""
    top: int = 0  # the first row of the list that is shown
    scrolled: int = 0  # lines of the other pages
    page_lines: int = 10  # as many as a page key moves: drawing.py tells
    past: PastLooks = field(default_factory=PastLooks)
    _newest: SeenRun | None = None
    _shown_past: PastLooks | None = None  # while the screen is paused
    _words_before: str = ""
    _rows: list[Row] | None = None

    def take(self, look: SeenRun) -> None:
        """Take what the hosts have said; while the screen is paused it is only noted."""
        self._newest = look
        self.past.take(look.tasks)
        if not self.paused:
            self.seen, self._rows = look, None

    @property
    def every_row(self) -> list[Row]:
        """All tasks, or all hosts."""
        if self.seen is None:
            return []
        make = host_rows if self.of_hosts else task_rows
        return make(self.seen, self._shown_past or self.past)

    @property
    def rows(self) -> list[Row]:
        """The rows of the list."""
        if self._rows is None:
            self._rows = ordered(self.every_row, self.sort, reverse=self.reverse, words=self.words)
        return self._rows

    @property
    def number(self) -> int:
        """The place of the selected row in the list; 0 where it is gone."""
        return next((n for n, row in enumerate(self.rows) if row.name == self.selected), 0)

    @property
    def one(self) -> Row | None:
        """The row whose page is shown, also where the list does not have it any more."""
        return next((row for row in self.every_row if row.name == self.selected), None)

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does, by textual's name of it; returns False when the watch is to end."""
        if self.typing:
            self._type(key, character)
        elif key == "q":
            return False
        elif key in ("question_mark", "h", "f1"):
            self.page, self.scrolled = "list" if self.page == "help" else "help", 0
        elif key == "space":
            self._pause()
        elif self.page == "list":
            self._press_in_list(key)
        elif key in ("escape", "backspace", "enter"):
            self.page, self.scrolled = "list", 0
        elif key in ("left", "right") and self.page == "one":
            self._select(-1 if key == "left" else 1)
        else:
            self.scrolled = max(0, self.scrolled + self._step(key))  # drawing.py knows the end
        return True

    def paste(self, text: str) -> None:
        """Take text that the user pasted: into the filter, while it is typed."""
        if self.typing:
            self._filter(self.words + one_line(" ".join(text.split())))

    def _press_in_list(self, key: str) -> None:
        if key in ("slash", "/"):
            self.typing, self._words_before = True, self.words
        elif key == "escape":
            self._filter("")
        elif key == "tab":
            self.of_hosts, self.selected, self.top = not self.of_hosts, "", 0
            self._rows = None
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
            self.reverse, self._rows, self.top = False, None, 0
        elif key == "r":
            self.reverse, self._rows, self.top = not self.reverse, None, 0
        elif key == "enter" and self.rows:
            self.selected = self.rows[self.number].name
            self.page, self.scrolled = "one", 0
        else:
            self._select(self._step(key))

    def _type(self, key: str, character: str | None) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self._filter(self.words if key == "enter" else self._words_before)
        elif key in ("backspace", "ctrl+h"):
            self._filter(self.words[:-1])
        elif key in ("up", "down", "pageup", "pagedown"):
            self._select(self._step(key))
        elif character and character.isprintable():
            self._filter(self.words + character)

    def _filter(self, text: str) -> None:
        self.words, self._rows = text[:MOST_FILTER], None

    def _pause(self) -> None:
        self.paused = not self.paused
        self._shown_past = self.past.copy() if self.paused else None
        if not self.paused:
            self.seen, self._rows = self._newest, None

    def _step(self, key: str) -> int:
        far = {"pageup": -self.page_lines, "pagedown": self.page_lines, "home": -FAR, "end": FAR}
        return STEPS.get(key) or far.get(key, 0)

    def _select(self, step: int) -> None:
        if step and self.rows:
            self.selected = self.rows[max(0, min(len(self.rows) - 1, self.number + step))].name
