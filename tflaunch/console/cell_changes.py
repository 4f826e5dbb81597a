"""The bytes that turn one screen into the next: only cells that have changed are sent.

textual sends a line anew from its left edge to its last change: three to five times as much, over a slow link too much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from tflaunch.console.safe_text import Console, Text

Cell = tuple[str, Style | None]  # of a wide character, the second cell has the text ""
Row = Sequence[Cell]
_BLANK: Cell = (" ", None)
_MOST_IN_CELL = 8  # characters
_GAP = 6  # so many equal cells are sent again rather than passed over, which takes as many bytes


def cells(line: Text, columns: int, console: Console) -> list[Cell]:
    """Return a line as that many cells."""
    found: list[Cell] = []
    for segment in line.render(console):
        style = segment.style or None
        for character in segment.text.replace("\t", " "):
            width = cell_len(character)
            if not width:  # an accent belongs to the cell before it; nobody needs many
                if found and len(found[-1][0]) < _MOST_IN_CELL:
                    found[-1] = (found[-1][0] + character, found[-1][1])
                continue
            found.append(_BLANK if character == " " and not _fills(style) else (character, style))
            found += [("", style)] * (width - 1)
    return (found + [_BLANK] * (columns - len(found)))[:columns]


def segments(row: Row) -> list[Segment]:
    """Return the cells as rich's segments."""
    return [Segment(text, style) for text, style in _runs(row)]


def changes(old: Sequence[Row], new: Sequence[Row], paint: Callable[[str, Style | None], str]) -> str:
    """Return what to write; both screens have the same size.  `paint` makes text in a style for the terminal."""
    return "".join(
        _changed_row(number, before, after, paint)
        for number, (before, after) in enumerate(zip(old, new, strict=True))
        if before != after
    )


def _changed_row(number: int, old: Row, new: Row, paint: Callable[[str, Style | None], str]) -> str:
    end = len(new)
    while end and new[end - 1] == _BLANK:
        end -= 1
    changed = [place for place in range(end) if old[place] != new[place]]
    parts = []
    for first, last in _spans(changed):
        while first and not new[first][0]:  # a wide character is written whole
            first -= 1  # noqa: PLW2901
        while last + 1 < len(new) and not new[last + 1][0]:
            last += 1  # noqa: PLW2901
        text = "".join(paint(text, style) for text, style in _runs(new[first : last + 1]))
        parts.append(f"\x1b[{number + 1};{first + 1}H{text}")
    if any(cell != _BLANK for cell in old[end:]):
        parts.append(f"\x1b[{number + 1};{end + 1}H\x1b[K")
    return "".join(parts)


def _spans(places: Sequence[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for place in places:
        if spans and place - spans[-1][1] <= _GAP:
            spans[-1] = (spans[-1][0], place)
        else:
            spans.append((place, place))
    return spans


def _runs(row: Row) -> list[tuple[str, Style | None]]:
    runs: list[tuple[str, Style | None]] = []
    for text, style in row:
        if runs and (runs[-1][1] == style or ((text, style) == _BLANK and not _fills(runs[-1][1]))):
            runs[-1] = (runs[-1][0] + text, runs[-1][1])
        else:
            runs.append((text, style))
    return runs


def _fills(style: Style | None) -> bool:
    """Whether a blank in that style is seen."""
    return style is not None and bool(style.reverse or style.bgcolor or style.underline)
