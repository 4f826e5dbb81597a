"""docs/reliability.md tells of every fault that the suite injects, and of no other."""

from __future__ import annotations

from tests.faults import table


def test_the_document_has_the_suites_rows() -> None:
    text = table.DOCUMENT.read_text()
    assert [row[:3] for row in table.rows(text)] == [*table.faults()], "scripts/faults writes the table anew"


def test_each_test_of_a_fault_has_a_row() -> None:
    modules = {path.stem.removeprefix("test_") for path in table.ROOT.glob("tests/faults/test_*.py")}
    assert modules - {"table"} == {*table.MODULES}
    assert len({fault for fault, _, _ in table.faults()}) == len([*table.faults()])


def test_times_are_the_longest_of_a_row_and_stay_until_there_are_new_ones() -> None:
    first = next(fault for fault, _, _ in table.faults())
    lines = (f'{{"fault": "{first}", "noticed": {seconds}, "gone": 12.5}}' for seconds in (3, 9, 4))
    text = table.written(f"above\n{table.BEGIN}{table.END}below\n", table.worst(lines))
    assert table.rows(text)[0][3:] == ("9 s", "", "", "12.5 s")
    assert table.rows(text)[1][3:] == ("", "", "", "")
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert table.written(text, {}) == text
