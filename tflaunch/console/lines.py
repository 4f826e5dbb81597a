"""Lines as rich draws them, of which no character acts on the terminal and none forges another line.

Whatever is drawn is a `Text` of this module, or a string in a table of its `Console`: both are shown as
tflaunch.sessions.log_lines.one_line has it.  More lines than one have only what `paragraph` made.
"""

from __future__ import annotations

import re
from typing import Any

import rich.console
import rich.text

from tflaunch.sessions.log_lines import one_line

INDENT = "    "
_LEAD = re.compile(r" *(?:[^\w\s]{1,2} )?")  # of a line: its indent, and the mark that it begins with


class Text(rich.text.Text):
    """One line."""

    __slots__ = ()

    def __init__(self, text: str = "", style: str = "", **more: Any) -> None:
        super().__init__(one_line(text), style, **more)

    @classmethod
    def assemble(cls, *parts: Any, **more: Any) -> Text:
        """Of strings, texts, and pairs of a string and its style."""
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
        """Those texts, with this one between them."""
        return _ours(super().join(lines))

    def copy(self) -> Text:
        """Another one like it."""
        return _ours(super().copy())


def _ours(text: rich.text.Text) -> Text:
    text.__class__ = Text  # rich makes copies of its own kind
    assert isinstance(text, Text)  # noqa: S101
    return text


def paragraph(*parts: str | tuple[str, str], style: str = "", indent: str = INDENT, **more: Any) -> Text:
    """Several lines, if there are that many in these parts; the later ones begin with `indent`."""
    made = Text(style=style, **more)
    for part in parts:
        text, its_style = (part, "") if isinstance(part, str) else part
        first, *others = map(one_line, text.split("\n"))
        lines = [first, *(line if line.startswith(indent) else indent + line for line in others)]
        rich.text.Text.append(made, "\n".join(lines), its_style or None)
    return made


def hung(text: rich.text.Text, console: rich.console.Console, width: int) -> Text:
    """That text in lines of `width` columns at most; the later ones of a line begin below its first word."""
    lines: list[rich.text.Text] = []
    for line in text.split("\n", allow_blank=True):
        if line.cell_len <= width:
            lines.append(line)
            continue
        found = _LEAD.match(line.plain)
        depth = min(found.end() if found else 0, width // 2)
        lead, body = line[:depth], line[depth:]
        first, *more = body.wrap(console, width - depth)
        lines += [Text.assemble(lead, first), *(Text.assemble(" " * depth, each) for each in more)]
    return _ours(rich.text.Text("\n").join(lines))


class Console(rich.console.Console):
    """Takes every string as a line to be shown as it is: it holds no markup, no emoji code, nothing to highlight."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, *, style: Any = "", **options: Any) -> rich.text.Text:
        """The text of a string, in a table for example."""
        return super().render_str(one_line(text), style=style, **options)
