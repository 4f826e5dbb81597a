"""The directory of records: only where no other user could put records among ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch.protocol.errors import RecordError
from tflaunch.runs.record_files import check_root, make_root, recorded_ids


def test_it_is_made_for_this_user_alone_and_believed_then(tmp_path: Path) -> None:
    root = tmp_path / "state/tflaunch/runs"
    assert not check_root(root)
    assert recorded_ids(root) == []
    assert not root.exists(), "who only looks makes nothing"
    before = os.umask(0)
    try:
        make_root(root)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (root, root.parent, root.parent.parent)] == [0o700] * 3
    (root / "trainer-aaaaaa").mkdir()
    assert recorded_ids(root) == ["trainer-aaaaaa"]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
@pytest.mark.parametrize("below", ["", "below"])
def test_one_that_others_may_write_to_is_refused_with_the_next_step(
    tmp_path: Path, mode: int, below: str
) -> None:
    place = tmp_path / "shared"
    place.mkdir()
    os.chown(place, -1, 100)
    place.chmod(mode)
    root = place / below
    if mode == 0o1777 and below:
        make_root(root)  # nobody else can put anything there
        return
    for ask in (recorded_ids, make_root):
        with pytest.raises(RecordError) as caught:
            ask(root)
        assert str(caught.value).startswith(f"{place} may be written by ")
        assert f"others could put records among yours in {root}" in str(caught.value)
        assert "TFLAUNCH_STATE" in str(caught.value.hint)
    assert list(place.iterdir()) == []


def test_a_home_directory_lies_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write above it could put another home directory there, with all that is in it."""
    (tmp_path / "home/ada").mkdir(parents=True)
    (tmp_path / "home").chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "home/ada"))
    root = tmp_path / "home/ada/.local/state/tflaunch/runs"
    make_root(root)
    assert check_root(root)
    root.chmod(0o777)
    with pytest.raises(RecordError, match="others could put records among yours"):
        check_root(root)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's directory")
def test_another_users_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(RecordError, match="belongs to the user with the id 12345"):
        recorded_ids(tmp_path)


def test_it_may_lie_elsewhere_by_a_link_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "disk/trainer-aaaaaa").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk")
    assert recorded_ids(tmp_path / "runs") == ["trainer-aaaaaa"]
