"""Outputs brought here: the directory here, and which ones."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.directories import files
from tflaunch.console.fetch_page import fetched_lines
from tflaunch.console.pen import ASCII
from tflaunch.inputs.patterns import Pattern, Wish
from tflaunch.protocol.errors import FetchError
from tflaunch.protocol.wire import Message
from tflaunch.runs.fetch_destination import Destination
from tflaunch.runs.fetch_part import FilePart, Refused, present
from tflaunch.runs.fetch_pipeline import Dishonest
from tflaunch.runs.fetch_requests import MOST_IDLE, FoundFile
from tflaunch.runs.fetch_result import Fetched
from tflaunch.runs.fetch_search import Search
from tflaunch.runs.written import written


def test_only_what_a_pattern_begins_with_is_looked_through() -> None:
    roots = {
        "checkpoints/**": "checkpoints",
        "a/b/*.pb": "a/b",
        "a/b*/c": "a",
        "/x/y": "x",
        "*.pb": "",
        "x": "",
        "**/x": "",
        "x/": "",
    }
    assert {text: Pattern.parse(text).root for text in roots} == roots
    for text in ("", "#x", "a/../b", "~/x"):
        with pytest.raises(ValueError):
            Pattern.parse(text)


def test_an_answer_that_names_nothing_new_comes_to_an_end() -> None:
    """A host that lies could go on for ever, and the fetch would never end."""
    wish = Wish((Pattern.parse("a/**"),), Path("to"))
    again = {"files": [["a/x", 3, 0, False]], "left": [], "last": False}
    for said in ({**again, "files": []}, again):
        result = Fetched("r-1", "to")
        search = Search(["h"], wish, result)
        (request,) = search.find("h", 10**9)
        answers = 0
        with pytest.raises(Dishonest, match="it goes on to answer, and has named nothing new 1,001 times"):
            while answers <= MOST_IDLE + 1:
                answers += 1
                fields = {**said, "there": [f"name{answers}-{n}" for n in range(20)]}
                assert not request.take(Message("found", fields))
        assert result.there == []


def test_what_was_written_is_a_sentence() -> None:
    file = FoundFile(3 * 2**20, 0, False)
    one = {"gpu01": {"model.keras": file}}
    assert written("r-1", one, whole=True) == (
        "the tasks wrote model.keras on gpu01 (1 file, 3.0 MiB); to copy it here: tflaunch fetch r-1"
    )
    two = {f"gpu0{n}": dict.fromkeys(("tb/a", "tb/b/c", "m.h5"), file) for n in (1, 2)}
    assert written("r-1", two, whole=True) == (
        "the tasks wrote m.h5 and tb/ on gpu[01-02] (6 files, 18 MiB); to copy them here: tflaunch fetch r-1"
    )
    assert written("r-1", one, whole=True, lasting=False) == (
        "the tasks wrote model.keras on gpu01 (1 file, 3.0 MiB), and the end of the slots removes it; "
        "to copy it here next time: --fetch='**'"
    )
    many = {"gpu01": {f"{name}/x": file for name in ("a\n", "b" * 50, *"cdef")}}
    assert f"wrote a\\n/, {'b' * 40}…, c/, d/ and 2 more on gpu01 (at least 6 files" in written(
        "r-1", many, whole=False
    )


def test_all_that_there_is_may_be_nothing() -> None:
    wish = Wish(tuple(map(Pattern.parse, ("**", "*.h5"))))
    assert Search(["h"], wish, Fetched("r-1", "to")).unmatched() == ["*.h5"]
    said = "the tasks have written no files in their working directories"
    lines = [line.plain for line in fetched_lines(Fetched("r-1", "to"), ASCII)]
    assert lines == [f"ok nothing was fetched: {said}"]
    lines = [line.plain for line in fetched_lines(Fetched("r-1", "to", unmatched=["*.h5"]), ASCII)]
    assert lines[0] == f"! nothing matches *.h5; {said}"
    lines = [line.plain for line in fetched_lines(Fetched("r-1", "to", left={"h:x": "a pipe"}), ASCII)]
    assert lines == ["  left out: h:x: a pipe", "ok nothing was fetched: nothing else is there to fetch"]


# ---- the directory here


def test_nothing_is_written_outside_of_the_directory(tmp_path: Path) -> None:
    destination = Destination(tmp_path / "to")
    (tmp_path / "to").mkdir()
    (tmp_path / "to/link").symlink_to(tmp_path)
    (tmp_path / "to/file").write_text("")
    (tmp_path / "to/pipe").mkdir()
    for path in ("../x", "a/../../x", "/x", "a//x", "./x", "x\0y", "", "link/x", "file/x"):
        with pytest.raises(Refused), destination.beside(path):
            pass
    with destination.beside("deep/x") as (directory, name):
        assert present(directory, name) is None
    for name in ("link", "pipe"):
        with destination.beside(name) as (directory, last), pytest.raises(Refused):
            present(directory, last)
    (tmp_path / "no").write_text("")
    with pytest.raises(FetchError), Destination(tmp_path / "no").beside("x"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["no", "to"]


def test_a_file_system_without_locks_takes_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    without = SimpleNamespace(**{**vars(fcntl), "flock": flock})
    monkeypatch.setattr("tflaunch.runs.fetch_part.fcntl", without)
    with Destination(tmp_path).beside("x") as (directory, name):
        part = FilePart(directory, name, "host:x", "3 bytes")
        part.write(0, b"new")
        assert part.finish(5, False, overwrite=True)
        part.close()
    assert files(tmp_path) == {"x"}


def test_a_part_is_one_process_s_and_one_content_s(tmp_path: Path) -> None:
    with Destination(tmp_path).beside("x") as (directory, name):
        part = FilePart(directory, name, "host:x", "10 bytes")
        part.write(0, b"12345")
        with pytest.raises(Refused, match="another tflaunch"):
            FilePart(directory, name, "host:x", "10 bytes")
        part.close()
        part = FilePart(directory, name, "host:x", "10 bytes")
        assert part.have == 5
        (tmp_path / "x").write_text("mine")  # meanwhile
        assert not part.finish(0, False, overwrite=False)
        part.close()
        assert files(tmp_path) == {"x"}
        FilePart(directory, name, "host:x", "old").write(0, b"old")
        part = FilePart(directory, name, "host:x", "new")
        assert part.have == 0
        part.write(0, b"new")
        assert part.finish(5, False, overwrite=True)
        part.close()
    assert files(tmp_path) == {"x"}
    assert ((tmp_path / "x").read_text(), (tmp_path / "x").stat().st_mtime_ns) == ("new", 5)
