"""Lines for rich to draw, in which no character acts on the terminal or fakes another line.

Everything that is drawn is a `Text` of this module, or a string that its `Console` draws: both pass through
tflaunch.text.safe.one_line.  Only `paragraph` and `stacked` make texts of several lines.
Widths are in columns of the terminal: a wide character takes two.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

import rich.console
import rich.text
from rich.cells import cell_len

from tflaunch.text.safe import one_line

INDENT = "    "
_LEAD = re.compile(r" *(?:[^\w\s]{1,2} )?")  # the indent of a line, and the mark at its start


class Text(rich.text.Text):
    """One line that is safe to show."""

    __slots__ = ()

    def __init__(self, text: str = "", style: str = "", **more: Any) -> None:
        super().__init__(one_line(text), style, **more)

    @classmethod
    def assemble(cls, *parts: Any, **more: Any) -> Text:
        """Make a line of strings, texts, and pairs of a string and its style."""
        text = cls(**more)
        for part in parts:
            text.append(*part) if isinstance(part, tuple) else text.append(part)
        return text

    def append(self, text: rich.text.Text | str, style: Any = None) -> Text:
        """Add to its end."""
        super().append(one_line(text) if isinstance(text, str) else text, style)
        return self

    def append_text(self, text: rich.text.Text) -> Text:
        """Add to its end."""
        super().append_text(text)
        return self

    def __add__(self, other: Any) -> Text:
        return self.copy().append(other)

    def join(self, lines: Any) -> Text:
        """Return those texts as one, with this one between them."""
        return _ours(super().join(lines))

    def copy(self) -> Text:
        """Return another one like it."""
        return _ours(super().copy())


def _ours(text: rich.text.Text) -> Text:
    text.__class__ = Text  # rich makes copies of its own kind
    assert isinstance(text, Text)  # noqa: S101
    return text


def paragraph(*parts: str | tuple[str, str], style: str = "", indent: str = INDENT, **more: Any) -> Text:
    """Make a text of parts that may have several lines; those after the first begin with `indent`."""
    made = Text(style=style, **more)
    for part in parts:
        text, its_style = (part, "") if isinstance(part, str) else part
        first, *others = map(one_line, text.split("\n"))
        lines = [first, *(line if line.startswith(indent) else indent + line for line in others)]
        rich.text.Text.append(made, "\n".join(lines), its_style or None)
    return made


def stacked(lines: Iterable[rich.text.Text]) -> Text:
    """Make one text of these, each in a line of its own."""
    return _ours(rich.text.Text("\n").join(lines))


def unstacked(text: Text) -> list[Text]:
    """Return the lines of a text, with a blank for each tab."""
    if "\t" in text.plain:
        text = text.copy()
        text.expand_tabs(1)
    return [*map(_ours, text.split("\n", allow_blank=True))] if "\n" in text.plain else [text]


def wrapped(text: rich.text.Text, width: int) -> list[Text]:
    """Return the text in lines of `width` at most; only a word that is wider than that is broken."""
    return [*map(_ours, text.wrap(_any_console(), width, overflow="fold"))]


@functools.cache
def _any_console() -> Console:
    return Console(file=io.StringIO())  # rich demands one, but makes no use of it here


def hung(text: rich.text.Text, width: int) -> Text:
    """Return the text in lines of `width` at most; the rest of a long line begins below its first word."""
    lines: list[rich.text.Text] = []
    for line in text.split("\n", allow_blank=True):
        if line.cell_len <= width:
            lines.append(line)
            continue
        found = _LEAD.match(line.plain)
        depth = min(found.end() if found else 0, width // 2)
        lead, body = line[:depth], line[depth:]
        first, *more = wrapped(body, width - depth)
        lines += [Text.assemble(lead, first), *(Text.assemble(" " * depth, each) for each in more)]
    return stacked(lines)


def wrapped_words(words: Sequence[str], width: int, between: str = " ") -> list[str]:
    """Return the words in lines of `width` at most, separated by `between`; no word is broken."""
    lines: list[str] = []
    for word in words:
        joined = f"{lines[-1]}{between}{word}" if lines else word
        if lines and cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


class Console(rich.console.Console):
    """Draws every string as it is, without markup, emoji codes or highlighting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, *, style: Any = "", **options: Any) -> rich.text.Text:
        """Return the text of a string."""
        return super().render_str(one_line(text), style=style, **options)
