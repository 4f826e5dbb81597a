"""What `clean` cannot remove it names, and removes the rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.ages import make_old
from tflaunch.agent import garbage
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.protocol import removal


def descriptors() -> list[str]:
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


def test_an_environment_that_stays_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(str(tmp_path), "run-aaaaaa", "h1")
    Path(directory.path).mkdir(parents=True)
    directory.write("agent.json", {"over": True})
    place = tmp_path / ".environments"
    for name in ("bad", "good"):
        (place / name).mkdir(parents=True)
        (place / name / "made.json").write_text("{}")
        make_old(place / name)

    def set_aside(path: str) -> str:
        if path.endswith("bad"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return removal.set_aside(path)

    monkeypatch.setattr(garbage, "set_aside", set_aside)
    before = descriptors()
    done = garbage.clean(str(tmp_path), ["run-aaaaaa"], 0.0)
    assert descriptors() == before, "nothing is locked any more"
    assert set(done["removed"]) == {"run-aaaaaa"}
    assert done["environments"]["files"] == 1
    assert done["left"] == {".environments": f"{place}/bad: Read-only file system"}
    assert sorted(each.name for each in place.iterdir()) == ["bad", "bad.lock"]
