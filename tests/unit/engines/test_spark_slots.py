"""Slots of Spark, as far as no Spark is needed: words for them, what Spark's errors mean, and the driver's board."""

from __future__ import annotations

import contextlib
import json
import platform
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S, until
from tflaunch.engines import listener
from tflaunch.engines.door import DoorLine, dial, make_certificate
from tflaunch.engines.engine import check
from tflaunch.engines.spark_board import SlotBoard
from tflaunch.engines.spark_driver import last_words, never
from tflaunch.engines.spark_slots import CANCELLED, ENGINE, STOPPED, _conf, _nobody_listens, _size, _words
from tflaunch.inputs.engine_words import WantedSlots, WrongSlots, wanted
from tflaunch.protocol.errors import ConnectError, HostfileError, PlanError, UsageError

TOKEN = "6" * 32


@pytest.mark.parametrize(
    ("word", "master", "count", "gpus"),
    [
        ("spark://master:7077,4", "//master:7077", 4, 0),
        ("spark://h1:7077,h2:7077,4x2", "//h1:7077,h2:7077", 4, 2),
        ("spark://[fd00::1]:7077,4", "//[fd00::1]:7077", 4, 0),
        ("spark:local-cluster[2,1,1024],2,memory=2g", "local-cluster[2,1,1024]", 2, 0),
        ("spark:local[*],2", "local[*]", 2, 0),
        ("spark:yarn,3x1", "yarn", 3, 1),
        ("spark:k8s://https://h:6443,3", "k8s://https://h:6443", 3, 0),
        ("spark:3", "", 3, 0),
        ("spark:3,master=yarn", "yarn", 3, 0),
    ],
)
def test_what_stands_before_the_sizes_is_the_master(word: str, master: str, count: int, gpus: int) -> None:
    slots = check(wanted(word), ENGINE, word)
    assert slots.settings.get("master", "") == master
    assert slots.count == count
    assert _size(slots).gpus == gpus


@pytest.mark.parametrize("word", ["spark://master:7077,4x", "spark://master:7077,4,what", "spark:4,yarn"])
def test_what_stands_behind_the_sizes_is_none(word: str) -> None:
    with pytest.raises(WrongSlots, match=r"is neither sizes|is not 4"):
        wanted(word)


def test_settings_that_spark_does_not_have() -> None:
    with pytest.raises(HostfileError, match="did you mean memory"):
        check(wanted("spark:yarn,2,memry=2g"), ENGINE, "spark")
    with pytest.raises(UsageError, match=r"is not spark\.KEY=VALUE"):
        _conf(WantedSlots("spark", (), {"conf": "spark.a=1 b=2"}))
    assert _conf(WantedSlots("spark", (), {"conf": "spark.a=1 'spark.b=2 3'"})) == {
        "spark.a": "1",
        "spark.b": "2 3",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Job 3 cancelled part of cancelled job group tflaunch-1", CANCELLED),
        ("Job 0 cancelled because SparkContext was shut down", STOPPED),
        (
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: worker lost: lost\n",
            "Spark has lost executor 1: worker lost: lost",
        ),
        (
            "Caused by: Python worker exited unexpectedly (crashed)",
            "Spark's Python worker that held a slot has",
        ),
        (
            "Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because "
            "barrier task ResultTask(0, 1) finished unsuccessfully.\nTaskKilled (by hand)\n\tat org.apache",
            "a task of the run's barrier stage in Spark has failed: TaskKilled (by hand)",
        ),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "a.py", line 6, in boom\nValueError: row 7 is rotten',
            "the Spark stage has failed: ValueError: row 7 is rotten",
        ),
        (
            "Traceback (most recent call last):\nKeyError: 'x'\n SQLSTATE: 38000\n\tat org.apache",
            "the Spark stage has failed: KeyError: 'x'",
        ),
        (
            "first\nTraceback (most recent call last):\nKeyError: 'x'\n\n\tat org.apache",
            "the Spark stage has failed: first",
        ),
        (
            "a thing that nobody knows\n\tat org.apache",
            "the Spark stage has failed: a thing that nobody knows",
        ),
    ],
)
def test_why_spark_has_ended_a_stage(text: str, words: str) -> None:
    assert _words(RuntimeError(text)).startswith(words)


def test_what_another_try_does_not_change() -> None:
    error = never(
        RuntimeError("Python in worker has different version: 3.9 than that in driver: 3.11, PySpark cannot")
    )
    assert isinstance(error, PlanError)
    assert f"3.9 there, {platform.python_version()} here" in error.message
    error = never(
        RuntimeError("x\nRuntimeError: tflaunch: the driver cannot be reached from an executor: timed out\ny")
    )
    assert isinstance(error, ConnectError)
    assert error.message.endswith("from an executor: timed out")
    assert "dial this machine" in error.hint
    error = never(RuntimeError("RuntimeError: tflaunch: the slot holder could not start: slot: no room\n"))
    assert isinstance(error, ConnectError)
    assert "log of that executor" in error.hint
    assert never(RuntimeError("lost")) is None


