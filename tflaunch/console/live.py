"""The last lines of the terminal, below all output that scrolls: live lines, or a question.

Only the writer's thread (tflaunch.console.writer) calls what is here.
"""

from __future__ import annotations

from typing import Protocol

from tflaunch.console.pen import Pen
from tflaunch.console.safe_text import Text


class Write(Protocol):
    """Writes to stderr at once; `before` and `after` move the cursor (Writer.err)."""

    def __call__(self, text: str, before: str = "", after: str = "") -> None: ...


class LiveLines:
    """Lines that are drawn again and again in the same place."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._drawn = 0  # lines on the screen

    def draw(self, text: str) -> None:
        """Draw these lines in place of the last ones."""
        lines = text.count("\n") + 1
        if lines == 1 and self._drawn <= 1:  # without a wipe: it would flicker
            self._write(text, before="\r", after="\x1b[K")
        else:
            self.wipe()
            self._write(text)
        self._drawn = lines

    def wipe(self) -> None:
        """Remove the lines from the screen; what is printed next takes their place."""
        if self._drawn:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            self._write("", before=f"\r{up}\x1b[J" if up else "\r\x1b[K")
            self._drawn = 0


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
