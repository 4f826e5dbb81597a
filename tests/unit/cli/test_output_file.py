"""What is written where the user names a file: a plain file is exchanged, all else stays what it is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tflaunch.cli.output_file import OutputFile
from tflaunch.protocol.errors import UsageError


def write(path: Path, text: str = "new\n") -> None:
    OutputFile(path, "--html").write(text)


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def test_a_plain_file_is_exchanged_and_stays_as_private_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_text("old\n")
    path.chmod(0o600)
    with path.open() as reading:
        write(path)
        assert reading.read() == "old\n"
    assert path.read_text() == "new\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["page"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_exchanged(tmp_path: Path, there: bool) -> None:
    (tmp_path / "kept").mkdir()
    place, link, far = tmp_path / "kept/page", tmp_path / "link", tmp_path / "far"
    link.symlink_to("kept/page")
    far.symlink_to(link)
    if there:
        place.write_text("old\n")
    write(far)
    assert link.is_symlink() and far.is_symlink() and not place.is_symlink()
    assert place.read_text() == "new\n"
    assert names(tmp_path) == ["far", "kept", "link"] and names(tmp_path / "kept") == ["page"]


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_a_pipe_stays_one_and_its_reader_gets_the_text(tmp_path: Path, linked: bool, early: bool) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    file = OutputFile(link if linked else pipe, "--html")
    assert not file.replaces
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    if early:
        file.open()
    file.write("new\n")
    reader.join(PATIENCE_S)
    assert got == ["new\n"] and pipe.is_fifo() and link.is_symlink()
    assert names(tmp_path) == ["link", "pipe"]


def test_what_is_open_without_a_name_is_written_into(tmp_path: Path) -> None:
    """As /dev/stdout is in a pipe of the shell, or leads to a file that is removed."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as got, os.fdopen(writing, "w"):
        write(Path(f"/proc/self/fd/{writing}"))
        assert got.readline() == "new\n"
    path = tmp_path / "removed"
    with path.open("w+") as file:
        path.unlink()
        write(Path(f"/proc/self/fd/{file.fileno()}"))
        assert file.read() == "new\n"
    assert names(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make what is another user's")
@pytest.mark.parametrize("foreign", ["link", "directory", "pipe"])
def test_nothing_is_written_through_what_another_user_may_have_put_there(
    tmp_path: Path, foreign: str
) -> None:
    ours, shared = tmp_path / "ours", tmp_path / "shared"
    ours.write_text("old\n")
    shared.mkdir()
    shared.chmod(0o777 if foreign == "directory" else 0o1777)
    named = shared / "named"
    if foreign == "pipe":
        os.mkfifo(named)
    else:
        named.symlink_to(ours)
    if foreign != "directory":
        os.chown(named, 65534, 65534, follow_symlinks=False)
    write(named)
    assert stat.S_ISREG(named.lstat().st_mode) and named.read_text() == "new\n"
    assert ours.read_text() == "old\n" and names(shared) == ["named"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "a directory"),
        ("/", "a directory"),
        ("none/page", "there is no directory"),
        ("loop", "symbolic links"),
    ],
)
def test_what_cannot_be_written_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError, match=said):
        OutputFile(Path(name), "--html")
    assert names(tmp_path) == ["loop"]


def test_a_new_file_is_none_that_somebody_has_made_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    file = OutputFile(path, "-o")
    path.write_text("theirs\n")
    with pytest.raises(FileExistsError):
        file.write("ours\n", new=True)
    assert path.read_text() == "theirs\n" and names(tmp_path) == ["hosts.yaml"]
