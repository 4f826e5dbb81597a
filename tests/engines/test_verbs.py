"""What verbs bring here from slots, and sweeps that go on: the files of a run end with its slots."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.engines.conftest import OnSlots
from tests.support.directories import files
from tests.support.launcher import Process
from tests.support.patience import until
from tests.support.scheduler import Scheduler

WRITES = """
    import os, time
    open("made.txt", "w").write("by " + os.environ["TFLAUNCH_TASK"])
    print("written", flush=True)
    while not os.path.exists(os.environ["OUT"] + "/end"):
        time.sleep(0.1)
    open("later.txt", "w").write("at the end")
"""
TRIAL = """
    import os, sys, time
    trial = os.environ["TFLAUNCH_TRIAL"]
    with open(os.environ["OUT"] + "/began", "a") as file:
        file.write(trial + "\\n")
    print("loss", trial, flush=True)
    while trial != "0" and not any(os.path.exists(os.environ["OUT"] + name) for name in ("/go", "/go-" + trial)):
        time.sleep(0.1)
"""
OF_BOTH = {"host1-s0/made.txt": "by worker/0", "host2-s1/made.txt": "by worker/1"}


def test_files_come_while_a_run_goes_on_and_at_its_end(
    user: OnSlots, shared: Path, door: Mapping[str, str]
) -> None:
    options = ("--ps=0", "--workers=2", "--no-flags", f"--env=OUT={shared}", "--fetch=*.txt")
    with user.start("run", user.slots(**door), user.script(WRITES), *options) as running:
        running.wait_for("written", 2)
        run = running.run_id
        now = user.directory / "now"
        user.run("fetch", run, "*.txt", "--to", now).ran()
        assert {name: (now / name).read_text() for name in files(now)} == OF_BOTH
        (shared / "end").touch()
        running.done().ran()
    user.scheduler.wait_until_free()
    there = user.code / run
    assert {*files(there)} == {*OF_BOTH, "later.txt"}
    assert (there / "later.txt").read_text() == "at the end"
    gone = user.run("fetch", run)
    assert gone.code not in (0, 1), gone.err
    assert "slot" in gone.sentences


def test_a_sweep_goes_on_on_new_slots(user: OnSlots, scheduler: Scheduler, shared: Path) -> None:
    began = shared / "began"

    def trials() -> list[str]:
        return sorted(began.read_text().split()) if began.exists() else []

    options = ("--grid=x=1,2,3", "--metric=loss", f"--env=OUT={shared}", "--name=lab", "--lease=5")
    with user.start("sweep", user.slots(idle="1"), user.script(TRIAL), *options) as first:
        until(lambda: trials() == ["0", "1", "2"], "all trials")
        [record] = user.state.glob("lab-*")
        until((record / "results.jsonl").exists, "the first result")
        first.signal(signal.SIGKILL)
        first.end()
    scheduler.wait_until_free()
    (shared / "go").touch()
    done = user.run("sweep", "--resume=lab", f"--env=OUT={shared}").ran()
    assert "1 of them done before" in done.sentences
    assert trials() == ["0", "1", "1", "2", "2"]
    results = [json.loads(line) for line in (record / "results.jsonl").read_text().splitlines()]
    assert sorted(each["trial"] for each in results) == [0, 1, 2]
    assert len(scheduler.requests()) == 2
    assert scheduler.released(scheduler.slot("s0").job)


def test_trials_that_succeed_after_the_launchers_kill_count(
    user: OnSlots, scheduler: Scheduler, shared: Path
) -> None:
    """As long as their slots are there: whoever goes on with the sweep looks into those before it gives them back."""
    began = shared / "began"
    options = ("--grid=x=1,2,3", "--metric=loss", f"--env=OUT={shared}", "--name=lab")
    with user.start("sweep", user.slots(), user.script(TRIAL), *options) as first:
        until(lambda: began.exists() and len(began.read_text().split()) == 3, "all trials")
        [record] = user.state.glob("lab-*")
        until((record / "results.jsonl").exists, "the first result")
        first.signal(signal.SIGKILL)
        first.end()
    (shared / "go-1").touch()
    until(lambda: not of_trial(user, "1"), "the end of a trial that nobody sees")
    [before] = scheduler.requests()
    with user.start("sweep", "--resume=lab", f"--env=OUT={shared}") as second:
        second.wait_for("trial/1 succeeded while no launcher was alive, and counts")
        (shared / "go").touch()
        second.done().ran()
    assert sorted(began.read_text().split()) == ["0", "1", "2", "2"]
    assert scheduler.released(before)
    results = [json.loads(line) for line in (record / "results.jsonl").read_text().splitlines()]
    assert {each["trial"]: each["metric"] for each in results if each["status"] == "succeeded"} == {
        0: 0.0,
        1: 1.0,
        2: 2.0,
    }


def of_trial(user: OnSlots, number: str) -> list[Process]:
    """The processes of a trial, in whichever slot."""
    return [each for each in user.leftovers() if each.env.get("TFLAUNCH_TRIAL") == number]
