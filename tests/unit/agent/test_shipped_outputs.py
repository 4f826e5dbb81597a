"""What looking for a run's outputs takes, where all that is there is shipped code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.code import grow
from tflaunch.agent.files import outputs
from tflaunch.agent.host.rundir import RunDirectory


def test_no_pattern_is_compiled_for_shipped_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To load `re` takes longer than the look."""
    directory = RunDirectory(str(tmp_path), "run", "h1")
    names = [f"pkg/{number}.py" for number in range(2 * outputs.ENTRIES)]
    grow(Path(directory.work), dict.fromkeys(names, "pass\n"))
    modified = int((Path(directory.work) / names[0]).stat().st_mtime)
    for name in names:
        outputs.os.utime(Path(directory.work) / name, (modified, modified))
    directory.write("shipped.json", {"files": names, "modified": modified})
    compiled: list[str] = []
    monkeypatch.setattr(outputs._Patterns, "compiled", lambda _: compiled.append("all") or [])
    looked = outputs.Outputs(directory)
    assert len(list(looked.find([("(?s:.*)", True)], [""]))) > 2, "the agent's loop went on meanwhile"
    assert compiled == []
    grow(Path(directory.work), {"made.txt": "by a task"})
    list(looked.find([("(?s:.*)", True)], [""]))
    assert compiled
