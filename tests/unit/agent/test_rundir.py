"""The run directory on a disk that is full, or turns read-only: files change as a whole, or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agent.files import reserve as kept
from tflaunch.agent.files import rundir
from tflaunch.agent.files.rundir import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(str(tmp_path / "parent"), "run-1", "gpu01")
    made.create()
    return made


def refusing(times: int, number: int) -> Callable[..., Any]:
    """`os.rename`, which the system refuses so often."""
    left = [times]
    rename = os.rename

    def refused(*names: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number), names[0])
        rename(*names)

    return refused


def in_a_child(work: Callable[[], None]) -> int:
    """The exit code of a child that does `work`."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_full_disk_costs_pieces_of_the_reserve_and_is_noted(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Path(directory.path, kept.NAME)
    assert reserve.stat().st_size == kept.BYTES
    monkeypatch.setattr(rundir.os, "rename", refusing(2, errno.ENOSPC))
    directory.write("plan.json", {"a": 1})
    assert directory.read("plan.json") == {"a": 1}
    assert reserve.stat().st_size == kept.BYTES - 2 * kept.PIECE
    assert directory.trouble is not None
    assert "No space left on device" in directory.trouble.reason
    assert "make room there" in directory.trouble.hint
    assert not directory.lasting
    assert directory.has_room()
    assert directory.trouble is None
    assert reserve.stat().st_size == kept.BYTES


def test_a_disk_with_room_for_the_reserve_alone_is_still_full(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Path(directory.path, kept.NAME)
    monkeypatch.setattr(rundir.os, "rename", refusing(1, errno.ENOSPC))
    directory.write("plan.json", {"a": 1})

    def child() -> None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (kept.BYTES, kept.BYTES))
        os._exit(7 if not directory.has_room() and directory.trouble else 0)

    assert in_a_child(child) == 7
    assert reserve.stat().st_size == kept.BYTES - kept.PIECE


def test_when_the_reserve_is_used_up_the_error_is_raised(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir.os, "rename", refusing(99, errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        directory.write("plan.json", {"a": 1})
    assert directory.lasting
    assert not Path(directory.path, kept.NAME).exists()
    assert not list(Path(directory.path).glob("plan.json*"))


def test_a_read_only_disk_is_noted_and_costs_no_reserve(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir.os, "rename", refusing(99, errno.EROFS))
    with pytest.raises(OSError, match="Read-only"):
        directory.write("plan.json", {"a": 1})
    assert Path(directory.path, kept.NAME).stat().st_size == kept.BYTES
    assert directory.trouble is not None
    assert directory.lasting


def test_when_no_agent_is_left_there_is_no_socket_and_no_reserve(directory: RunDirectory) -> None:
    directory.listen().close()
    directory.close()
    left = {path.name for path in Path(directory.path).iterdir()}
    assert left == {"agent.json", "guard.json", "logs", "work"}
    directory.close()  # whoever comes later may do it again


def test_the_socket_and_the_reserve_of_the_next_agent_stay(directory: RunDirectory) -> None:
    def here() -> set[str]:
        return {path.name for path in Path(directory.path).iterdir()} & {"agent.sock", kept.NAME}

    following = RunDirectory(directory.parent, directory.run, directory.host)
    listeners = [directory.listen(), following.listen()]
    directory.close()  # the agent before, which has ended
    RunDirectory(directory.parent, directory.run, directory.host).close()  # its guard
    assert here() == {"agent.sock", kept.NAME}
    following.close()
    assert here() == set()
    for each in listeners:
        each.close()


def test_what_is_appended_on_a_full_disk_leaves_no_half_of_a_line(tmp_path: Path) -> None:
    directory = RunDirectory(str(tmp_path), "run-1", "gpu01")
    Path(directory.path).mkdir(parents=True)
    directory.append("events.jsonl", {"n": 1})
    limit = Path(directory.path, "events.jsonl").stat().st_size + 4

    def child() -> None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            directory.append("events.jsonl", {"n": 2})
        except OSError:
            os._exit(7)
        os._exit(0)

    assert in_a_child(child) == 7
    lines = Path(directory.path, "events.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"n": 1}]
