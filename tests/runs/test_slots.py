"""Runs in slots that an engine takes back: all tasks get the time that is left, and the exit code says why it ended."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import until
from tests.support.slots import Held
from tests.support.slotted import Slots, saved, take_back
from tests.support.versions import OldLauncher, unpacked

# Saves at TERM, as a trainer does that writes a checkpoint.
SAVES = """
    import os, signal, sys, time
    def save(*_):
        time.sleep(0.3)
        print("saved", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, save)
    seen = sorted(name for name in os.environ if name.startswith("TFLAUNCH_SLOT"))
    print("trains in attempt", os.environ["TFLAUNCH_ATTEMPT"], seen, flush=True)
    while True:
        time.sleep(0.1)
"""
WHY = {"term": "the engine ends this slot (SIGTERM)", "kill": "the slot holder is gone"}
both_ways = pytest.mark.parametrize("how", ["term", "kill"])


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Slots]:
    user = Slots(tmp_path, tmp_path / "places")
    yield user
    user.close()


def words(user: Slots, slots: list[Held], *options: str) -> list[str | Path]:
    """Of `run`, of a ps and two workers that save."""
    hosts, script = user.hostfile_of(slots), user.script(SAVES)
    return [*options, hosts, script, "--ps=1", "--workers=2", "--lease=60"]


@both_ways
def test_a_slot_that_is_taken_back_ends_the_run_in_order(user: Slots, how: str) -> None:
    slots = user.take(2)
    running = user.start("run", *words(user, slots))
    running.wait_for("trains in attempt 0 []", 3)
    take_back(slots[0], how)
    done = running.done().ran(75)
    assert f"slot1 was taken back: {WHY[how]}" in done.sentences
    assert "could not check" not in done.sentences
    assert saved(user) == ["ps-0", "worker-0", "worker-1"]
    [record] = user.records()
    told = json.loads((record / "outcome.json").read_text())
    assert (told["exit_code"], told["first_failure"]["host"]) == (75, "slot1")
    assert "✗ slot1 was taken back" in user.run("status").out
    user.wait_until_nothing_is_left()
    if how == "term":
        assert slots[0].end() == 75
        assert not slots[0].directory.exists()


@both_ways
def test_who_attaches_to_a_detached_run_hears_the_holders_words(user: Slots, how: str) -> None:
    """The slot is that of the host that decides for the run."""
    slots = user.take(2)
    user.run("run", *words(user, slots, "--detach")).ran()
    viewer = user.start("attach")
    viewer.wait_for("trains in attempt 0 []", 3)
    take_back(slots[0], how)
    done = viewer.done().ran(75)
    assert f"slot1 was taken back: {WHY[how]}" in done.sentences
    assert done.out.count("saved") == 3
    user.wait_until_nothing_is_left()
    [record] = user.records()
    assert json.loads((record / "outcome.json").read_text())["exit_code"] == 75


def test_all_slots_of_a_detached_run_are_taken_back_at_once(user: Slots) -> None:
    slots = user.take(2)
    user.run("run", *words(user, slots, "--detach")).ran()
    viewer = user.start("attach")
    viewer.wait_for("trains in attempt 0 []", 3)
    for slot in slots:
        take_back(slot, "term")
    done = viewer.done().ran(75)
    assert f"was taken back: {WHY['term']}" in done.sentences
    assert done.out.count("saved") == 3
    user.wait_until_nothing_is_left()


def test_an_older_launcher_attaches_to_a_run_whose_slot_is_taken_back(user: Slots, tmp_path: Path) -> None:
    slots = user.take(2)
    user.run("run", *words(user, slots, "--detach")).ran()
    viewer = OldLauncher(user, unpacked(tmp_path / "old")).start("attach")
    viewer.wait_for("trains in attempt 0 []", 3)
    take_back(slots[0], "term")
    done = viewer.done().ran(75)
    assert WHY["term"] in done.sentences
    assert "breaks the protocol" not in done.sentences
    assert done.out.count("saved") == 3


def test_with_restarts_slots_are_taken_again(user: Slots) -> None:
    """The new slots have the names of the earlier ones, and no host of the first plan is left."""
    slots = user.take(2)
    again = user.take(2, later=True)
    shared = user.hostfile(["slot1", "slot2"], connection="local")
    script = user.script(SAVES)
    running = user.start("run", shared, script, "--ps=1", "--workers=2", "--restarts=1")
    running.wait_for("trains in attempt 0 []", 3)
    for slot in slots:
        take_back(slot, "term")
    running.wait_for("trains in attempt 1 []", 3)
    assert "taking slots again" in running.err
    assert "is out of reach" not in running.err
    take_back(again[0], "term")  # no restart is left
    done = running.done().ran(75)
    assert f"slot1 was taken back: {WHY['term']}" in done.sentences


def test_in_a_directory_of_190_bytes(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * (149 - len(bytes(tmp_path)))) / ("e" * 39)
    assert len(bytes(deep)) == 190
    user = Slots(tmp_path, deep)
    try:
        slots = user.take(2)
        user.run("run", *words(user, slots, "--detach")).ran()
        viewer = user.start("attach")
        viewer.wait_for("trains in attempt 0 []", 3)
        assert "trains" in user.run("logs").ran().out
        assert "trainer.py:11 in <module>" in user.run("stacks").ran().out
        take_back(slots[0], "term")
        viewer.done().ran(75)
    finally:
        user.close()


def test_a_lost_evaluator_is_missed_by_nobody(user: Slots) -> None:
    program = """
        import os, pathlib, time
        print("trains", flush=True)
        while not pathlib.Path(os.environ["OUT"]).exists():
            time.sleep(0.05)
    """
    enough = user.directory / "enough"
    slots = user.take(2)
    hosts, script = user.hostfile_of(slots), user.script(program)
    running = user.start("run", hosts, script, "--ps=0", "--workers=1", "--evaluator", f"--env=OUT={enough}")
    running.wait_for("trains", 2)
    take_back(slots[1], "term")
    running.wait_for("the run goes on without slot2")
    until(lambda: slots[1].process.poll() is not None, "the end of that slot")
    enough.touch()
    running.done().ran()


def test_what_an_engine_tells_everybody_is_left_to_the_holder(user: Slots) -> None:
    """Some engines send their TERM to all that they find: agent, guard, and what holds the channel open."""
    slots = user.take(1)
    running = user.start("run", user.hostfile_of(slots), user.script(SAVES), "--ps=0", "--workers=1")
    running.wait_for("trains in attempt 0 []")
    for each in user.leftovers():
        if each.is_agent:
            os.kill(each.pid, signal.SIGTERM)
    take_back(slots[0], "term")
    done = running.done().ran(75)
    assert f"slot1 was taken back: {WHY['term']}" in done.sentences
    assert saved(user) == ["worker-0"]
    user.wait_until_nothing_is_left()


def test_a_slot_that_is_taken_back_while_a_run_starts_is_told_as_that(user: Slots) -> None:
    slots = user.take(2)
    begun = user.directory / "begun"
    hosts = user.hostfile_of(slots, setup=[f"touch {begun}", "sleep 600"])
    running = user.start("run", hosts, user.script(SAVES), "--ps=1", "--workers=2")
    until(begun.exists, "the setup of a task")
    take_back(slots[0], "term")
    done = running.done().ran(75)
    assert f"slot1 {WHY['term']}" in done.sentences
    user.wait_until_nothing_is_left()
