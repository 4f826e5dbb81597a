"""What is told once: on this machine, to this user, whichever tflaunch asks."""

from __future__ import annotations

from pathlib import Path

from tflaunch.runs.record_files import recorded_ids
from tflaunch.runs.told import FILE, is_new


def test_a_sentence_is_new_once(tmp_path: Path) -> None:
    root = tmp_path / "state" / "runs"
    assert is_new("secrets stay here: .env", root)
    assert is_new("secrets stay here: .env, \udcff", root)
    assert not is_new("secrets stay here: .env", root)
    assert not is_new("secrets stay here: .env, \udcff", root)
    assert recorded_ids(root) == [], "it is no run"
    assert (root / FILE).stat().st_mode & 0o777 == 0o600


def test_where_it_cannot_be_noted_all_is_new(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert is_new("a", tmp_path / "file" / "runs")
    assert is_new("a", tmp_path / "file" / "runs")
    (tmp_path / "goal").write_text("")
    (tmp_path / FILE).symlink_to(tmp_path / "goal")
    assert is_new("a", tmp_path)
    assert is_new("a", tmp_path)
    assert (tmp_path / "goal").read_text() == "", "nothing is written through a link"


def test_a_full_file_begins_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"0123456789abcde\n" * 4096)
    assert is_new("a", tmp_path)
    assert not is_new("a", tmp_path)
    assert (tmp_path / FILE).stat().st_size == 17
