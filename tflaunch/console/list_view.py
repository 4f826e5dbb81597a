"""What the user of a watch looks at: a list, one of its rows, or the help; and what each key does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from tflaunch.text.safe import one_line

Page = Literal["list", "one", "help"]
MOST_WORDS = 200  # characters of a filter

_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}
_FAR = 1_000_000

By = TypeVar("By", bound=str)


@dataclass(kw_only=True)
class ListView(Generic[By]):
    """One user's view; `press` is called for each key."""

    order: By
    reverse: bool = False
    page: Page = "list"
    words: str = ""  # the filter: only rows that have them are listed
    typing: bool = False  # the keys go into them
    paused: bool = False
    selected: str = ""  # the name of a row
    top: int = 0  # the first line of the list that is shown
    scrolled: int = 0  # lines of the other pages
    page_lines: int = 10  # as many as a page key moves: who draws the page tells
    _behind: Page = "list"  # the page behind the help
    _words_before: str = ""  # before they were typed anew

    @property
    @abstractmethod
    def orders(self) -> Sequence[By]:
        """The orders that there are."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Those of the rows that are listed."""

    @abstractmethod
    def arrange(self) -> None:
        """Filter or order have changed: list the rows anew."""

    @abstractmethod
    def freeze(self) -> None:
        """`paused` has changed."""

    @property
    def number(self) -> int:
        """The place of the selected row in the list; the first one where it is gone."""
        return next((place for place, name in enumerate(self.names) if name == self.selected), 0)

    def press(self, key: str, character: str | None = None) -> bool:
        """Do what a key does, by textual's name of it; returns False when the watch is to end."""
        if self.typing:
            self._type(key, character)
        elif key == "q":
            return False
        elif key in ("question_mark", "h", "f1"):
            self.page, self._behind = (self._behind, "list") if self.page == "help" else ("help", self.page)
            self.scrolled = 0
        elif key == "space":
            self.paused = not self.paused
            self.freeze()
        elif self.page == "list":
            self.press_in_list(key)
        elif key in ("escape", "backspace", "enter"):
            self.page = self._behind if self.page == "help" else "list"
            self.scrolled, self._behind = 0, "list"
        elif key in ("left", "right") and self.page == "one":
            self._select(-1 if key == "left" else 1)
            self.scrolled = 0
        else:
            self.scrolled = max(0, self.scrolled + self._step(key))  # who draws the page knows the end
        return True

    def paste(self, text: str) -> None:
        """Take text that the user pasted: into the filter, while it is typed."""
        if self.typing:
            self._filter(self.words + one_line(" ".join(text.split())))

    def press_in_list(self, key: str) -> None:
        """Do what a key does while the list is shown."""
        if key in ("slash", "/"):
            self.typing, self._words_before = True, self.words
        elif key == "escape":
            self._filter("")
        elif key == "s":
            self.order = self.orders[(self.orders.index(self.order) + 1) % len(self.orders)]
            self._turn(False)
        elif key == "r":
            self._turn(not self.reverse)
        elif key == "enter":
            if self.names:
                self.page, self.scrolled, self.selected = "one", 0, self.names[self.number]
        else:
            self._select(self._step(key))

    def _turn(self, reverse: bool) -> None:
        self.reverse, self.top = reverse, 0
        self.arrange()

    def _type(self, key: str, character: str | None) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self._filter(self.words if key == "enter" else self._words_before)
        elif key in ("backspace", "ctrl+h"):
            self._filter(self.words[:-1])
        elif key == "ctrl+u":
            self._filter("")
        elif key in ("up", "down", "pageup", "pagedown"):
            self._select(self._step(key))
        elif character and character.isprintable():
            self._filter(self.words + character)

    def _filter(self, text: str) -> None:
        self.words = text[:MOST_WORDS]
        self.arrange()

    def _step(self, key: str) -> int:
        far = {"pageup": -self.page_lines, "pagedown": self.page_lines, "home": -_FAR, "end": _FAR}
        return _STEPS.get(key) or far.get(key, 0)

    def _select(self, step: int) -> None:
        if step and (names := self.names):
            self.selected = names[max(0, min(len(names) - 1, self.number + step))]
