"""The last lines of the terminal, below all output that scrolls: live lines, or a question.

Only the writer's thread (tflaunch.documents.writer) calls what is here.
"""

from __future__ import annotations

from typing import Protocol

from tflaunch.console.pen import Pen
from tflaunch.console.safe_text import Text

# Not from the first column: tmux takes it for a clearing of the screen, and moves the line into its history.
_WIPE = "\r \x1b[J\r"


class Write(Protocol):
    """Writes to stderr at once; `before` and `after` move the cursor (Writer.err)."""

    def __call__(self, text: str, before: str = "", after: str = "") -> None: ...


class LiveLines:
    """Lines that are drawn again and again in the same place.

    Between two drawings the cursor waits at the start of the first of them.  When the window is made narrower, a
    terminal breaks the lines anew, and keeps the cursor at the same character: all that is to be removed is below.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._drawn = False

    def draw(self, text: str) -> None:
        """Draw these lines in place of the last ones."""
        more = text.count("\n")
        up = f"\x1b[{more}A" if more else ""
        # One line is not wiped first: it would flicker.
        self._write(text, before=_WIPE if more else "\r", after=f"\x1b[J{up}\r")
        self._drawn = True

    def wipe(self) -> None:
        """Remove the lines from the screen; what is printed next takes their place."""
        if self._drawn:
            self._write("", before=_WIPE)
            self._drawn = False


class Question:
    """A question to the user, who answers on the line where it ends."""

    def __init__(self, pen: Pen, write: Write) -> None:
        self._pen, self._write = pen, write
        self._text = ""
        self._shown = False

    def ask(self, text: str) -> None:
        """Show the question until `end`; draw even the same text again: the shell wrote behind it."""
        self.leave_line()
        self._text = text

    def end(self, typed: bool) -> None:
        """Stop showing the question; `typed`: the user's Enter has ended its line."""
        self._shown &= not typed
        self.leave_line()
        self._text = ""

    @property
    def open(self) -> bool:
        """Whether the user has not answered yet."""
        return bool(self._text)

    def draw(self) -> None:
        """Draw the question, unless it is already the last line of the screen."""
        if not self._shown:
            self._write(self._pen.render(Text(self._text, "bold")).rstrip("\n") + " ")
            self._shown = True

    def leave_line(self) -> None:
        """Move to the line below the question; `draw` shows the question again."""
        if self._shown:
            self._write("\n")
            self._shown = False
