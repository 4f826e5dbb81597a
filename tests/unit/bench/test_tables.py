"""What the measurements make of their figures."""

from __future__ import annotations

from bench.growth import growth
from bench.measure import Table
from bench.report import lines, markdown


def test_ratios_are_those_within_a_round() -> None:
    table = Table("Fan-out, 4 hosts", "tflaunch", ("wall s",), 4)
    table.rows = {
        "tflaunch": [{"wall s": 1.0}, {"wall s": 10.0}, {"wall s": 2.0}, None],
        "slow": [{"wall s": 3.0}, {"wall s": 30.0}, None, {"wall s": 1.0}],
        "broken": [None, None, None, None],
    }
    assert lines(table) == [
        ["", "wall s", "wall s \u00d7"],
        ["tflaunch", "2.00", "1.00"],
        ["slow", "3.00", "3.00"],
        ["broken", "-", "-"],
    ]
    assert "| slow | 3.00 | 3.00 |" in markdown([table], 4)


def test_growth_is_a_straight_line_and_says_what_ends_first() -> None:
    def measured(hosts: int) -> Table:
        table = Table(f"Memory, {hosts} hosts", "tflaunch run", (), hosts)
        table.rows["tflaunch run"] = [{"client MiB": 40.0 + hosts, "client files": 24.0 + 2 * hosts}]
        return table

    assert not [*growth([measured(4)])]
    (model,) = growth([measured(4), measured(16), measured(64)])
    (memory,) = model.rows["Memory: tflaunch run, client MiB"]
    assert memory is not None
    assert round(memory["fixed"], 6) == 40
    assert round(memory["per host"], 6) == 1
    assert round(memory["at 10,000"], 6) == 10_040
    assert [remark.partition(":")[0] for remark in model.remarks[:-1]] == [
        "from 500 hosts on",
        "from 16,344 hosts on",
    ]
