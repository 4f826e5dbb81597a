"""Draws all tables.

A column is as wide as its heading and its widest cell.  Where a table is too wide, first columns with `drop` are left
out, then columns with `shrink` are narrowed, and at last each line is cut at its end.  `more` stands for the text that
does not fit a cell, or the text goes on in the next line (`wraps`).  A table without a width, in a pipe, is complete.

Cells come here safe (tflaunch.console.safe_text): what would act on a terminal is text already, and counts as such.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tflaunch.console.safe_text import Text, unstacked, wrapped

GAP = "  "  # between two columns


@dataclass(frozen=True)
class Column:
    """A column of a table; a cell may have several lines.

    drop: where there is no room, the column with the highest `drop` is left out first; 0: never.
    shrink: the column with the highest `shrink` is narrowed first, of equals the widest, to `least`; 0: never.
    most: its greatest width, however much room there is; longer cells wrap.
    fit: makes its cells anew for so many columns, where it is narrowed.
    """

    heading: str
    cells: Sequence[Text]
    right: bool = False
    drop: int = 0
    shrink: int = 0
    least: int = 12
    wraps: bool = False
    most: int | None = None
    fit: Callable[[int], Sequence[Text]] | None = None

    @functools.cached_property  # each row asks for it, and there may be thousands of runs
    def width(self) -> int:
        """How wide it is where there is room."""
        widest = max([cell_len(self.heading), *map(_width, self.cells)])
        return widest if self.most is None else min(widest, self.most)

    @property
    def narrowest(self) -> int:
        """Its least width, if it is shown."""
        return min(self.width, self.least) if self.shrink else self.width


class Table:
    """Columns side by side, `gap` between them and `margin` before the first, in lines of `width` at most."""

    def __init__(
        self,
        columns: Sequence[Column],
        width: int | None = None,
        more: str = "…",
        *,
        gap: str = GAP,
        margin: str = "",
    ) -> None:
        self._most, self._more, self._gap, self._margin = width, more, gap, margin
        room = None if width is None else width - len(margin)
        self._columns = columns if room is None else _that_fit(columns, room, len(gap))
        kept = set(map(id, self._columns))
        self.left_out = [column for column in columns if id(column) not in kept]
        widths = [column.width for column in self._columns]
        self._widths = widths if room is None else _shrunk(self._columns, widths, room, len(gap))
        self._columns = [
            dataclasses.replace(column, cells=column.fit(width))
            if column.fit is not None and width < column.width
            else column
            for column, width in zip(self._columns, self._widths, strict=True)
        ]

    @property
    def width(self) -> int:
        """How wide its lines are, if they are not cut."""
        return len(self._margin) + _sum(self._widths, len(self._gap))

    def heading(self) -> Text:
        """Return the line above the rows; headings that would be cut to the same are cut within."""
        names = [Text(column.heading, "dim") for column in self._columns]
        short = [cut(name, width, self._more).plain for name, width in zip(names, self._widths, strict=True)]
        count = Counter(short)
        return self._line(
            [
                Text(cut_inside(name.plain, width, self._more), "dim") if count[cut_off] > 1 else name
                for name, cut_off, width in zip(names, short, self._widths, strict=True)
            ]
        )

    def row(self, number: int) -> list[Text]:
        """Return the lines of a row: as many as its tallest cell has."""
        cells = [
            self._cell(column, column.cells[number], width)
            for column, width in zip(self._columns, self._widths, strict=True)
        ]
        high = max(map(len, cells))
        return [
            self._line([cell[line] if line < len(cell) else Text() for cell in cells]) for line in range(high)
        ]

    def lines(self, *, headings: bool = True) -> list[Text]:
        """Return the heading and all rows."""
        rows = max((len(column.cells) for column in self._columns), default=0)
        return [*([self.heading()] if headings else []), *(line for n in range(rows) for line in self.row(n))]

    def _cell(self, column: Column, cell: Text, width: int) -> list[Text]:
        lines = unstacked(cell)
        if column.wraps and any(line.cell_len > width for line in lines):
            return [part for line in lines for part in wrapped(line, width)]
        return lines

    def _line(self, cells: Sequence[Text]) -> Text:
        line = Text(self._margin)
        for number, (cell, column, width) in enumerate(zip(cells, self._columns, self._widths, strict=True)):
            line.append(self._gap if number else "").append_text(
                fitted(cell, width, self._more, column.right)
            )
        line.rstrip()
        return cut(line, self._most, self._more)


def table(columns: Sequence[Column], width: int | None, more: str, *, headings: bool = True) -> list[Text]:
    """Return the lines of a table."""
    return Table(columns, width, more).lines(headings=headings)


def cut(line: Text, width: int | None, more: str) -> Text:
    """Return the line, cut to `width` if it is wider; `more` stands for what was cut off."""
    if width is None or line.cell_len <= width:
        return line
    line = line.copy()
    line.truncate(max(0, width - cell_len(more)), overflow="crop")
    return line.append(more, "dim")


def cut_inside(text: str, width: int, more: str) -> str:
    """Return the text, cut in its middle to `width` if it is wider; `more` stands for what was cut out."""
    if cell_len(text) <= width:
        return text
    room = max(0, width - cell_len(more))
    head = tail = text
    while cell_len(tail) > room // 2:
        tail = tail[1:]
    while cell_len(head) > room - cell_len(tail):
        head = head[:-1]
    return head + more + tail


def fitted(text: Text, width: int, more: str, right: bool = False) -> Text:
    """Return the text, cut or padded to `width`."""
    text = cut(text, width, more)
    padding = " " * (width - text.cell_len)
    return Text(padding).append_text(text) if right else text + padding


def _width(cell: Text) -> int:
    return max(cell_len(line) for line in cell.plain.expandtabs(1).split("\n"))


def _sum(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * max(0, len(widths) - 1)


def _that_fit(columns: Sequence[Column], room: int, gap: int) -> list[Column]:
    shown = list(columns)
    while _sum([column.narrowest for column in shown], gap) > room:
        first = max(shown, key=lambda column: column.drop)
        if not first.drop:
            break
        shown.remove(first)
    return shown


def _shrunk(columns: Sequence[Column], widths: list[int], room: int, gap: int) -> list[int]:
    """Narrow the columns until they fit `room`, or none may shrink further; return their widths."""
    for number in _shrinking(columns, widths):
        if _sum(widths, gap) <= room:
            break
        widths[number] -= 1
    return widths


def _shrinking(columns: Sequence[Column], widths: Sequence[int]) -> Iterator[int]:
    """Yield the number of the column that is to shrink next, until none may."""
    while True:
        may = [number for number, column in enumerate(columns) if widths[number] > column.narrowest]
        if not may:
            return
        yield max(may, key=lambda number: (columns[number].shrink, widths[number]))
