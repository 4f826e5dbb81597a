"""Who holds which GPUs, of all users of many hosts."""

from __future__ import annotations

import dataclasses
import json

from tests.support.gpus import NOW, answer, gpu, process
from tflaunch.console.gpu_users_page import users_lines
from tflaunch.console.pen import UNICODE, Sheet
from tflaunch.planning.inventory import Lease
from tflaunch.survey.gpu_overview import look
from tflaunch.survey.gpu_users import data, unseen, users

ADAS = Lease("ada", "trainer-k3f9x2", NOW - 3600)
HELD = look(
    [
        answer(
            "gpu01",
            gpu(0, lease=ADAS, processes=(process("ada", 1, 20),), used=20),
            gpu(1, lease=ADAS),
            gpu(2, processes=(process("bob", 4711), process("ada", 2), process("eve", 3, kind="graphics"))),
            gpu(3),
        ),
        answer(
            "gpu02",
            gpu(0, lease=ADAS, processes=(process("bob", 5),), used=10),
            gpu(1, processes=(process("", 6),), used=10),
            gpu(2, used=30),
        ),
    ]
)


def test_each_run_and_each_process_with_its_gpus() -> None:
    ada, bob, hidden = users(HELD)
    assert (ada.user, ada.gpus, ada.hosts) == ("ada", 4, ["gpu01", "gpu02"])
    assert [(hold.run, hold.pid, f"{hold.host}:{hold.gpu}") for hold in ada.holds] == [
        ("trainer-k3f9x2", 0, "gpu01:0"),  # and her process on it is the run's
        ("trainer-k3f9x2", 0, "gpu01:1"),
        ("", 2, "gpu01:2"),
        ("trainer-k3f9x2", 0, "gpu02:0"),
    ]
    assert (bob.user, bob.gpus) == ("bob", 2)
    assert {hold.command for hold in bob.holds} == {"python3 train.py"}, "no arguments, no directories"
    assert {hold.age_s for hold in bob.holds} == {7200.0}
    assert (hidden.user, hidden.gpus) == ("", 2)


def test_what_could_not_be_seen_is_said() -> None:
    assert unseen(HELD) == [
        "gpu02:1: a process whose user gpu02 does not show (a container, or /proc hides other users' processes): "
        "ask as root",
        "gpu02:2: in use by a process that gpu02 does not show",
    ]
    assert unseen(look([answer("gpu01", gpu(0))])) == []


def test_the_page_and_the_document() -> None:
    lines = [line.plain for line in users_lines(HELD, Sheet(100, UNICODE))]
    assert lines[1].split() == ["ada", "3", "1h", "run", "trainer-k3f9x2", "gpu01:0,1", "gpu02:0"]
    assert lines[2].split() == ["ada", "1", "2h", "pid", "2", "python3", "train.py", "gpu01:2"]
    assert "ada 4 GPUs on 2 hosts: 1 run, 1 other process" in lines
    assert "users not shown 2 GPUs on gpu02: 1 other process" in lines
    document = json.loads(json.dumps(data(HELD, NOW)))
    assert [(each["user"], each["gpus"]) for each in document["users"]] == [("ada", 4), ("bob", 2), ("", 2)]


def test_a_name_that_is_an_escape_sequence_is_text() -> None:
    evil = dataclasses.replace(ADAS, user="\x1b[31meve")
    shown = users_lines(look([answer("gpu01", gpu(0, lease=evil))]), Sheet(100, UNICODE))
    assert not any("\x1b" in line.plain for line in shown)
