"""The one drawer of tables: what it leaves out, shrinks, wraps and cuts where there is no room."""

from __future__ import annotations

import pytest

from tflaunch.console.safe_text import Text, paragraph, stacked
from tflaunch.console.text_table import Column, Table, cut, fitted, table

FRUIT = ["apple", "fig", "blackcurrant"]


def texts(*cells: str) -> list[Text]:
    return [*map(Text, cells)]


def drawn(columns: list[Column], width: int | None = None) -> list[str]:
    return [line.plain for line in table(columns, width, "…")]


def test_a_column_is_as_wide_as_its_widest_cell_or_heading() -> None:
    assert drawn([Column("fruit", texts(*FRUIT)), Column("number", texts("1", "22", "3"), right=True)]) == [
        "fruit         number",
        "apple              1",
        "fig               22",
        "blackcurrant       3",
    ]


def test_wide_characters_count_for_two_and_controls_as_what_is_shown_of_them() -> None:
    cells = ["模型", "a\x1b[2Jb", "a\nb", "a\tb", "x\x00"]
    lines = drawn([Column("", texts(*cells)), Column("", texts(*"12345"))])
    assert lines[1:] == ["模型   1", "ab     2", "a\\nb   3", "a b    4", "x\\x00  5"]


@pytest.mark.parametrize(
    ("width", "heading"),
    [(21, "run  hosts  pid  what"), (20, "run  hosts  what"), (15, "run  what"), (8, "run  wh…")],
)
def test_the_highest_is_left_out_first_and_what_must_stay_is_cut_at_last(width: int, heading: str) -> None:
    cells = texts("a")
    columns = [Column("run", cells), Column("hosts", cells, drop=1), Column("pid", cells, drop=2)]
    assert drawn([*columns, Column("what", cells)], width)[0] == heading


def test_what_may_shrink_does_so_the_highest_first_of_equals_the_widest() -> None:
    columns = [
        Column("", texts("x" * 8), shrink=1, least=4),
        Column("", texts("y" * 10), shrink=1, least=4),
        Column("", texts("z" * 9), shrink=2, least=5),
        Column("", texts("stays")),
    ]
    assert drawn(columns, 40)[1] == "xxxxxxxx  yyyyyyyyyy  zzzzzzzzz  stays"
    assert drawn(columns, 34)[1] == "xxxxxxxx  yyyyyyyyyy  zzzz…  stays"
    assert drawn(columns, 31)[1] == "xxxxxx…  yyyyyyy…  zzzz…  stays"
    assert drawn(columns, 20)[1] == "xxx…  yyy…  zzzz…  …"


def test_what_wraps_loses_nothing_and_its_row_is_as_high_as_that() -> None:
    cause = paragraph("a cause of several words", ("\nand a step", "cyan"), indent="")
    columns = [
        Column("", texts("gpu[01-99]", "b"), wraps=True, shrink=1, least=4, most=6),
        Column("", [cause, Text("short")], wraps=True, shrink=1, least=4),
    ]
    lines = Table(columns, 19, margin="  ").lines(headings=False)
    assert [line.plain for line in lines] == [
        "  gpu[01  a cause",
        "  -99]    of",
        "          several",
        "          words",
        "          and a",
        "          step",
        "  b       short",
    ]
    whole = Table(columns, None).lines(headings=False)
    assert [line.plain for line in whole][:2] == ["gpu[01  a cause of several words", "-99]    and a step"]


def test_a_cell_may_have_several_lines() -> None:
    columns = [Column("n", texts("1", "2")), Column("who", [stacked(texts("ada", "bob")), Text("eve")])]
    assert drawn(columns) == ["n  who", "1  ada", "   bob", "2  eve"]


def test_a_wide_character_is_never_cut_in_half() -> None:
    assert cut(Text("模型模型"), 6, "…").plain == "模型 …"
    assert cut(Text("模型模型"), 6, "...").cell_len == 6
    assert fitted(Text("模"), 4, "…", right=True).plain == "  模"


def test_a_table_tells_how_wide_it_is() -> None:
    wide = Table([Column("ab", texts("模型")), Column("c", texts("d"))], gap="   ", margin=" ")
    assert wide.width == 9 == max(line.cell_len for line in wide.lines())
