"""A log that its disk does not give: what can be read is read, and neither viewers nor the agent's clock end by it."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path

import pytest

from tflaunch.agent.host.journal import Journal
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.net.channel import Caller
from tflaunch.agent.tasks.logs import TaskLogs
from tflaunch.agent.viewer import Viewers
from tflaunch.protocol import wire
from tflaunch.protocol.selector import Selector


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run" / "h1" / "logs").mkdir(parents=True)
    return RunDirectory(str(tmp_path), "run", "h1")


def pumped(directory: RunDirectory, *logs: TaskLogs) -> dict[str, bytes]:
    """What a viewer of these logs gets in one turn of the agent, by task."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        viewers = Viewers(directory, Selector(), lambda *_: None, lambda *_: None)
        viewer = viewers.attach(Caller(theirs))
        viewer.watch(wire.Message("watch", {"client": "v", "after": 0, "logs": {}, "window": 1 << 20}, b""))
        viewers.pump(Journal(directory), {each.task: each for each in logs})
        came = wire.Decoder().feed(ours.recv(1 << 20))
        viewers.detach(viewer)
        viewers._listener.close()
    return {each["task"]: each.body for each in came if each.type == "log" and each.body}


def test_viewers_get_the_other_logs(directory: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = TaskLogs(directory, "worker/0"), TaskLogs(directory, "worker/1")
    Path(directory.log_path("worker/0")).mkdir()  # it can be opened, and not read
    Path(directory.log_path("worker/1")).write_bytes(b"epoch 1\n")
    assert pumped(directory, bad, good) == {"worker/1": b"epoch 1\n"}
    bad.note_time(time.monotonic())
    assert (bad.size(0), bad.tail(0)) == (0, b"")
    assert capsys.readouterr().err.count("worker-0.log: ") == 1, "said once"


@pytest.mark.parametrize("call", ["fstat", "pread"])
def test_once_it_can_be_read_again_nothing_of_it_is_missing(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    task, path = TaskLogs(directory, "worker/0"), Path(directory.log_path("worker/0"))
    path.write_bytes(b"before\n")
    assert task.tail(0) == b"before\n"
    with path.open("ab") as log:
        log.write(b"after\n")

    def fails(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        assert task.size(0) == len(b"before\n")
        assert task.read(0, 0, 100) == (b"before\n" if call == "fstat" else b"")
        assert task.written_at() > 0
    assert task.tail(0) == b"before\nafter\n"
    assert task.begins(0) == (0, 0.0), "it was not truncated"
