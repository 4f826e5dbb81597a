"""Equal lines of several tasks: the first is shown at once, the others are counted; a pipe gets every line."""

from __future__ import annotations

import os

from tests.support.screen import PS0, W0, W1, Reader, on_terminal, plain, shown, terminal
from tflaunch.console.alike import ALIKE_S, Alike
from tflaunch.console.opening import open_reporter
from tflaunch.documents.reporter import Reporter
from tflaunch.protocol.job import TaskId

W2, W3 = TaskId("worker", 2), TaskId("worker", 3)


def test_the_first_is_shown_and_the_others_are_told_once_the_time_is_over() -> None:
    alike = Alike("…")
    assert alike.rest(W0, "a\nb\n", 10.0) == "a\nb\n"
    assert alike.wait_s(10.0) is None
    assert alike.rest(W1, "a\nb\n", 11.0) == ""
    assert alike.rest(PS0, "a\nb\nc\n", 11.5) == "c\n"
    assert alike.wait_s(11.5) == 0.5
    assert alike.told(11.9) == []
    assert alike.told(12.0) == ["(worker/1 ps/0 wrote the same 2 lines as worker/0, from this one on: a)"]
    assert alike.told(99.0) == []
    assert alike.rest(W1, "a\n", 12.1) == "a\n", "it is told: this is another one"


def test_tracebacks_stay_whole() -> None:
    def traceback(index: int) -> str:
        return (
            "Traceback (most recent call last):\n"
            f'  File "t.py", line {index}, in <module>\n    main()\n'
            "ValueError: shapes\n\n"
            "During handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n"
            '  File "t.py", line 9, in <module>\n'
            f"IndexError: {index}\n"
        )

    alike = Alike("…")
    assert alike.rest(W0, "begin\n" + traceback(1) + "end\n", 0.0) == "begin\n" + traceback(1) + "end\n"
    lines = ("begin\n" + traceback(2) + "end\n").splitlines(keepends=True)
    assert "".join(alike.rest(W1, line, 0.0) for line in lines) == traceback(2)
    assert alike.rest(W2, traceback(1), 0.0) == traceback(1)
    assert alike.told(ALIKE_S) == [
        "(+1 alike: worker/1: begin)",
        "(+1 alike: worker/1: end)",
    ]


def test_what_stands_right_above_is_not_quoted() -> None:
    alike = Alike("…")
    alike.rest(W0, "a\n\nb\n", 0.0)
    assert alike.rest(W2, "a\n\nb\n", 0.0) == alike.rest(W1, "a\n\nb\n", 0.0) == ""
    assert alike.told(ALIKE_S) == ["(the 2 lines above: +2 alike: worker/1-2)"]
    alike.rest(W0, "x" * 50 + "\n", 3.0)
    alike.rest(W1, "x" * 50 + "\n", 3.0)
    assert alike.told(3.0, over=True) == ["(+1 alike: worker/1)"]
    alike.rest(W0, "x" * 50 + "\n", 4.0)
    alike.printed(1)
    alike.rest(W1, "x" * 50 + "\n", 4.0)
    assert alike.told(4.0, over=True) == [f"(+1 alike: worker/1: {'x' * 40}…)"]


def test_when_every_task_of_the_job_has_written_it_it_is_told_sooner() -> None:
    alike = Alike("…")
    alike.expect({"worker": 3, "ps": 1})
    alike.rest(W0, "a\n", 0.0)
    alike.rest(W1, "a\n", 0.1)
    assert alike.told(0.5) == []
    alike.rest(W2, "a\n", 0.6)
    assert alike.wait_s(0.6) is not None
    assert alike.told(0.7) == [], "what follows it may come as well"
    assert alike.told(0.9) == ["(+2 alike: worker/1-2)"]


def test_the_others_are_named_in_short() -> None:
    alike = Alike("…")
    for task in (W0, PS0, TaskId("worker", 9), W3, W2, TaskId("worker", 4), TaskId("data", 1)):
        alike.rest(task, "a\n", 0.0)
    assert alike.told(0.0, over=True) == ["(+6 alike: worker/2-4,9 data/1 ps/0)"]


def test_a_task_that_repeats_itself_is_shown_and_so_is_what_comes_late() -> None:
    alike = Alike("…")
    assert alike.rest(W0, ".\n.\n", 0.0) == ".\n.\n"
    assert alike.rest(W1, ".\n", 1.0) == ""
    assert alike.rest(W1, ".\n", 1.0) == ".\n"
    assert alike.rest(W2, "late\n", 1.0) == "late\n"
    assert alike.rest(W3, "late\n", 1.0 + ALIKE_S) == "late\n"
    assert alike.told(9.0) == ["(+1 alike: worker/1: .)"]


def test_before_the_end_of_a_task_is_shown_what_it_wrote_is_told() -> None:
    alike = Alike("…")
    alike.rest(W0, "a\nb\n", 0.0)
    alike.rest(W1, "a\n", 0.0)
    alike.rest(W2, "b\n", 0.0)
    assert alike.told(0.0, of=W2) == ["(+1 alike: worker/2)"]
    assert alike.told(0.0, of=W0) == []
    assert alike.told(0.0, of=W1) == ["(+1 alike: worker/1: a)"]


def test_a_flood_of_lines_takes_little_memory_and_shows_them() -> None:
    alike = Alike("…")
    lines = "".join(f"{number}\n" for number in range(30_000))
    assert alike.rest(W0, lines, 0.0) == lines
    assert len(alike._lines) <= 30_000
    alike.rest(W0, "more\n", 0.0)
    assert len(alike._lines) <= 4001
    assert len(alike._by_text) <= 4001
    for number in range(3000):
        alike.rest(W0, f"n{number}\n", 0.1)
        alike.rest(W1, f"n{number}\n", 0.1)
    assert alike._counted <= 2000


def write(reporter: Reporter) -> None:
    for task in (W0, W1, W2):
        reporter.log(task, "a", 0, b"loading\nready\n")
    reporter.log(W1, "a", 14, b"step 1\n")


def test_a_terminal_folds_them_unless_raw_and_a_pipe_has_every_line() -> None:
    every = [f"{task} │ {line}" for task in (W0, W1, W2) for line in ("loading", "ready")]
    assert shown(write, fold=True)[0].splitlines() == [*every, "worker/1 │ step 1"]
    assert plain(on_terminal(write)) == [*every, "worker/1 │ step 1"]
    assert plain(on_terminal(write, fold=True)) == [
        *every[:2],
        "worker/1 │ step 1",
        "  (worker/1-2 wrote the same 2 lines as worker/0, from this one on: loading)",
    ]


def test_on_a_terminal_their_number_is_told_while_nothing_else_comes() -> None:
    ours, theirs = terminal()
    reporter = open_reporter(stdout=theirs, stderr=theirs, fold=True)
    reporter.phase("training", 0, 2)
    reporter.log(W0, "a", 0, b"ready\n")
    reporter.log(W1, "a", 0, b"ready\n")
    seen = ""
    while "(+1 alike: worker/1)" not in seen:  # the test's time limit ends it
        seen += os.read(ours, 65536).decode()
    reader = Reader(ours)
    reporter.log(W1, "a", 6, b"step 1\n")
    reporter.close()
    theirs.close()
    assert plain(seen + reader.text()) == [
        "training 2 tasks",
        "worker/0 │ ready",
        "  (+1 alike: worker/1)",
        "worker/1 │ step 1",
    ]
