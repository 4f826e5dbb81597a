"""The measurements: they measure something; what, is for docs/performance.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support import bed as beds


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
