"""Lines of logs as a watcher sees them."""

from __future__ import annotations

import fcntl
import itertools
import os
import select
import threading
from typing import Any

import pytest

from tests.support.screen import PS0, W0, W1, shown
from tflaunch.console.opening import open_reporter
from tflaunch.documents.reporter import Reporter
from tflaunch.documents.writer import Stream
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId


def test_each_line_has_its_task_before_it_in_a_column() -> None:
    def act(reporter: Reporter) -> None:
        reporter.started(TaskStarted(W0, "gpu01"))
        reporter.started(TaskStarted(PS0, "gpu2"))
        reporter.log(PS0, "gpu2", 0, b"one\ntwo\n")
        reporter.log(W0, "gpu01", 0, b"three\nfo")
        reporter.log(PS0, "gpu2", 8, b"five\n")
        reporter.log(W0, "gpu01", 8, b"ur\n")

    plain, err = shown(act)
    assert plain == "ps/0     │ one\nps/0     │ two\nworker/0 │ three\nps/0     │ five\nworker/0 │ four\n"
    assert err == ""
    with_host, _ = shown(act, show_host=True)
    assert with_host.splitlines()[0] == "ps/0     gpu2  │ one"
    assert with_host.splitlines()[2] == "worker/0 gpu01 │ three"


def test_a_last_line_without_newline_is_shown_when_its_task_ends() -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W0, "a", 0, b"Killed")
        reporter.log_end(W0)
        reporter.log_end(W0)

    assert shown(act)[0] == "worker/0 │ Killed\n"


def test_bytes_that_come_twice_are_shown_once_and_a_gap_is_named() -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W0, "a", 100, b"one\ntwo\n")  # the first may begin anywhere
        reporter.log(W0, "a", 104, b"two\nthree\n")
        reporter.log(W0, "a", 2114, b"four\n")

    assert shown(act)[0].splitlines() == [
        "worker/0 │ one",
        "worker/0 │ two",
        "worker/0 │ three",
        "worker/0 │ … 2,000 bytes are missing here …",
        "worker/0 │ four",
    ]


@pytest.mark.parametrize("options", [{}, {"quiet": True}, {"only": {W1}}, {"json": True}])
def test_every_byte_is_given_back_whether_shown_or_not(options: dict[str, Any]) -> None:
    returned: list[int] = []
    threads: set[str] = set()

    def written(count: int) -> None:
        returned.append(count)
        threads.add(threading.current_thread().name)

    def act(reporter: Reporter) -> None:
        for number in range(50):
            reporter.log(W0, "a", number * 5, b"line\n", written)
            reporter.log(W1, "b", number * 5, b"Line\n", written)

    out, _ = shown(act, **options)
    assert sum(returned) == 500
    assert threads == {"tflaunch-writer"}
    assert ("worker/0" in out) == (not options or "json" in options)
    assert ("worker/1" in out) == (not options.get("quiet", False))


def test_eighty_thousand_lines_of_eight_tasks_all_arrive_whole() -> None:
    tasks = [TaskId("worker", index) for index in range(8)]

    def act(reporter: Reporter) -> None:
        at = 0
        for first in range(0, 10_000, 100):
            data = b"".join(b"line %05d of this task\n" % number for number in range(first, first + 100))
            for task in tasks:
                reporter.log(task, "a", at, data[:777])
            for task in tasks:
                reporter.log(task, "a", at + 777, data[777:])
            at += len(data)

    lines = shown(act)[0].splitlines()
    assert len(lines) == 80_000
    for task in tasks:
        own = [line for line in lines if line.startswith(f"{task} │ ")]
        assert own == [f"{task} │ line {number:05} of this task" for number in range(10_000)]


def test_an_empty_pipe_is_filled_at_once_and_a_slow_reader_gets_every_line_once() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)  # what would wait for the reader is cut short, and so is a line
    room = fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ)
    data = b"".join(b"%05d %s\n" % (number, b"x" * (number % 90)) for number in range(room // 10))
    read, written = b"", 0
    with os.fdopen(theirs, "w") as out:
        stream = Stream(out)
        for size in itertools.cycle([5003, 5003, 5003, room]):  # the last one mostly empties it
            while written < len(data) and stream.ready():
                start, empty = written, len(read) == written
                written = stream.write_some(data, start)
                assert data[written - 1 : written] == b"\n"
                assert written - start <= (room if empty else select.PIPE_BUF)
                assert not empty or written - start > room - 100 or written == len(data)
            read += os.read(ours, size)
            if len(read) == len(data):
                break
    os.close(ours)
    assert read == data


def test_ten_thousand_states_of_a_progress_bar_are_a_handful_of_lines() -> None:
    def act(reporter: Reporter) -> None:
        at = 0
        for step in range(10_000):
            data = f"\r{step / 100:6.2f}%".encode()
            reporter.log(W0, "a", at, data)
            at += len(data)
        reporter.log(W0, "a", at, b"\n")

    lines = shown(act)[0].splitlines()
    assert lines[-1] == "worker/0 │  99.99%"
    assert len(lines) < 100


def test_a_progress_bar_is_shown_while_it_moves() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "w", encoding="utf-8") as out:
        reporter = open_reporter(stdout=out, stderr=out)
        reporter.log(W0, "a", 0, b"\rstep 7 of 9")
        assert os.read(ours, 100).decode() == "worker/0 │ step 7 of 9\n"  # without its newline
        reporter.close()
    os.close(ours)
