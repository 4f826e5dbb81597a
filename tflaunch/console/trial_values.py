"""The values of a trial's parameters in little room: a number is rounded, never cut, and names give way to values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import Column, Table

_DIGITS = (3, 2)  # of a number, where there is little room
_LEAST_NAME = 3  # characters of a parameter's name, beside its value
_LEAST_WORD = 8  # columns for a parameter's values that are words
_LEAST_HEADING = 4


def rounded(value: str, digits: int | None) -> str:
    """The value with so many digits, if it is a number that is shorter then; None: as it is."""
    if digits is None or value.lstrip("-").isdigit():
        return value
    try:
        text = f"{float(value):.{digits}g}"
    except ValueError:
        return value
    return min(value, text, key=len)


def in_room(params: Mapping[str, object], room: int | None, more: str) -> str:
    """`lr=0.1 units=32` in `room` columns: with shorter names, fewer digits, then shorter words; longer if need be."""
    values = {name: str(value) for name, value in params.items()}
    longest = max(map(len, values), default=0)
    # (characters of a name, digits of a number, characters of a word)
    ways = [(length, None, None) for length in range(longest, _LEAST_NAME - 1, -1)]
    fewer = [(_LEAST_NAME, digits, word) for word in (None, _LEAST_WORD) for digits in _DIGITS]
    text = ""
    for length, digits, word in (*ways, *fewer):
        text = " ".join(
            f"{_cut(name, length, more)}={_cut(rounded(value, digits), word if _is_word(value) else None, more)}"
            for name, value in values.items()
        )
        if room is None or len(text) <= room:
            break
    return text


def _cut(text: str, length: int | None, more: str) -> str:
    return text if length is None or len(text) <= length else text[: length - len(more)] + more


def fitting(columns: Callable[[int | None], Sequence[Column]], width: int | None, more: str) -> Table:
    """The table of these columns, made with as many digits of each number as there is room for."""
    table = Table(columns(None), width, more)
    for digits in _DIGITS:
        if not table.left_out:
            break
        table = Table(columns(digits), width, more)
    return table


def of_parameter(name: str, values: Sequence[str], number: int, digits: int | None) -> Column:
    """The column of parameter `number`: of numbers, only the heading is cut; the last columns are left out first."""
    cells = [Text(rounded(value, digits)) for value in values]
    if any(map(_is_word, values)):
        return Column(name, cells, shrink=2, least=_LEAST_WORD, drop=number + 1)
    return values_whole(Column(name, cells, drop=number + 1))


def values_whole(column: Column, least: int = _LEAST_HEADING) -> Column:
    """The same column, of which only the heading is cut, to `least`, and before other columns are narrowed."""
    widest = max((cell.cell_len for cell in column.cells), default=0)
    return dataclasses.replace(column, shrink=3, least=max(least, widest))


def _is_word(value: str) -> bool:
    try:
        float(value or 0)
    except ValueError:
        return True
    return False
