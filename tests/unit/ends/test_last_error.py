"""The line of a log that says why its program ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.screen import on_terminal, plain, shown
from tflaunch.console.run_pages import error_of
from tflaunch.documents.reporter import Reporter
from tflaunch.ends.last_error import LIMIT_BYTES, last_error
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome, TaskExit

W1 = TaskId("worker", 1)
GRAPH = """\
Traceback (most recent call last):
  File "/lib/client/session.py", line 1365, in _do_call
    return fn(*args)
tensorflow.python.framework.errors_impl.InvalidArgumentError: logits and labels must be same size
\t [[{{node xent}}]]

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "trainer.py", line 30, in <module>
    session.run(loss)
tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error: logits and labels
\t [[node xent (defined at trainer.py:12) ]]

Errors may have originated from an input operation.
Input Source operations connected to node xent:
 Reshape (defined at trainer.py:10)

Original stack trace for 'xent':
"""
GRAPH += "".join(f'  File "/lib/ops/op_{n}.py", line {n}, in call\n    return op_{n}()\n' for n in range(30))
CAUSE = (
    "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error: logits and labels"
)
CHECK = "2024-01-05 10:00:00.123456: F tensorflow/core/platform/env.cc:360] Check failed: -1 != path_length (-1 vs. -1)"


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", ""),
        ("step 1\nValueError: printed by somebody\n", ""),
        (GRAPH, CAUSE),
        ("Traceback (most recent call last):\n  File 'a'\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("Traceback (most recent call last):\n  File 'a'\nsocket.timeout: timed out", "socket.timeout: timed out"),
        (
            "Traceback (most recent call last):\n  File 'a'\nloss: 0.3\nINFO: saved\nI0101 10:00:00 a.py:1] x\n"
            "  c = d\nmy.Error: first\nsecond: line\nThird: line\n",
            "my.Error: first",
        ),
        (
            "Traceback (most recent call last):\n  File 'a'\nKeyError: 1\n\nThe above exception was the direct "
            "cause of the following exception:\n\n"
            "Traceback (most recent call last):\n  File 'a'\nRuntimeError: no such key\n",
            "RuntimeError: no such key",
        ),
        (
            "Traceback (most recent call last):\n  File 'a'\nOSError: the cause\n"
            "Exception ignored in: <function A.__del__>\nTraceback (most recent call last):\n  File 'a'\n"
            "AttributeError: at the end of all\n",
            "OSError: the cause",
        ),
        (
            "  + Exception Group Traceback (most recent call last):\n  |   File 'a'\n  | ExceptionGroup: two (2 "
            "sub-exceptions)\n",
            "ExceptionGroup: two (2 sub-exceptions)",
        ),
        ('  File "a.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n', "SyntaxError: invalid syntax"),
        (
            "FATAL Flags parsing error:\n  Unknown command line flag 'ps_host'\nPass --helpshort\n",
            "FATAL Flags parsing error: Unknown command line flag 'ps_host'",
        ),
        (f"{CHECK}\nFatal Python error: Aborted\n\nThread 0x00 (most recent call first):\n", CHECK),
        ("F0000 00:00:1704 17 env.cc:3] Check failed: x\n", "F0000 00:00:1704 17 env.cc:3] Check failed: x"),
        ("Fatal Python error: Segmentation fault\n\n", "Fatal Python error: Segmentation fault"),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
            "terminate called after throwing an instance of 'std::bad_alloc': std::bad_alloc",
        ),
        ("Traceback (most recent call last):\n  File 'a'\nE: " + "x" * 5000, "E: " + "x" * 293 + " ..."),
    ],
)  # fmt: skip
def test_the_line_that_says_why(log: str, error: str) -> None:
    assert last_error(log) == error


@pytest.mark.parametrize(
    "piece",
    [
        "Traceback (most recent call last):\n",
        "a.",
        "A",
        "a: ",
        "F0101 ",
        ": symbol lookup error",
        "  | ",
        "\\r",
        "\\n",
    ],
)
def test_no_log_takes_long_to_look_at(piece: str) -> None:
    log = piece.replace("\\r", "\r").replace("\\n", "\n") * (2 * LIMIT_BYTES // len(piece))
    # In square time it would take longer than a test may.
    assert len(last_error("Traceback (most recent call last):\n" + log)) <= 300


def test_the_report_tells_why_above_the_noise() -> None:
    exit = TaskExit(W1, "gpu02", 1, None, 1.1, GRAPH.encode())

    def act(reporter: Reporter) -> None:
        reporter.report(Outcome("r-1", "failed", 1, 2.0, {W1: exit}, exit))

    lines = shown(act)[1].splitlines()
    assert lines[:2] == ["✗ worker/1 on gpu02 exited with code 1 after 1.1 s; its last lines:", f"  {CAUSE}"]
    assert len([line for line in lines if "│" in line]) == 30
    assert not any("Graph execution" in line for line in lines[2:])
    first = json.loads(shown(act, json=True)[0])["first_failure"]
    assert (first["error"], len(first["tail"])) == (CAUSE, 30)


def test_what_stands_in_the_last_line_is_not_told_twice() -> None:
    exit = TaskExit(W1, "gpu02", 1, None, 1.1, b"Traceback (most recent call last):\n  File 'a'\nE: x\n")
    report = shown(lambda reporter: reporter.report(Outcome("r-1", "failed", 1, 2.0, {W1: exit}, exit)))[1]
    assert report.count("E: x") == 1


def test_what_is_cut_is_not_told_twice_either() -> None:
    said = "ValueError: " + "long " * 100
    exit = TaskExit(
        W1, "gpu02", 1, None, 1.1, f"Traceback (most recent call last):\n  File 'a'\n{said}\n".encode()
    )
    report = shown(lambda reporter: reporter.report(Outcome("r-1", "failed", 1, 2.0, {W1: exit}, exit)))[1]
    assert report.count("ValueError") == 1


def test_a_copy_that_lacks_the_end_does_not_say_why(tmp_path: Path) -> None:
    old = "Traceback (most recent call last):\n  File 'a'\nOldError: dealt with\n"
    tail = "Traceback (most recent call last):\n  File 'a'\nNewError: the cause\n"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-1.log").write_text(old)
    exit = TaskExit(W1, "gpu02", 1, None, 1.1, tail.encode(), log_bytes=len(old + tail))
    assert error_of(exit, str(tmp_path)) == "NewError: the cause"
    (tmp_path / "logs" / "worker-1.log").write_text(old + tail)
    assert error_of(exit, str(tmp_path)) == "NewError: the cause"


def test_why_is_told_where_the_output_stands_on_the_screen_too() -> None:
    exit = TaskExit(W1, "gpu02", 1, None, 1.1, GRAPH.encode())

    def act(reporter: Reporter) -> None:
        reporter.log(W1, "gpu02", 0, exit.tail)
        reporter.report(Outcome("r-1", "failed", 1, 2.0, {W1: exit}, exit))

    lines = plain(on_terminal(act, columns=200))
    at = next(number for number, line in enumerate(lines) if line.startswith("✗ r-1 failed"))
    assert lines[at + 1] == f"  {CAUSE}"
