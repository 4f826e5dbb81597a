"""Draws the help of a command as text: at most 100 columns wide, what a reader needs first at its top.

Imports nothing slow, rich least of all: the help of a command is shown before anything else happens.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tflaunch.documents.writer import dumb

MOST_COLUMNS = 100  # longer lines are hard to read
LEAST_COLUMNS = 40
PIPE_COLUMNS = 80
_BOLD, _NAME, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_GAP = 2
_MOST_OF_NAMES = 32  # columns; longer names stand above their texts
_JOINED = "\0"


class Section(NamedTuple):
    """A heading, and rows of (name, text)."""

    title: str
    rows: Sequence[tuple[str, str]]


class HelpPage(NamedTuple):
    """The help of a command, before it is drawn."""

    usage: str
    summary: str
    examples: Sequence[tuple[str, str]]  # command, what it does
    more: Sequence[str]  # paragraphs
    sections: Sequence[Section]
    notes: Sequence[str]  # paragraphs at the end


def columns_of(environ: Mapping[str, str] = os.environ) -> int:
    """Return how wide to draw: $COLUMNS, else the terminal behind stdout, stderr or stdin, else 80; 40 to 100."""
    found = int(environ["COLUMNS"]) if environ.get("COLUMNS", "").isdecimal() else 0
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        if found:
            break
        try:
            found = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):  # no terminal, closed, or no file behind it
            continue
    return min(MOST_COLUMNS, max(LEAST_COLUMNS, found or PIPE_COLUMNS))


def in_colour(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether stdout takes colours, and the user wants them."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return terminal and not environ.get("NO_COLOR") and not dumb(environ)


def help_text(page: HelpPage, columns: int, *, colour: bool = False) -> str:
    """Draw the page; no line is longer than `columns`, but where a single word is."""
    width = {kind: _widest(page.sections, kind, columns) for kind in (False, True)}
    blocks = [
        _usage(page.usage, columns, colour=colour),
        _filled(page.summary, columns),
        _examples(page.examples, columns, colour=colour),
        *(_filled(text, columns) for text in page.more),
        *(_section(each, width[_of_options(each)], columns, colour=colour) for each in page.sections),
        *(_filled(text, columns) for text in page.notes),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _of_options(section: Section) -> bool:
    return any(name.lstrip().startswith("-") for name, _ in section.rows)


def _widest(sections: Sequence[Section], of_options: bool, columns: int) -> int:
    """Return how wide the column of names is: one for all sections of options, one for all others."""
    named = [each.rows for each in sections if _of_options(each) == of_options]
    most = min(_MOST_OF_NAMES, columns * 2 // 5)
    return max((len(name) for rows in named for name, _ in rows if len(name) <= most), default=0)


def _styled(text: str, style: str, colour: bool) -> str:
    return f"{style}{text}{_PLAIN}" if colour else text


def _filled(text: str, columns: int, indent: str = "", first: str = "") -> list[str]:
    """Wrap at spaces only, so that no option or path is torn."""
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _usage(usage: str, columns: int, *, colour: bool) -> list[str]:
    first, *more = _filled(f"Usage: {usage}", columns, "       ")
    return [first.replace("Usage:", _styled("Usage:", _BOLD, colour), 1), *more]


def _examples(examples: Sequence[tuple[str, str]], columns: int, *, colour: bool) -> list[str]:
    """Commands beside what they do, where all fit; else each above it, continued as a shell reads it."""
    if not examples:
        return []
    lines = [_styled("Examples:", _BOLD, colour)]
    width = max(len(command) for command, _ in examples)
    beside = 2 + width + _GAP + max(len(does) for _, does in examples) <= columns
    for command, does in examples:
        if beside:
            padding = " " * (width - len(command) + _GAP)
            lines.append(f"  {_styled(command, _NAME, colour)}{padding}{does}")
            continue
        together = re.sub(r" (?!-)", _JOINED, command)  # no option is torn from its value
        parts = [part.replace(_JOINED, " ") for part in _filled(together, columns - 2, "      ", "  ")]
        lines += [f"{_styled(part, _NAME, colour)} \\" for part in parts[:-1]]
        lines.append(_styled(parts[-1], _NAME, colour))
        lines += _filled(does, columns, "      ", "      ")
    return lines


def _section(section: Section, width: int, columns: int, *, colour: bool) -> list[str]:
    """A heading, and the rows: the names in a column of `width`, the texts beside or, where a name is long, below."""
    if not section.rows:
        return []
    lines = [_styled(f"{section.title}:", _BOLD, colour)]
    indent = " " * (2 + width + _GAP)
    for name, text in section.rows:
        shown = f"  {_styled(name, _NAME, colour)}"
        if len(name) > width:
            lines += [shown, *_filled(text, columns, indent, indent)]
            continue
        first, *more = _filled(text, columns - len(indent)) or [""]
        lines.append(f"{shown}{' ' * (width - len(name) + _GAP)}{first}".rstrip())
        lines += [f"{indent}{line}" for line in more]
    return lines


def sections_of(rows: Iterable[tuple[str, str, str]], order: Sequence[str] = ()) -> list[Section]:
    """Group rows of (title, name, text) by their titles: those of `order` first, then as they come."""
    found: dict[str, list[tuple[str, str]]] = {title: [] for title in order}
    for title, name, text in rows:
        found.setdefault(title, []).append((name, text))
    return [Section(title, rows) for title, rows in found.items() if rows]