def test_why_a_jvm_has_not_started() -> None:
    trace = "Exception in x: java.lang.A: a\n\tat b\nCaused by: java.lang.B: no such host\n\tat c\n\t... 13 more\n"
    assert last_words(trace) == "java.lang.B: no such host"
    assert last_words("WARNING: first\nUnrecognized option: -Xq\n") == "Unrecognized option: -Xq"
    assert last_words("") == ""


@pytest.fixture
def board() -> Iterator[SlotBoard]:
    board = SlotBoard(*make_certificate(), TOKEN)
    yield board
    board.close()


def dialled(board: SlotBoard, token: str = TOKEN) -> DoorLine:
    return dial(["127.0.0.1"], board.port, board.certificate, token, 10.0)


def asked(board: SlotBoard, **what: object) -> dict[str, Any]:
    """What it answers to whoever has the token."""
    with contextlib.closing(dialled(board)) as line:
        return line.ask(**what)


@contextlib.contextmanager
def said(board: SlotBoard, slot: int) -> Iterator[DoorLine]:
    """A task's line, which has said that its slot is there."""
    with contextlib.closing(dialled(board)) as line:
        _say(line, slot, told={"port": 1})
        until(lambda: slot in board.told, "what the task says")
        yield line


def _say(line: DoorLine, slot: int, **what: object) -> None:
    line.send(json.dumps({"token": TOKEN, "slot": slot, **what}).encode() + b"\n")


def test_a_slot_is_there_until_its_task_says_how_it_has_ended(board: SlotBoard) -> None:
    with said(board, 1) as line:
        assert board.told[1]["told"] == {"port": 1}
        assert asked(board, ask=1) == {"over": None}
        _say(line, 1, ended=3)
        over = until(lambda: asked(board, ask=1)["over"], "its end")
    assert (over["in_order"], over["code"]) == (True, 3)
    assert board.why_lost(0.0) == ""


def test_a_task_that_hangs_up_has_lost_its_slot(board: SlotBoard) -> None:
    with said(board, 0):
        pass
    over = until(lambda: board.over(0), "its end")
    assert not over["in_order"]
    assert "Python worker" in board.why_lost(0.0)
    assert board.why_lost(3600.0) == ""  # Spark may still say better
    board.take_back(CANCELLED)
    assert board.why_lost(3600.0) == CANCELLED
    assert asked(board, ask=0)["over"]["words"] == CANCELLED


def test_the_launcher_hangs_up(board: SlotBoard) -> None:
    with said(board, 0) as line:
        board.let_go()
        with contextlib.suppress(EOFError, OSError):
            assert line.receive() == b""
    assert asked(board, give_up=True) == {"given_up": True}
    assert board.given_up


def test_strangers(board: SlotBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another token, nonsense, lines without end and silence change nothing, and are hung up on."""
    with contextlib.closing(dialled(board, token="")) as line, pytest.raises(ConnectError):
        line.ask(give_up=True)
    wrong = json.dumps({"token": TOKEN, "ask": "x"}).encode()
    for nonsense in (b"", b"[]", b'"slot"', b"{" * 2_000_000, wrong):
        with contextlib.closing(dialled(board)) as line:
            with contextlib.suppress(OSError):
                line.send(nonsense + b"\n")
            heard = b""
            with contextlib.suppress(EOFError, OSError):
                heard = line.receive()
            assert heard == b""
    silent = [socket.create_connection(("127.0.0.1", board.port)) for _ in range(50)]
    assert asked(board, ask=7) == {"over": None}
    monkeypatch.setattr(listener, "UNPROVED", 40)
    with contextlib.closing(socket.create_connection(("127.0.0.1", board.port))):
        silent[0].settimeout(PATIENCE_S)
        assert silent[0].recv(1) == b""  # the oldest
        assert asked(board, ask=7) == {"over": None}
    assert not board.told
    assert not board.given_up
    for each in silent:
        each.close()


def test_a_feed_of_former_slots_is_heard_no_more(board: SlotBoard) -> None:
    """The rows go on to other slots, with another board."""
    heard = []
    board.rows = SimpleNamespace(heard=lambda slot, _: heard.append(slot) or {})  # type: ignore
    with contextlib.closing(dialled(board)) as line:
        assert line.ask(feed=1) == {}
        board.close()
        with pytest.raises((ConnectError, OSError, ValueError)):
            line.ask(feed=2)
    assert heard == [1]


def test_nobody_listens_once_it_is_closed() -> None:
    board = SlotBoard(*make_certificate(), TOKEN)
    assert not _nobody_listens(["127.0.0.1"], board.port)
    board.close()
    until(lambda: _nobody_listens(["127.0.0.1"], board.port), "the end of the board")


def test_another_certificate_is_refused(board: SlotBoard) -> None:
    other, _ = make_certificate()
    with pytest.raises(ConnectError, match="another certificate"):
        dial(["127.0.0.1"], board.port, other, TOKEN, 10.0)
