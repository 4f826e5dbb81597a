"""Where reading a task's log begins: the last lines of it, or what was written since."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.tasks import logs
from tflaunch.agent.tasks.logs import TAIL_BYTES, TaskLogs, start


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "run" / "h1" / "logs").mkdir(parents=True)
    return RunDirectory(str(tmp_path), "run", "h1")


def written(directory: RunDirectory, *attempts: bytes | None) -> TaskLogs:
    """The logs of a task whose attempts have written that; None: that one has no log."""
    for number, data in enumerate(attempts):
        if data is not None:
            Path(directory.log_path("worker/3", number)).write_bytes(data)
    return TaskLogs(directory, "worker/3").find()


HUGE = b"x" * 200_000


@pytest.mark.parametrize(
    ("log", "count", "tail"),
    [
        (b"", 3, b""),
        (b"\n", 1, b"\n"),
        (b"\n\n", 1, b"\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc", 1, b"c"),
        (b"a\nb\n", 2, b"a\nb\n"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"no newline", 1, b"no newline"),
        (b"a\nb\n", 0, b""),
        (HUGE + b"\n" + HUGE, 1, HUGE),
        (b"a\n" + HUGE + b"\n", 1, HUGE + b"\n"),
        (b"a\n" + HUGE + b"\nb\n", 2, HUGE + b"\nb\n"),
        (HUGE, 5, HUGE),
        (b"line\n" * 100_000, 30_000, b"line\n" * 30_000),
    ],
)
def test_the_last_lines(directory: RunDirectory, log: bytes, count: int, tail: bytes) -> None:
    task = written(directory, log)
    attempt, offset = task.last_lines(count)
    assert attempt == 0
    assert log[offset:] == tail
    assert start(task, {"tail": count}) == [0, offset]


def test_the_last_lines_are_those_of_the_last_attempt(directory: RunDirectory) -> None:
    task = written(directory, b"old\n" * 9, b"new\n")
    assert task.last_lines(5) == (1, 0)


def test_a_task_that_has_written_nothing_yet(directory: RunDirectory) -> None:
    task = written(directory)
    assert task.last_lines(5) == (0, 0)
    assert task.since(0.0) == (0, 0)
    assert (task.size(0), task.read(0, 0, 10), task.tail(0)) == (0, b"", b"")
    assert start(task, {}) == [0, 0]


def test_attempts_need_not_be_in_a_row(directory: RunDirectory) -> None:
    Path(directory.log_path("worker/31")).touch()  # another task, whose name begins alike
    task = written(directory, b"first", None, None, b"last")
    assert task.attempt == 3
    assert task.tail(3) == b"last"


def test_a_tail_is_no_longer_than_it_may_be(directory: RunDirectory) -> None:
    task = written(directory, b"a" + b"x" * TAIL_BYTES)
    assert task.tail(0) == b"x" * TAIL_BYTES


class Clock:
    """The time of day for `logs`; `at` is what it shows."""

    def __init__(self) -> None:
        self.at = 0.0

    def time(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    return clock


def test_since_is_never_late(directory: RunDirectory, clock: Clock) -> None:
    task = written(directory, b"")
    times = {}  # of every byte: when it was written
    path = Path(directory.log_path("worker/3", 0))
    for tenth in range(400):
        clock.at = 1000.0 + tenth / 10
        with path.open("ab") as log:
            log.write(b"\n")
        times[tenth] = clock.at
        task.note_time(clock.at)
    clock.at = 1050.0
    task.note_time(clock.at)
    for when in (0.0, 999.0, 1000.0, 1005.05, 1010.9, 1020.3, 1039.9, 2000.0):
        attempt, offset = task.since(when)
        assert attempt == 0
        wanted = [number for number, at in times.items() if at > when]
        missed = [number for number in wanted if number < offset]
        assert not missed, f"since {when} begins {len(missed)} bytes late"
        early = [number for number, at in times.items() if number >= offset and at <= when - 2 * logs.CLOCK_S]
        assert not early
    assert start(task, {"since": 1020.0, "tail": 3}) == [0, 397]  # whichever is less
    assert start(task, {"since": 1039.0, "tail": 1000}) == [*task.since(1039.0)]


def test_since_knows_attempts(directory: RunDirectory, clock: Clock) -> None:
    task = written(directory, b"old", b"new")
    task.attempt = 0
    clock.at = 100.0
    task.note_time(100.0)
    task.attempt = 1
    clock.at = 200.0
    task.note_time(200.0)
    assert [task.since(when) for when in (99.0, 100.0, 199.0, 200.0)] == [(0, 0), (0, 3), (0, 3), (1, 3)]


def test_a_clock_file_that_is_torn_only_makes_it_earlier(directory: RunDirectory) -> None:
    task = written(directory, b"x" * 100)
    Path(directory.log_path("worker/3", 0) + ".times").write_text("100.000 0 10\n200.000 0 2\n300.0")
    assert task.since(1000.0) == (0, 2)
    Path(directory.log_path("worker/3", 0) + ".times").write_bytes(b"\xff\xfe\n")
    assert task.since(1000.0) == (0, 0)
