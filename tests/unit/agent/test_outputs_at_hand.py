"""Where a task has written nothing, an agent sees that by itself; else, and where it might wait, a process looks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tflaunch.agent.files.outputs import ENTRIES, OutputsInTime
from tflaunch.agent.host import foreign, mounts
from tflaunch.agent.host.rundir import RunDirectory


class Place:
    """A run directory with shipped code, and how many processes were started to look for outputs."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(str(path), "run-abcdef", "gpu01")
        self.directory.create()
        self.work = Path(self.directory.work)
        (self.work / "model").mkdir(parents=True)
        for name in ("train.py", "model/net.py"):
            (self.work / name).write_text("pass\n")
            os.utime(self.work / name, (7, 7))
        self.directory.write("shipped.json", {"files": ["train.py", "model/net.py"], "modified": 7})
        self.processes = 0
        self.table = [("/", "ext4"), ("/proc", "proc")]  # of mounts

    def found(self) -> dict[str, Any]:
        """What an agent finds there."""
        outputs = OutputsInTime(self.directory, lambda: 20.0)
        (part,) = outputs.find([("^.*$", True)], [""])
        return part


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    child = foreign.child

    def counted(work: Callable[[int], None]) -> tuple[int, int]:
        place.processes += 1
        return child(work)

    monkeypatch.setattr(foreign, "child", counted)
    table = lambda: ((point.encode(), kind.encode()) for point, kind in place.table)  # noqa: E731
    monkeypatch.setattr(mounts, "mounts", table)
    return place


def test_shipped_code_as_it_came_takes_no_process(place: Place) -> None:
    assert place.found() == {"files": [], "left": [], "there": ["model"], "last": True}
    assert place.processes == 0


def write_new(place: Place) -> None:
    (place.work / "model/weights").write_text("1")


def write_shipped(place: Place) -> None:
    (place.work / "train.py").write_text("1")


def link(place: Place) -> None:
    (place.work / "latest").symlink_to("model")


@pytest.mark.parametrize(
    ("change", "file"), [(write_new, "model/weights"), (write_shipped, "train.py"), (link, "latest")]
)
def test_what_may_be_an_output_is_looked_at_by_a_process(
    place: Place, change: Callable[[Place], None], file: str
) -> None:
    change(place)
    said = place.found()
    assert [row[0] for row in said["files"] + said["left"]] == [file]
    assert place.processes == 1


def test_so_are_more_files_than_one_turn_takes(place: Place) -> None:
    names = [f"{number}.py" for number in range(ENTRIES)]
    for name in names:
        (place.work / name).write_text("")
        os.utime(place.work / name, (7, 7))
    place.directory.write("shipped.json", {"files": ["train.py", "model/net.py", *names], "modified": 7})
    outputs = OutputsInTime(place.directory, lambda: 20.0)
    assert [part["last"] for part in outputs.find([("^.*$", True)], [""])][-1]
    assert place.processes == 1


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "9p", "a-kind-to-come"])
@pytest.mark.parametrize("at", ["", "work", "work/model", "work/model/data"])
def test_so_is_what_may_wait_for_a_server(place: Place, kind: str, at: str) -> None:
    place.table.append((str(Path(place.directory.path, at)), kind))
    assert place.found()["there"] == ["model"]
    assert place.processes == 1


def test_so_is_a_directory_elsewhere(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.directory.write("plan.json", {"tasks": [{"cwd": str(tmp_path / "elsewhere")}]})
    assert place.found()["there"] == []
    assert place.processes == 1
    place.directory.write("plan.json", {"tasks": [{"cwd": ""}]})
    place.work.rename(tmp_path / "moved")
    place.work.symlink_to(tmp_path / "moved")
    assert place.found()["there"] == ["model"]
    assert place.processes == 2


def test_a_mount_beside_the_directory_or_under_another_one_does_not_count(place: Place) -> None:
    path = place.directory.path
    place.table += [(path, "nfs4"), (path, "xfs"), (f"{path}-1", "nfs4")]
    place.found()
    assert place.processes == 0


def test_the_mounts_are_those_of_this_host() -> None:
    table = dict(mounts.mounts())
    assert table[b"/proc"] == b"proc"
    assert not mounts.at_hand("/proc")
    assert os.fsencode(mounts.below("/")) in table


def test_a_mount_is_found_whatever_its_name(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can mount")
    place = tmp_path / "a b\\c\t\u00fc"
    (place / "data").mkdir(parents=True)
    program = "from tflaunch.agent.host import mounts; import sys; print(repr(mounts.below(sys.argv[1])))"
    script = 'mount -t tmpfs none "$1/data" && shift && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", script, "sh", str(place), sys.executable, "-c", program]
    for path in (tmp_path, place):
        told = subprocess.run([*words, str(path)], capture_output=True, text=True, check=True, cwd=ROOT)
        assert told.stdout == f"{str(place / 'data')!r}\n"
