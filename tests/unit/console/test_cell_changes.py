"""The bytes that turn one screen into the next: a terminal that gets them shows exactly the next one."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyte
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.style import Style

from tflaunch.console.cell_changes import Row, cells, changes
from tflaunch.console.safe_text import Console, Text

COLUMNS, ROWS = 12, 3
CONSOLE = Console(file=io.StringIO())
_STYLES = st.sampled_from(["", "bold", "#009e73", "reverse", "bold reverse", "underline"])
_WORDS = st.text("ab 日▃e", max_size=COLUMNS)
_LINES = st.lists(st.tuples(_WORDS, _STYLES), max_size=3)
_SCREENS = st.lists(_LINES, min_size=ROWS, max_size=ROWS)


def screen(lines: Sequence[Sequence[tuple[str, str]]]) -> list[Row]:
    return [cells(Text.assemble(*line), COLUMNS, CONSOLE) for line in lines]


def paint(text: str, style: Style | None) -> str:
    return style.render(text, color_system=ColorSystem.EIGHT_BIT) if style else text


def shown(terminal: pyte.Screen) -> list[list[tuple[str, ...]]]:
    def cell(char: pyte.screens.Char) -> tuple[str, ...]:
        seen = char.data if char.data.strip() or char.reverse or char.underscore else " "
        # Nobody sees the colour of a blank.
        style = (char.fg, str(char.bold)) if seen.strip() else ()
        return (seen, str(char.reverse), str(char.underscore), *style)

    return [[cell(terminal.buffer[y][x]) for x in range(COLUMNS)] for y in range(ROWS)]


def whole(rows: Sequence[Row]) -> pyte.Screen:
    terminal = pyte.Screen(COLUMNS, ROWS)
    text = "".join(
        f"\x1b[{number + 1}H" + "".join(paint(text, style) for text, style in row)
        for number, row in enumerate(rows)
    )
    pyte.Stream(terminal).feed(text)
    return terminal


@given(_SCREENS, _SCREENS)
def test_the_terminal_shows_the_next_screen(
    before: list[list[tuple[str, str]]], after: list[list[tuple[str, str]]]
) -> None:
    old, new = screen(before), screen(after)
    terminal = whole(old)
    pyte.Stream(terminal).feed(changes(old, new, paint))
    assert shown(terminal) == shown(whole(new))


def test_equal_screens_take_no_bytes() -> None:
    rows = screen([[("abc", "bold")], [("日本", "")], []])
    assert changes(rows, rows, paint) == ""


def test_a_change_takes_little_more_than_its_cells() -> None:
    old = screen([[("step 1 of 9", "bold")], [], []])
    new = screen([[("step 2 of 9", "bold")], [], []])
    assert changes(old, new, paint) == "\x1b[1;6H\x1b[1m2\x1b[0m"


def test_what_is_gone_is_wiped_by_one_order() -> None:
    old, new = screen([[("abcdefghijkl", "")], [], []]), screen([[("ab", "")], [], []])
    assert changes(old, new, paint) == "\x1b[1;3H\x1b[K"


def test_a_tab_is_a_blank_and_an_accent_belongs_to_its_letter() -> None:
    made = cells(Text("a\tb\u0301" + "\u0301" * 50), COLUMNS, CONSOLE)
    assert [text for text, _ in made[:2]] == ["a", " "]
    assert made[2][0].startswith("b\u0301")
    assert len(made[2][0]) < 10
    assert len(made) == COLUMNS
