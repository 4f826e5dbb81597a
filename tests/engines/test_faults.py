"""What befalls slots: taken back with a time to save and without, nodes that fail, processes that are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engines.conftest import OnSlots
from tests.support.bed import Bed
from tests.support.patience import until
from tests.support.scheduler import Scheduler

TRAINER = """
    import os, signal, sys, time
    def save(*_):
        print("saved by attempt", os.environ["TFLAUNCH_ATTEMPT"], flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "of", os.environ["TFLAUNCH_TASK"], flush=True)
    time.sleep(float(sys.argv[1]))
    print("ends", flush=True)
"""
TASKS = ("--ps", "0", "--workers", "2", "--no-flags")


def test_a_slot_that_is_taken_back_has_every_task_save(
    user: OnSlots, scheduler: Scheduler, door: Mapping[str, str]
) -> None:
    with user.start(
        "run", user.slots(grace="10", **door), user.script(TRAINER), *TASKS, "--", "90"
    ) as running:
        running.wait_for("attempt 0 of", 2)
        scheduler.take_back("s0")
        done = running.done().ran(75)
    assert done.out.count("saved by attempt 0") == 2
    assert "the engine ends this slot (SIGTERM)" in done.sentences
    assert "nothing is left running" in done.sentences
    listed = user.run("ps", "-a", "--json").ran()
    (run,) = json.loads(listed.out)["runs"]
    assert run["outcome"]["exit_code"] == 75


def test_who_attaches_follows_a_run_to_its_next_slots(user: OnSlots, scheduler: Scheduler) -> None:
    words = (*TASKS, "--restarts", "1", "--name", "moving", "--", "12")
    with user.start("run", user.slots(grace="10"), user.script(TRAINER), *words) as running:
        running.wait_for("attempt 0 of", 2)
        with user.start("attach", "moving") as attached:
            attached.wait_for("attempt 0 of", 2)
            scheduler.take_back("s0")
            assert attached.done().ran().out.count("ends") == 2
        assert running.end() == 0, running.err


def test_why_a_detached_run_could_not_start_is_on_record(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.never = "there is no such partition"
    done = user.run("run", user.slots(), user.script(TRAINER), *TASKS, "-d", "--", "9").ran()
    run = done.out.strip()
    until(lambda: "there is no such partition" in user.run("status", run).out, "the reason in status")
    listed = json.loads(user.run("ps", "-a", "--json").ran().out)["runs"]
    assert [(each["state"], each["outcome"]["exit_code"]) for each in listed] == [("failed", 65)]


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_how_a_detached_run_has_ended_is_known_once_its_slots_are_over(
    user: OnSlots, scheduler: Scheduler, code: int, state: str
) -> None:
    script = user.script(f"import sys; sys.exit({code})")
    done = user.run("run", user.slots(), script, *TASKS, "-d").ran()
    until(lambda: len(scheduler.slots) == 2, "its slots")
    scheduler.wait_until_free()
    assert {slot.process.poll() for slot in scheduler.slots.values()} == {code}
    until(lambda: state in user.run("status", done.out.strip()).out, "its end")
    assert user.run("attach", done.out.strip()).code == code


def test_how_a_run_has_ended_whose_launcher_was_killed_is_not_known(
    user: OnSlots, scheduler: Scheduler
) -> None:
    words = (*TASKS, "--lease", "5", "--", "60")
    with user.start("run", user.slots(idle="1"), user.script(TRAINER), *words) as running:
        running.wait_for("attempt 0 of", 2)
        running.signal(signal.SIGKILL)
        running.end()
    scheduler.wait_until_free()
    assert {slot.process.poll() for slot in scheduler.slots.values()} == {76}
    assert "not known here" in user.run("status").out


def test_a_run_whose_launcher_was_killed_is_stopped_from_another_machine(
    user: OnSlots, scheduler: Scheduler
) -> None:
    with user.start("run", user.slots(), user.script(TRAINER), *TASKS, "--", "60") as running:
        running.wait_for("attempt 0 of", 2)
        running.signal(signal.SIGKILL)
        running.end()
    elsewhere = {"TFLAUNCH_STATE": str(user.directory / "elsewhere")}
    there = f"plain:at={scheduler.directory}"
    assert "is stopped" in user.run("stop", "-H", there, env=elsewhere).ran().sentences
    scheduler.wait_until_free()
    assert "stopped" in user.run("ps", "-a").ran().out


def test_with_restarts_slots_are_taken_again(user: OnSlots, scheduler: Scheduler) -> None:
    words = (*TASKS, "--restarts", "1", "--", "12")
    with user.start("run", user.slots(grace="10"), user.script(TRAINER), *words) as running:
        running.wait_for("attempt 0 of", 2)
        scheduler.take_back("s1")
        done = running.done().ran()
    assert done.out.count("saved by attempt 0") == 2
    assert done.out.count("attempt 1 of") == 2
    assert done.out.count("ends") == 2
    assert len(scheduler.requests()) == 2
    assert all(map(scheduler.released, scheduler.requests()))


@pytest.mark.parametrize("swept", [True, False], ids=["swept", "not swept"])
def test_a_node_that_fails_is_told_in_the_engines_words(
    user: OnSlots, scheduler: Scheduler, swept: bool, door: Mapping[str, str]
) -> None:
    with user.start(
        "run", user.slots(**door), user.script(TRAINER), *TASKS, "--lease", "8", "--", "90"
    ) as running:
        running.wait_for("attempt 0 of", 2)
        scheduler.lose("s0", "node host1 has failed", swept=swept)
        code = running.end()
    said = " ".join(running.err.split())
    assert code in ((75,) if swept else (75, 76)), running.err
    assert "node host1 has failed" in said or "the slot holder is gone" in said
    assert running.out.count("saved by attempt 0") >= 1


COPIES = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    attempt = int(os.environ["TFLAUNCH_ATTEMPT"])
    print("attempt", attempt, flush=True)
    for _ in range(20 if attempt else 100_000):
        with open(os.environ["OUT"] + "/" + os.environ["TFLAUNCH_TASK"].replace("/", "-"), "a") as out:
            print(attempt, file=out)
        time.sleep(0.05)
"""


