"""How a task ended is told behind all that it has printed, and the report names the error that ended it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.screen import on_terminal, piped, plain, shown
from tflaunch.documents import log_keeping
from tflaunch.documents.reporter import Reporter
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome, TaskExit

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
TRACEBACK = b"Traceback (most recent call last):\n  File 'a.py'\nValueError: no end"
FAILED = TaskExit(W1, "gpu02", 1, None, 1.1, TRACEBACK, log_bytes=len(TRACEBACK))
VERDICT = "✗ worker/1 on gpu02 exited with code 1 after 1.1 s"


# ---- in its turn: on one terminal, where both streams are in order


def test_an_end_is_told_behind_the_output_that_comes_later_and_others_go_on_meanwhile() -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W1, "gpu02", 0, TRACEBACK[:40])
        reporter.exited(FAILED)
        reporter.note("stopping the 1 task left")
        reporter.log(W0, "gpu01", 0, b"goes on\n")
        reporter.exited(TaskExit(W0, "gpu01", 2, None, 1.2, b"goes on\n", log_bytes=8))
        reporter.log(W1, "gpu02", 40, TRACEBACK[40:])

    assert plain(on_terminal(act)) == [
        "worker/1 │ Traceback (most recent call last):",
        "worker/0 │ goes on",
        "worker/1 │   File 'a.py'",
        "worker/1 │ ValueError: no end",  # though it has no newline
        VERDICT,
        "  stopping the 1 task left",
    ]


def test_what_a_task_has_left_behind_may_print_after_its_end() -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W1, "gpu02", 0, TRACEBACK)
        reporter.exited(FAILED)
        reporter.log(W1, "gpu02", len(TRACEBACK), b"a child\n")

    assert plain(on_terminal(act))[-3:] == ["worker/1 │ ValueError: no end", VERDICT, "worker/1 │ a child"]


def test_an_end_waits_for_the_output_of_its_own_attempt() -> None:
    again = TaskExit(W1, "gpu02", 0, None, 2.0, attempt=1, log_bytes=5)

    def act(reporter: Reporter) -> None:
        reporter.exited(FAILED)
        reporter.exited(again)
        reporter.log(W1, "gpu02", 0, TRACEBACK)
        reporter.log(W1, "gpu02", 0, b"fine\n", attempt=1)

    assert plain(on_terminal(act))[2:] == [
        "worker/1 │ ValueError: no end",
        VERDICT,
        "worker/1 │ fine",
        "✓ worker/1 on gpu02 finished after 2.0 s",
    ]


LATE = VERDICT + f"; {len(TRACEBACK) - 40} bytes of its output are still to come"


@pytest.mark.parametrize(
    "end",
    [
        lambda reporter: reporter.log_end(W1),
        lambda reporter: reporter.report(Outcome("r-1", "failed", 1, 2.0, {W1: FAILED}, FAILED)),
        lambda _: None,
    ],
    ids=["no more comes", "the report", "the end"],
)
def test_what_does_not_come_is_not_waited_for_at_the_end(end: Callable[[Reporter], None]) -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W1, "gpu02", 0, TRACEBACK[:40])
        reporter.exited(FAILED)
        end(reporter)

    assert LATE in plain(on_terminal(act))


def test_an_end_whose_output_does_not_come_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_keeping, "_HELD_S", (0.05, 15.0))
    told: list[int] = []
    with piped() as (reporter, finish):
        reporter.log(W1, "gpu02", 0, TRACEBACK[:40])
        reporter.exited(FAILED)
        reporter._in_turn(lambda: told.append(1))  # type: ignore[attr-defined]
        while not told:
            time.sleep(0.01)
        assert LATE in finish()[1].splitlines()


def test_an_output_that_never_ends_does_not_hold_an_end_back_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_keeping, "_HELD_S", (60.0, 0.3))
    endless = TaskExit(W1, "gpu02", 1, None, 1.1, log_bytes=10**15)
    told: list[int] = []
    with piped() as (reporter, finish):
        reporter.exited(endless)
        reporter._in_turn(lambda: told.append(1))  # type: ignore[attr-defined]
        offset = 0
        while not told:
            reporter.log(W1, "gpu02", offset, b"more\n")
            offset += 5
        assert "bytes of its output are still to come" in finish()[1]


@pytest.mark.parametrize("options", [{"quiet": True}, {"only": {W0}}])
def test_nobody_waits_for_an_output_that_is_not_shown(options: dict[str, Any]) -> None:
    err = shown(lambda reporter: reporter.exited(FAILED), **options)[1]
    assert err == VERDICT + "\n"


def test_programs_get_the_end_behind_the_output_and_hear_what_is_missing() -> None:
    def act(reporter: Reporter) -> None:
        reporter.exited(FAILED)
        reporter.warn("at once")
        reporter.note("in turn")
        reporter.log(W1, "gpu02", 0, TRACEBACK)
        reporter.log_end(W1)
        reporter.exited(TaskExit(W0, "gpu01", 2, None, 1.2, log_bytes=9))

    events = [json.loads(line) for line in shown(act, json=True)[0].splitlines()]
    assert [each["event"] for each in events] == [
        "warn", "log", "log", "log", "exited", "note", "log_end", "exited",
    ]  # fmt: skip
    assert [each["missing"] for each in events if each["event"] == "exited"] == [0, 9]
