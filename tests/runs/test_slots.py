"""Runs in slots that an engine takes back: all tasks get the time that is left, and the exit code says why it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slotted import Slots, saved, slots
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
WHY = "the engine ends this slot (SIGTERM)"
GONE = "the slot holder is gone"
TASKS = ["ps-0", "worker-0", "worker-1"]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Slots]:
    with slots(tmp_path) as user:
        yield user


def words(user: Slots, *options: str) -> list[str | Path]:
    return [*options, user.slotted(2), user.script(SAVES), "--ps=1", "--workers=2", "--lease=60"]


@pytest.mark.parametrize("how", ["term", "kill"])
def test_a_slot_that_is_taken_back_ends_the_run_in_order(user: Slots, how: str) -> None:
    first, _ = user.take(2)
    running = user.start("run", *words(user))
    running.wait_for("trains in attempt 0 []", 3)
    if how == "term":
        first.take_back()
    else:
        first.kill()
    done = running.done().ran(75)
    assert f"slot1 was taken back: {WHY if how == 'term' else GONE}" in done.sentences
    assert "could not check" not in done.sentences
    assert saved(user) == TASKS
    [record] = user.records()
    told = json.loads((record / "outcome.json").read_text())
    assert (told["exit_code"], told["first_failure"]["host"]) == (75, "slot1")
    assert "✗ slot1 was taken back" in user.run("status").out
    [listed] = json.loads(user.run("ps", "-a", "--json").out)["runs"]
    assert (listed["state"], listed["outcome"]["exit_code"]) == ("failed", 75)


@pytest.mark.parametrize("how", ["term", "kill"])
def test_of_a_detached_run_the_hosts_say_so_and_who_attaches(user: Slots, how: str) -> None:
    """The slot of the host that decides is taken back, and then that of another."""
    slot = user.take(2)[0]
    user.run("run", *words(user, "--detach")).ran()
    viewer = user.start("attach")
    viewer.wait_for("trains in attempt 0 []", 3)
    if how == "term":
        slot.take_back()
    else:
        slot.kill()
    done = viewer.done().ran(75)
    assert f"slot1 was taken back: {WHY if how == 'term' else GONE}" in done.sentences
    assert done.out.count("saved") == 3
    user.wait_until_nothing_is_left()
    [record] = user.records()
    assert json.loads((record / "outcome.json").read_text())["exit_code"] == 75


def test_an_older_launcher_attaches_to_a_run_whose_slot_is_taken_back(user: Slots, tmp_path: Path) -> None:
    slot = user.take(2)[0]
    user.run("run", *words(user, "--detach")).ran()
    viewer = OldLauncher(user, unpacked(tmp_path / "old")).start("attach")
    viewer.wait_for("trains in attempt 0 []", 3)
    slot.take_back()
    done = viewer.done().ran(75)
    assert WHY in done.sentences
    assert "breaks the protocol" not in done.sentences
    assert done.out.count("saved") == 3


def test_with_restarts_slots_are_taken_again(user: Slots) -> None:
    """The new slots have the names of the earlier ones."""
    first = user.take(2)
    again = user.take(2, later=True)
    running = user.start("run", *words(user, "--restarts=1"))
    running.wait_for("trains in attempt 0 []", 3)
    for slot in first:
        slot.take_back()
    running.wait_for("trains in attempt 1 []", 3)
    assert "taking slots again" in running.err
    again[0].take_back()  # no restart is left
    done = running.done().ran(75)
    assert f"slot1 was taken back: {WHY}" in done.sentences


def test_in_a_directory_of_190_bytes(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * (149 - len(bytes(tmp_path)))) / ("e" * 39)
    assert len(bytes(deep)) == 190
    with slots(tmp_path, deep) as user:
        slot = user.take(2)[0]
        user.hosts = deep / "runs"
        user.run("run", *words(user, "--detach")).ran()
        viewer = user.start("attach")
        viewer.wait_for("trains in attempt 0 []", 3)
        assert "trains" in user.run("logs").ran().out
        assert user.run("stacks").ran().out
        slot.take_back()
        viewer.done().ran(75)


def test_a_lost_evaluator_is_missed_by_nobody(user: Slots) -> None:
    program = """
        import os, pathlib, time
        print("trains", flush=True)
        while not pathlib.Path(os.environ["OUT"]).exists():
            time.sleep(0.05)
    """
    out = user.directory / "enough"
    _, second = user.take(2)
    script = user.script(program)
    running = user.start(
        "run", user.slotted(2), script, "--ps=0", "--workers=1", "--evaluator", f"--env=OUT={out}"
    )
    running.wait_for("trains", 2)
    second.take_back()
    running.wait_for("the run goes on without slot2")
    out.touch()
    running.done().ran()


def test_what_an_engine_tells_everybody_is_left_to_the_holder(user: Slots) -> None:
    """Some engines send their TERM to all that they find: agent, guard, and what holds the channel open."""
    slot = user.take(1)[0]
    running = user.start("run", user.slotted(1), user.script(SAVES), "--ps=0", "--workers=1")
    running.wait_for("trains in attempt 0 []")
    agents = [each.pid for each in user.leftovers() if each.is_agent]
    for pid in agents:
        os.kill(pid, 15)
    slot.take_back()
    done = running.done().ran(75)
    assert f"slot1 was taken back: {WHY}" in done.sentences
    assert saved(user) == ["worker-0"]
    user.wait_until_nothing_is_left()
