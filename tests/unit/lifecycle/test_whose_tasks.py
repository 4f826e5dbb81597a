"""Of whose tasks a host may speak, and hosts that are back for a moment only."""

from __future__ import annotations

import pytest

from tests.support.pipes import EXIT, Nothing
from tflaunch.lifecycle import links
from tflaunch.lifecycle.driver import Driver
from tflaunch.lifecycle.links import Links
from tflaunch.lifecycle.states import State
from tflaunch.protocol import wire
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId

# -- whose tasks


def test_a_host_speaks_of_its_own_tasks_only() -> None:
    tasks = {TaskId("worker", 0): "gpu01", TaskId("worker", 1): "gpu02"}
    drive = Driver(State(hosts=tasks), Nothing(), 60.0, 0.0)  # type: ignore[arg-type]
    own = wire.Message("exit", dict(EXIT))
    assert drive.foreign("gpu01", own) == ""
    assert "is about worker/0, which is not on that host" in drive.foreign("gpu02", own)
    swept = wire.Message("swept", {"logs": {"worker/1": [0, 5], "worker/7": [0, 1]}})
    assert "worker/7" in drive.foreign("gpu02", swept)
    looked = wire.Message("looked", {"tasks": {"worker/0": {}}})
    assert "worker/0" in drive.foreign("gpu02", looked)
    assert drive.foreign("gpu02", wire.Message("beat")) == ""


def test_a_host_on_which_all_has_ended_has_told_how_its_tasks_did() -> None:
    tasks = {TaskId("worker", 0): "gpu01", TaskId("worker", 1): "gpu02"}
    drive = Driver(State(hosts=tasks), Nothing(), 60.0, 0.0)  # type: ignore[arg-type]
    drive.feed(TaskStarted(TaskId("worker", 0), "gpu01", 0, 7), 0.0)
    swept = wire.Message("swept", {"n": 2, "logs": {}, "survivors": [], "gpus": [], "killed": []})
    assert (
        drive.foreign("gpu01", swept)
        == "it says that all has ended there, and has not reported the exits of its tasks"
    )
    drive.said("gpu02", "exit", {**EXIT, "task": "worker/1", "n": 1}, b"", 1.0)
    assert drive.foreign("gpu02", swept) == ""
    drive.said("gpu01", "expired", {"n": 1, "reason": "no lease", "asked": False}, b"", 2.0)
    assert drive.foreign("gpu01", swept) == ""  # tasks that nothing ends may be left


# -- hosts that are back for a moment only


def test_a_host_whose_link_breaks_as_often_as_it_is_back_counts_as_away() -> None:
    link = Links(["gpu01"], Nothing(), 0.0)  # type: ignore[arg-type]
    now = 0.0
    longest = 0.0
    for _ in range(200):
        link.attached("gpu01", now)
        now += 1.0
        link.ended("gpu01", "cut", now)
        longest = link.away_s("gpu01", now)
        if longest > 60.0:
            break
        now += 0.5
    assert 60.0 < longest < 70.0
    assert "it broke" in link.down["gpu01"] and f"within {links.STEADY_S:g} s" in link.down["gpu01"]


def test_a_host_that_was_back_for_a_while_is_away_since_the_last_time() -> None:
    link = Links(["gpu01"], Nothing(), 0.0)  # type: ignore[arg-type]
    up_s = links.STEADY_S + 1.0
    for number in range(50):
        start = number * (up_s + 5.0)
        link.attached("gpu01", start)
        link.heard("gpu01", start + up_s)
        link.ended("gpu01", "cut", start + up_s)
        assert link.away_s("gpu01", start + up_s + 1.0) == pytest.approx(1.0)
