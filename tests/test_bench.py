"""The measurements: they measure something; what, is for docs/performance.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.growth import growth
from bench.measure import Table
from bench.report import lines, markdown
from tests import bed as beds
from tests.bed import ROOT


def test_fan_out_beside_plain_ssh(tmp_path: Path) -> None:
    if reason := beds.missing():
        pytest.skip(reason)
    words = ("fanout", "--hosts", "2", "--rounds", "1", "--peers", "xargs")
    files = ("--json", str(tmp_path / "figures.json"), "--markdown", str(tmp_path / "tables.md"))
    argv = [sys.executable, "-m", "bench", *words, *files]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (table,) = json.loads((tmp_path / "figures.json").read_text())["tables"]
    assert [*table["rows"]] == ["tflaunch", "tflaunch --no-dial-check", "ssh, xargs -P 64"]
    for row in table["rows"].values():
        (figures,) = row
        assert figures["wall s"] > 0, table["remarks"]
        assert figures["client CPU s"] > 0
    for shown in (done.stdout, (tmp_path / "tables.md").read_text()):
        assert "Fan-out, 2 hosts" in shown
        assert "ssh, xargs -P 64" in shown


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
