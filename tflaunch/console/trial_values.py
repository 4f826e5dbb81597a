"""The values of a trial's parameters in little room: a number is rounded, never cut, and names give way to values."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from tflaunch.console.safe_text import Text
from tflaunch.console.text_table import GAP, Column, Table, cut_inside

_DIGITS = (3, 2)  # of a number, where there is little room
_MOST_DIGITS = 17  # they tell any two numbers apart
_LEAST_WORD = 8  # columns for a parameter's values that are words
_LEAST_HEADING = 5  # its first and last letter, and what stands for the others
_LEAST_VALUES = 8  # columns for all values of a trial
_C = TypeVar("_C", bound=Column)


class ParameterColumn(Column):
    """The column of one parameter, whatever its name is."""


def rounded(values: Sequence[str], digits: int | None) -> list[str]:
    """The values of one parameter, of which numbers have so many digits, if they are shorter then; None: as they are.

    A number has more digits if it would be the same as another value else, or a whole number though it is none.  One
    that only has zeros more at its end stays: `1.10` may be a version.
    """
    if digits is None:
        return [*values]
    numbers = {value: number for value in values if (number := _number(value)) is not None}
    different = {*numbers.values()}
    left = {value: number for value, number in numbers.items() if not value.lstrip("-").isdigit()}
    short: dict[str, str] = {}
    for many in range(digits, _MOST_DIGITS + 1):
        if not left:
            break
        alike = Counter(f"{number:.{many}g}" for number in different)
        for value, number in [*left.items()]:
            text = f"{number:.{many}g}"
            if alike[text] == 1 and float(text).is_integer() == number.is_integer():
                short[value] = _shorter(value, text)
                del left[value]
    return [short.get(value, value) for value in values]


def _shorter(value: str, text: str) -> str:
    only_zeros = value.startswith(text) and not value[len(text) :].strip(".0")
    return value if only_zeros or len(text) >= len(value) else text


def in_room(trials: Sequence[Mapping[str, object]], room: int | None, more: str) -> list[str]:
    """`lr=0.1 units=32` of each trial, in `room` columns.

    With shorter names, fewer digits, shorter words, or at last without the last parameters, for which `more` stands:
    of all trials alike.
    """
    texts: list[str] = []
    for texts in _ways(trials, more):  # the last one, if none fits
        if room is None or _widest(texts) <= room:
            break
    return texts


def _ways(trials: Sequence[Mapping[str, object]], more: str) -> Iterator[list[str]]:
    """The texts of the trials, from the longest to the shortest."""
    names = [*dict.fromkeys(name for each in trials for name in each)]
    values = _values(trials, names, None, None, more)
    least = _least_name(more)
    for length in range(max(map(len, names), default=0), least, -1):
        yield _joined(values, _short(names, length, more))
    shown = _short(names, least, more)
    yield _joined(values, shown)
    for word, digits in itertools.product((None, _LEAST_WORD), _DIGITS):
        yield _joined(_values(trials, names, digits, word, more), shown)
    values = _values(trials, names, _DIGITS[-1], _LEAST_WORD, more)
    for count in range(len(names) - 1, -1, -1):
        kept = {name: shown[name] for name in names[:count]}
        texts = _joined(values, kept)
        yield [
            f"{text} {more}".lstrip() if len(kept.keys() & each.keys()) < len(each) else text
            for text, each in zip(texts, values, strict=True)
        ]


def _least(trials: Sequence[Mapping[str, object]], more: str) -> int:
    """The columns that all parameters of these trials need."""
    names = [*dict.fromkeys(name for each in trials for name in each)]
    values = _values(trials, names, _DIGITS[-1], _LEAST_WORD, more)
    return _widest(_joined(values, _short(names, _least_name(more), more)))


def _least_name(more: str) -> int:
    """Characters of a parameter's name beside its value: two of its own at least."""
    return 2 + len(more)


def _values(
    trials: Sequence[Mapping[str, object]],
    names: Sequence[str],
    digits: int | None,
    word: int | None,
    more: str,
) -> list[dict[str, str]]:
    """The values of each trial, with so many digits and words of so many characters."""
    short: dict[str, dict[str, str]] = {}
    for name in names:
        known = [*dict.fromkeys(str(each[name]) for each in trials if name in each)]
        short[name] = dict(zip(known, rounded(known, digits), strict=True))
        if word is not None:
            short[name] |= _short([*filter(_is_word, known)], word, more)
    return [{name: short[name][str(value)] for name, value in each.items()} for each in trials]


def _joined(values: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> list[str]:
    return [
        " ".join(f"{shown}={each[name]}" for name, shown in names.items() if name in each) for each in values
    ]


def _short(texts: Sequence[str], length: int, more: str) -> dict[str, str]:
    """Text -> the same cut to `length`: at its end, or within if it is like another then, and longer if need be."""
    short = {text: text if len(text) <= length else text[: length - len(more)] + more for text in texts}
    for longer in itertools.count(length):
        count = Counter(short.values())
        alike = [text for text, cut in short.items() if count[cut] > 1]
        if not alike:
            break
        short |= {text: cut_inside(text, longer, more) for text in alike}
    return short


def _widest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)


def of_trials(
    trials: Sequence[Mapping[str, object]],
    others: Sequence[Column],
    width: int | None,
    more: str,
    *,
    heading: str = "",
    style: str = "",
) -> Column:
    """The column of all values of each trial, in a table so wide with these others, which give way to the numbers."""

    def cells(room: int | None) -> list[Text]:
        return [Text(text, style) for text in in_room(trials, room, more)]

    least = _least(trials, more)
    if width is not None:
        fixed = sum(each.narrowest + len(GAP) for each in others if not each.drop)
        least = min(least, max(_LEAST_VALUES, width - fixed))
    return Column(heading, cells(None), shrink=1, least=least, fit=cells)


def of_names(names: Sequence[str], more: str, least: int) -> Column:
    """The column of these names, without a heading: where they are cut, those that differ still do, if they can."""

    def cells(room: int) -> list[Text]:
        short = _short([*dict.fromkeys(names)], room, more)
        return [Text(short[name]) for name in names]

    return Column("", [Text(name) for name in names], shrink=3, least=least, fit=cells)


def fitting(columns: Callable[[int | None], Sequence[Column]], width: int | None, more: str) -> Table:
    """The table of these columns, made with as many digits of each number as there is room for."""
    table = Table(columns(None), width, more)
    for digits in _DIGITS:
        if not table.left_out:
            break
        table = Table(columns(digits), width, more)
    return table


def of_parameter(name: str, values: Sequence[str], number: int, digits: int | None) -> ParameterColumn:
    """The column of parameter `number`: of numbers, only the heading is cut; the last columns are left out first."""
    cells = [Text(value) for value in rounded(values, digits)]
    if any(map(_is_word, values)):
        return ParameterColumn(name, cells, shrink=2, least=_LEAST_WORD, drop=number + 1)
    return values_whole(ParameterColumn(name, cells, drop=number + 1))


def values_whole(column: _C, least: int = _LEAST_HEADING) -> _C:
    """The same column, of which only the heading is cut, to `least`, and before other columns are narrowed."""
    widest = max((cell.cell_len for cell in column.cells), default=0)
    return dataclasses.replace(column, shrink=3, least=max(least, widest))


def _is_word(value: str) -> bool:
    return bool(value) and _number(value) is None


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
