"""Runs on slots that end before they do: all tasks get the time that is left, and the exit code says why it ended."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.engines.conftest import OnSlots
from tests.support.agent_over_pipes import descriptors
from tests.support.bed import Bed
from tests.support.launcher import Running
from tests.support.patience import until
from tests.support.scheduler import Scheduler
from tests.support.slots import SAVES

TASKS = ("--ps=1", "--workers=2", "--lease=60")
WHY = {"term": "the engine ends this slot (SIGTERM)", "kill": "the slot holder is gone"}
# A wire by the socket is no matter of the holder once it is there: it outlives the holder.
SETTINGS = {"term": {"grace": "10"}, "kill": {"grace": "10", "door": "socket"}}
both_ways = pytest.mark.parametrize("how", ["term", "kill"])


def take_back(scheduler: Scheduler, name: str, how: str) -> None:
    """As an engine does, or as what kills the holder alone."""
    scheduler.take_back(name, signal.SIGTERM if how == "term" else signal.SIGKILL)


def attached(user: OnSlots, how: str = "term") -> Running:
    """Who looks at a detached run whose tasks all train."""
    user.run("run", user.slots(**SETTINGS[how]), user.script(SAVES), *TASKS, "--detach").ran()
    viewer = user.start("attach")
    viewer.wait_for("trains in attempt 0 []", 3)
    return viewer


def saved(user: OnSlots) -> list[str]:
    """The tasks whose last words are in the launcher's record of the only run."""
    [record] = user.records()
    return sorted(path.stem for path in record.glob("logs/*.log") if "saved" in path.read_text())


@both_ways
def test_a_slot_that_is_taken_back_ends_the_run_in_order(
    user: OnSlots, scheduler: Scheduler, bed: Bed, how: str
) -> None:
    with user.start("run", user.slots(**SETTINGS[how]), user.script(SAVES), *TASKS) as running:
        running.wait_for("trains in attempt 0 []", 3)
        slot = scheduler.slot("s0")
        directory = slot.told["directory"]
        # By that the next holder knows that somebody uses it.
        opened = [{*descriptors(each.pid).values()} for each in user.leftovers() if each.is_agent]
        assert any(directory in each for each in opened)
        take_back(scheduler, "s0", how)
        done = running.done().ran(75)
    assert f"host1-s0 was taken back: {WHY[how]}" in done.sentences
    assert "could not check" not in done.sentences
    assert saved(user) == ["ps-0", "worker-0", "worker-1"]
    [record] = user.records()
    told = json.loads((record / "outcome.json").read_text())
    assert (told["exit_code"], told["first_failure"]["host"]) == (75, "host1-s0")
    assert "✗ host1-s0 was taken back" in user.run("status").out
    if how == "term":
        assert slot.process.wait() == 75
        assert not bed.hosts[0].path(directory).exists()
    else:
        assert bed.hosts[0].path(directory).exists()
        user.run("gpus", user.slots("1", node="host1")).ran()
        until(lambda: not bed.hosts[0].path(directory).exists(), "the next holder to remove it")


@both_ways
def test_who_attaches_to_a_detached_run_hears_the_holders_words(
    user: OnSlots, scheduler: Scheduler, how: str
) -> None:
    """The slot is that of the host that decides for the run."""
    viewer = attached(user, how)
    take_back(scheduler, "s0", how)
    done = viewer.done().ran(75)
    assert f"host1-s0 was taken back: {WHY[how]}" in done.sentences
    assert done.out.count("saved") == 3
    [record] = user.records()
    assert json.loads((record / "outcome.json").read_text())["exit_code"] == 75


def test_all_slots_of_a_detached_run_are_taken_back_at_once(user: OnSlots, scheduler: Scheduler) -> None:
    viewer = attached(user)
    for name in ("s0", "s1"):
        scheduler.take_back(name)
    done = viewer.done().ran(75)
    assert f"was taken back: {WHY['term']}" in done.sentences
    assert done.out.count("saved") == 3


def test_slots_are_taken_again_as_often_as_a_run_may_start_again(user: OnSlots, scheduler: Scheduler) -> None:
    """The new slots have the names of the earlier ones, and no host of the first plan is left."""
    words = (user.slots(grace="10"), user.script(SAVES), *TASKS, "--restarts=1")
    with user.start("run", *words) as running:
        running.wait_for("trains in attempt 0 []", 3)
        for name in ("s0", "s1"):
            scheduler.take_back(name)
        running.wait_for("trains in attempt 1 []", 3)
        assert "taking slots again" in running.err
        assert "is out of reach" not in running.err
        scheduler.take_back("s0")  # no restart is left
        done = running.done().ran(75)
    assert f"host1-s0 was taken back: {WHY['term']}" in done.sentences
    assert len(scheduler.requests()) == 2


def test_in_a_directory_of_190_bytes(user: OnSlots, scheduler: Scheduler, bed: Bed) -> None:
    """As YARN's are: longer than the path of a socket may be."""
    deep = Path("/var/tmp") / ("d" * 141) / ("e" * 39)
    assert len(bytes(deep)) == 190
    for host in bed.hosts:
        host.path(deep).mkdir(parents=True)
    scheduler.env["TMPDIR"] = str(deep)
    viewer = attached(user)
    assert scheduler.slot("s0").told["directory"].startswith(f"{deep}/")
    assert "trains" in user.run("logs").ran().out
    assert "trainer.py:11 in <module>" in user.run("stacks").ran().out
    scheduler.take_back("s0")
    viewer.done().ran(75)


def test_a_lost_evaluator_is_missed_by_nobody(user: OnSlots, scheduler: Scheduler, shared: Path) -> None:
    script = user.script("""
        import os, time
        print("trains", flush=True)
        while not os.path.exists(os.environ["OUT"] + "/enough"):
            time.sleep(0.05)
    """)
    words = (user.slots(), script, "--ps=0", "--workers=1", "--evaluator", f"--env=OUT={shared}")
    with user.start("run", *words) as running:
        running.wait_for("trains", 2)
        scheduler.take_back("s1")
        running.wait_for("the run goes on without host2-s1")
        until(lambda: scheduler.slot("s1").process.poll() is not None, "the end of that slot")
        (shared / "enough").touch()
        running.done().ran()


def test_what_an_engine_tells_everybody_is_left_to_the_holder(user: OnSlots, scheduler: Scheduler) -> None:
    """Some engines send their TERM to all that they find: agent, guard, and what holds the channel open."""
    words = (user.slots("1", grace="10"), user.script(SAVES), "--ps=0", "--workers=1")
    with user.start("run", *words) as running:
        running.wait_for("trains in attempt 0 []")
        agents = [each for each in user.leftovers() if each.is_agent]
        assert len(agents) > 1
        for each in agents:
            each.kill(signal.SIGTERM)
        scheduler.take_back("s0")
        done = running.done().ran(75)
    assert f"host1-s0 was taken back: {WHY['term']}" in done.sentences
    assert saved(user) == ["worker-0"]


def test_a_slot_that_is_taken_back_while_a_run_starts_is_told_as_that(
    user: OnSlots, scheduler: Scheduler, shared: Path
) -> None:
    begun = shared / "begun"
    hosts = user.of_these(setup=[f"touch {begun}", "sleep 600"])
    with user.start("run", hosts, user.script(SAVES), *TASKS) as running:
        until(begun.exists, "the setup of a task")
        scheduler.take_back("s0")
        done = running.done().ran(75)
    assert f"host1-s0 {WHY['term']}" in done.sentences
