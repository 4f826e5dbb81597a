"""Signs in a log, read from look to look."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.tasks.log_signs import LINE_CHARACTERS, LINES_CHARACTERS, READ_BYTES, LogSigns, shorten
from tflaunch.agent.tasks.logs import TaskLogs

STILL = b"master.cc:278] CreateSession still waiting for response from worker: /job:ps/replica:0/task:%d\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "run" / "h1" / "logs").mkdir(parents=True)
    return Path(RunDirectory(str(tmp_path), "run", "h1").log_path("worker/0", 0))


def signs_of(log: Path) -> LogSigns:
    return LogSigns(TaskLogs(RunDirectory(str(log.parents[3]), "run", "h1"), "worker/0"), 0)


def add(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def read(signs: LogSigns, sign: str) -> tuple[int, str]:
    signs.read()
    count, line, age = signs.report(0.0).get(sign, [0, "", 0.0])
    assert age >= 0
    return count, line


def test_each_line_counts_once_however_often_it_is_looked_at(log: Path) -> None:
    signs = signs_of(log)
    assert read(signs, "still_waiting") == (0, "")  # there is no log yet
    add(log, b"hello\n" + STILL % 0 + STILL % 1)
    assert read(signs, "still_waiting") == (2, (STILL % 1).decode().strip())
    assert read(signs, "still_waiting")[0] == 2
    add(log, (STILL % 2)[:30])  # half of a line
    assert read(signs, "still_waiting")[0] == 2
    add(log, (STILL % 2)[30:])
    assert read(signs, "still_waiting") == (3, (STILL % 2).decode().strip())


def test_a_log_that_was_truncated_is_read_from_its_new_beginning(log: Path) -> None:
    signs = signs_of(log)
    add(log, STILL % 0 * 20)
    assert read(signs, "still_waiting")[0] == 20
    log.write_bytes(STILL % 3)
    assert read(signs, "still_waiting") == (21, (STILL % 3).decode().strip())
    log.write_bytes(b"")
    assert read(signs, "still_waiting")[0] == 21


def test_of_a_flood_the_newest_part_counts(log: Path) -> None:
    signs = signs_of(log)
    add(log, STILL % 0 + b"x" * 99 + b"\n" + b"step 7\n" * READ_BYTES + b"loss: nan\n")
    assert read(signs, "nan") == (1, "loss: nan")
    assert read(signs, "still_waiting")[0] == 0
    add(log, b"x" * 3 * READ_BYTES)  # a line without end
    signs.read()
    add(log, b"\nloss: nan\n")
    assert read(signs, "nan")[0] == 2


def test_a_progress_bar_is_many_lines(log: Path) -> None:
    signs = signs_of(log)
    add(log, b"\r 1/9 - loss: 0.3\r 2/9 - loss: nan\r 3/9 - loss: nan\r")
    assert read(signs, "nan") == (2, "3/9 - loss: nan")
    add(log, b"4/9 - loss: nan" + b"\b" * 15 + b"5/9 - loss: nan\n")
    assert read(signs, "nan") == (4, "5/9 - loss: nan")


def test_a_sign_is_as_old_as_the_silence_after_it(log: Path) -> None:
    signs = signs_of(log)
    add(log, b"loss: nan\n")
    signs.read()
    assert signs.report(70.0)["nan"][2] >= 70.0


def test_lines_are_cut_and_all_of_them_fit_into_a_message(log: Path) -> None:
    signs = signs_of(log)
    add(log, b"loss: nan \xff" + b"\xff" * 1000 + b"\n")
    signs.read()
    assert len(signs.report(0.0)["nan"][1]) == LINE_CHARACTERS
    reports = [signs.report(0.0) for _ in range(1000)]
    shorten(reports)
    assert sum(len(report["nan"][1]) for report in reports) <= LINES_CHARACTERS