def test_no_task_runs_twice_where_a_slot_is_gone_whose_agent_lives(
    user: OnSlots, scheduler: Scheduler, bed: Bed, shared: Path
) -> None:
    """The engine gives up a node that it cannot reach: the agent there ends its tasks when its lease is over."""
    words = (*TASKS, "--restarts", "1", "--lease", "30", "--grace", "1", f"--env=OUT={shared}")
    with user.start("run", user.slots(), user.script(COPIES), *words) as running:
        running.wait_for("attempt 0", 2)
        bed.cut(bed.launcher, bed.hosts[1])
        scheduler.give_up("s1", "node host2 does not answer")
        running.wait_for("s, when its tasks have certainly ended there")
        bed.heal()
        running.done().ran()
    for task in ("worker-0", "worker-1"):
        attempts = (shared / task).read_text().split()
        assert attempts == sorted(attempts)
        assert {*attempts} == {"0", "1"}


def test_doors_that_a_firewall_closes_do_not_keep_the_end(
    user: OnSlots, scheduler: Scheduler, bed: Bed
) -> None:
    words = (*TASKS, "--lease", "20", "--", "90")
    with user.start("run", user.slots(grace="10"), user.script(TRAINER), *words) as running:
        running.wait_for("attempt 0 of", 2)
        for host in bed.hosts:
            bed.cut(bed.launcher, host)
        scheduler.take_back("s0")
        scheduler.take_back("s1")
        until(lambda: scheduler.slot("s0").process.poll() is not None, "the end of the slot")
        until(lambda: scheduler.slot("s1").process.poll() is not None, "the end of the slot")
        assert running.end() in (75, 76), running.err
    said = " ".join(running.err.split())
    assert "the slot has ended with 75" in said, running.err


@pytest.mark.parametrize("whom", ["agent", "guard", "both"])
def test_kill_of_what_tflaunch_has_in_a_slot(
    user: OnSlots, scheduler: Scheduler, whom: str, bed: Bed, door: Mapping[str, str]
) -> None:
    slots = user.slots(idle="1", **door)
    with user.start("run", slots, user.script(TRAINER), *TASKS, "--lease", "5", "--", "6") as running:
        running.wait_for("attempt 0 of", 2)
        agents = [each for each in bed.hosts[0].processes() if each.is_agent and "start" in each.words]
        assert agents
        for agent in agents:
            guard = any(child.pid for child in agents if _parent(child.pid) == agent.pid)
            if whom == "both" or (whom == "guard") == guard:
                agent.kill()
        code = running.end()
        assert code in (0, 75, 76), running.err
    scheduler.wait_until_free()
    until(lambda: not user.leftovers(), "nothing is left")


def test_a_detached_run_whose_slot_is_taken_back_says_so_to_who_attaches(
    user: OnSlots, scheduler: Scheduler, door: Mapping[str, str]
) -> None:
    words = (*TASKS, "-d", "--name", "alone", "--", "90")
    user.run("run", user.slots(grace="10", **door), user.script(TRAINER), *words).ran()
    until(lambda: "2/2" in user.run("ps").out, "both tasks")
    with user.start("attach", "alone") as attached:
        attached.wait_for("attempt 0 of", 2)
        scheduler.take_back("s1")
        assert attached.end() == 75, attached.err
    assert attached.out.count("saved by attempt 0") == 2
    scheduler.wait_until_free()
    assert "taken back" in user.run("status", "alone").ran().sentences + user.run("status", "alone").out


def test_no_secret_is_in_words_or_environments(user: OnSlots, scheduler: Scheduler, bed: Bed) -> None:
    with user.start("run", user.slots(), user.script(TRAINER), *TASKS, "--json", "--", "4") as running:
        running.wait_for("attempt 0 of", 2)
        record = next(user.state.glob("trainer-*/run.json"))
        hosts = json.loads(record.read_text())["hostfile"]["hosts"]
        token = hosts[0]["slot"]["token"]
        assert record.stat().st_mode & 0o77 == 0
        for host in bed.hosts:
            for process in host.processes():
                assert not any(token in word for word in process.words)
                assert token not in "".join(process.env.values())
        assert running.end() == 0
        assert token not in running.out + running.err
    shown = [user.run("status", "--json"), user.run("ps", "-a", "--json")]
    assert not any(token in each.out for each in shown)


def _parent(pid: int) -> int:
    from tests.support.launcher import parents

    return parents(pid)
