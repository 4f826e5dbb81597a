"""Tasks that truncate their own logs: what they write afterwards is seen all the same, and that is said once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.tasks.logs import MARK_BYTES, TaskLogs, start


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run" / "h1" / "logs").mkdir(parents=True)
    return RunDirectory(str(tmp_path), "run", "h1")


@pytest.fixture
def log(directory: RunDirectory) -> Path:
    """The log of worker/3; 100 bytes stand in it."""
    path = Path(directory.log_path("worker/3"))
    path.write_bytes(b"old line\n" * 11 + b"\n")
    return path


@pytest.fixture
def seen(directory: RunDirectory, log: Path) -> TaskLogs:
    """As the agent has it, which has seen those bytes."""
    logs = TaskLogs(directory, "worker/3")
    assert (logs.size(0), logs.begins(0)) == (100, (0, 0.0))
    return logs


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_offsets_go_on_behind_what_was_truncated(seen: TaskLogs, log: Path) -> None:
    os.truncate(log, 0)
    assert seen.size(0) == 100
    begins, when = seen.begins(0)
    assert (begins, when > 0) == (100, True)
    append(log, b"new\n")
    assert seen.size(0) == 104
    assert seen.read(0, 0, 1000) == b""
    assert seen.read(0, 100, 1000) == b"new\n"
    assert seen.tail(0) == b"new\n"
    assert seen.last_lines(5) == (0, 100)
    assert start(seen, {"tail": 1}) == [0, 100]
    os.truncate(log, 0)
    append(log, b"x\n")
    assert seen.read(0, 104, 1000) == b"x\n"
    assert seen.begins(0)[0] == 104


def test_one_that_has_grown_beyond_its_old_size_is_known_by_what_stood_there(
    seen: TaskLogs, log: Path
) -> None:
    os.truncate(log, 0)
    append(log, b"new line\n" * 50)  # before anybody looked
    assert seen.size(0) == 100 + 450
    assert seen.read(0, 100, 1000) == b"new line\n" * 50


def test_one_that_has_come_to_its_old_size_is_known_too(seen: TaskLogs, log: Path) -> None:
    os.truncate(log, 0)
    append(log, b"new line\n" * 11 + b"\n")
    assert seen.size(0) == 200
    assert seen.read(0, 100, 1000) == b"new line\n" * 11 + b"\n"


def test_one_that_is_only_written_on_is_not_taken_for_truncated(seen: TaskLogs, log: Path) -> None:
    for size in (1, MARK_BYTES - 1, MARK_BYTES, 100_000):
        append(log, b"\0" * size)
        assert seen.begins(0) == (0, 0.0)
    assert seen.size(0) == log.stat().st_size


def test_a_hole_before_what_is_new_is_left_out(seen: TaskLogs, log: Path) -> None:
    """Who opened its log anew, without appending, writes on where it was when somebody truncates it."""
    with log.open("r+b", buffering=0) as file:
        file.seek(1 << 20)
        file.write(b"x")
        assert seen.size(0) == (1 << 20) + 1
        os.truncate(log, 0)
        assert seen.size(0) == (1 << 20) + 1
        file.write(b"new\n")
    end = seen.size(0)
    new = seen.read(0, seen.begins(0)[0], 1 << 20)
    assert new.endswith(b"new\n")
    assert len(new) <= 4096, "at most what the file system keeps at once"
    assert end == seen.begins(0)[0] + len(new)


def test_one_that_comes_later_goes_on_by_the_same_offsets(
    directory: RunDirectory, seen: TaskLogs, log: Path
) -> None:
    os.truncate(log, 0)
    append(log, b"new\n")
    assert seen.size(0) == 104
    later = TaskLogs(directory, "worker/3").find()
    assert later.size(0) == 104
    assert later.read(0, 100, 1000) == b"new\n"
    assert later.begins(0)[0] == 100
    assert later.begins(0)[1] == pytest.approx(seen.begins(0)[1], abs=0.001)


def test_what_an_older_agent_has_noted_is_understood(directory: RunDirectory, log: Path) -> None:
    Path(f"{log}.times").write_text("100.0 0 9\n200.0 0 18\n")
    assert TaskLogs(directory, "worker/3").find().since(150.0) == (0, 9)


def test_a_log_that_is_truncated_after_its_task_has_ended(seen: TaskLogs, log: Path) -> None:
    seen.end()
    os.truncate(log, 0)
    assert seen.size(0) == 100
    assert seen.read(0, 0, 10) == b""
    assert seen.begins(0)[0] == 100
    assert seen.read(0, 100, 10) == b""
