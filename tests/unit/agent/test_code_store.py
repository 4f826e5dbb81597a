"""What runs share of the code in a host's store, and what each has as a copy of its own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.code import grow, keep
from tflaunch.agent.files.code_store import CodeStore, may_share
from tflaunch.agent.files.outputs import Outputs
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.code.bundle import Bundle, bundle

NOBODY = 65534


@pytest.fixture
def packed(tmp_path: Path) -> Bundle:
    """A program with a module, data, and one text that is a program in one place."""
    code = grow(
        tmp_path / "code",
        {"train.py": "import m\n", "pkg/m.py": "x = 1\n", "data.csv": "1,2\n", "tool.py": "print()\n"},
    )
    (code / "again.py").write_text("print()\n")
    (code / "tool.py").chmod(0o755)
    return bundle(code)


def as_nobody(place: Path, act: Callable[[], None]) -> None:
    """Run `act` in a process of a user who is not root, who owns what is below that place."""
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="it becomes another user")
def test_runs_share_source_texts_that_none_can_write_to(packed: Bundle) -> None:
    with TemporaryDirectory() as made:
        place = Path(made)  # where another user gets to: pytest's directories are root's alone
        keep(packed, place)

        def act() -> None:
            for run in ("one", "two"):
                copied = CodeStore(str(place), packed.digest).copy_to(str(place / run), share=True)
                assert "damaged" not in copied
            one, two = place / "one", place / "two"
            assert (one / "pkg/m.py").samefile(two / "pkg/m.py")
            with pytest.raises(PermissionError):
                (one / "pkg/m.py").write_text("x = 2\n")
            assert os.access(one / "tool.py", os.X_OK)
            assert not os.access(one / "again.py", os.X_OK), "the same text, and no program"
            assert not (one / "data.csv").samefile(two / "data.csv")
            (one / "data.csv").write_text("3\n")
            (one / "pkg/m.py").unlink()  # the directory is the run's own
            (one / "pkg/m.py").write_text("x = 2\n")
            assert (two / "pkg/m.py").read_text() == "x = 1\n"
            assert (two / "data.csv").read_text() == "1,2\n"
            CodeStore(str(place), packed.digest).copy_to(str(place / "one"), share=True)
            assert (one / "pkg/m.py").read_text() == "x = 1\n", "as for a run that is planned again"
            (two / "pkg/m.py").chmod(0o644)
            (two / "pkg/m.py").write_text("spoilt")
            assert "damaged" in CodeStore(str(place), packed.digest).copy_to(str(place / "three"), share=True)

        as_nobody(place, act)


def test_a_run_that_shares_nothing_has_copies(packed: Bundle, tmp_path: Path) -> None:
    keep(packed, tmp_path)
    for run in ("one", "two"):
        CodeStore(str(tmp_path), packed.digest).copy_to(str(tmp_path / run))
    assert not (tmp_path / "one/train.py").samefile(tmp_path / "two/train.py")
    (tmp_path / "one/train.py").write_text("changed")
    assert (tmp_path / "two/train.py").read_text() == "import m\n"


def test_who_may_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert may_share([{"container": ""}])
    assert not may_share([{"container": ""}, {"container": "tensorflow/tensorflow"}])
    assert not may_share([]), "what will be started is not known"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not may_share([{"container": ""}])


def test_what_is_shared_is_no_output(packed: Bundle, tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path), "run", "host")
    directory.create()
    keep(packed, tmp_path)
    copied = CodeStore(str(tmp_path), packed.digest).copy_to(directory.work, share=True)
    directory.write("shipped.json", copied)
    CodeStore(str(tmp_path), packed.digest).lacks(
        packed.manifest, last=True
    )  # of a later run: it sets the times
    Path(directory.work, "data.csv").write_text("3\n")
    Path(directory.work, "pkg/m.py").unlink()
    Path(directory.work, "pkg/m.py").write_text("x = 2\n")
    found = [
        path for each in Outputs(directory).find([("", True)], [""]) for path, *_ in each.get("files", ())
    ]
    assert sorted(found) == ["data.csv", "pkg/m.py"]
