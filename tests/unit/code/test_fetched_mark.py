"""What fetch brought is marked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.code import files, grow
from tests.support.fetched import MARK, bring, named
from tflaunch.code import fetched_mark
from tflaunch.code.bundle import bundle
from tflaunch.protocol.errors import FetchError
from tflaunch.runs.fetch_destination import Destination


def test_a_directory_that_fetch_makes_is_marked_with_those_it_makes_above(tmp_path: Path) -> None:
    bring(tmp_path / "results/run1", "checkpoints/a", "b")
    assert [named(tmp_path / name) for name in ("results", "results/run1")] == [set(), set()]
    assert [named(tmp_path), named(tmp_path / "results/run1/checkpoints")] == [None, None]
    bring(tmp_path / "results/run1", "c")  # again
    assert named(tmp_path / "results/run1") == set()
    bring(tmp_path / "nothing/at/all", "a", come=False)
    assert not (tmp_path / "nothing").exists()


def test_in_a_directory_of_the_user_s_the_names_are_marked(tmp_path: Path) -> None:
    grow(tmp_path, {"trainer.py": "", "config.json": "mine", "pkg/a.py": "", "logs/": ""})
    bring(tmp_path, "checkpoints/deep/a", "checkpoints/b", "metrics.csv", "logs/one", "pkg/new.py")
    assert named(tmp_path) == {"checkpoints/", "metrics.csv", "logs/one", "pkg/new.py"}
    # What was to come and did not is not named; one that was replaced is.
    destination = Destination(tmp_path)
    destination.mark(["config.json", "metrics.csv", "never", "more/never"])
    assert named(tmp_path) == {"checkpoints/", "metrics.csv", "logs/one", "pkg/new.py", "never", "more/"}
    destination.settle(["config.json"])
    assert named(tmp_path) == {"checkpoints/", "metrics.csv", "logs/one", "pkg/new.py", "config.json"}
    alone = grow(tmp_path / "alone", {"a": ""})
    bring(alone, "b", come=False)
    assert named(alone) is None
    assert not [path for path in tmp_path.rglob("*") if fetched_mark.is_part(path.name)]


def test_two_fetches_to_one_directory_name_what_both_brought(tmp_path: Path) -> None:
    grow(tmp_path, {"trainer.py": ""})
    one, two = Destination(tmp_path), Destination(tmp_path)
    one.mark(["a", "x"])
    two.mark(["b", "y"])
    grow(tmp_path, {"a": "", "b": ""})
    one.settle(["a"])
    two.settle(["b"])
    assert named(tmp_path) == {"a", "b"}


def test_the_mark_is_never_written_through_a_link_and_no_link_is_one(tmp_path: Path) -> None:
    code = grow(tmp_path / "code", {"trainer.py": "", "a": "", "sub/b": ""})
    outside = grow(tmp_path, {"outside": "/a\n", "all": "# all\n"}) / "outside"
    (code / MARK).symlink_to(outside)
    (code / "sub" / MARK).symlink_to(tmp_path / "all")
    assert files(bundle(code)) == {"trainer.py", "a", "sub/b"}
    bring(code, "c")
    assert (outside.read_text(), (code / MARK).is_symlink(), named(code)) == ("/a\n", False, {"c"})
    (code / MARK).unlink()
    (code / MARK).mkdir()
    with pytest.raises(FetchError, match=rf"cannot write to {code}/{MARK}: Is a directory"):
        Destination(code).mark(["d"])
    (code / MARK).rmdir()
    os.mkfifo(code / MARK)
    assert named(code) is None
