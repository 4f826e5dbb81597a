"""Runs on slots that an engine gives: every verb, by both ways into a slot."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engines.conftest import OnSlots
from tests.runs.test_short_trials import TRIAL as FORKED
from tests.support.bed import Bed
from tests.support.gpus_lab import Terminal
from tests.support.launcher import alive, processes
from tests.support.patience import until
from tests.support.scheduler import Scheduler

COUNT = """
    import os, signal, sys, time
    def save(*_):
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("begins", os.environ["TFLAUNCH_TASK"], *sorted(name for name in os.environ if "SLOT" in name), flush=True)
    print("x" * 200_000)
    open("made.txt", "w").write("by " + os.environ["TFLAUNCH_TASK"])
    time.sleep(float(sys.argv[1]))
    print("ends", flush=True)
"""
TRIAL = "import sys; print('loss', float(sys.argv[1].partition('=')[2]) / 2)"
SEARCH = ("--metric", "loss", "--name", "search")
TASKS = ("--ps", "0", "--workers", "2", "--no-flags")


def test_a_run_has_its_slots_and_gives_them_back(user: OnSlots, door: Mapping[str, str]) -> None:
    done = user.run("run", user.slots(**door), user.script(COUNT), *TASKS, "--json", "--", "0.1").ran()
    ends = [event for event in done.events if event["event"] == "exited"]
    assert {end["task"]: end["code"] for end in ends} == {"worker/0": 0, "worker/1": 0}
    assert {end["host"] for end in ends} == {"host1-s0", "host2-s1"}
    notes = " ".join(event["text"] for event in done.events if event["event"] == "note")
    assert "the end of the slots removes them; to copy them here next time: --fetch='**'" in notes
    (job,) = user.scheduler.requests()
    assert user.scheduler.released(job)
    user.scheduler.wait_until_free()
    assert not user.run_directories()
    assert "t" in user.run("ps", "-a", "-q").ran().out
    assert "begins worker/1" in user.run("logs", "trainer").ran().out
    assert "succeeded" in user.run("status", "trainer").ran().out
    assert user.run("attach", "trainer").ran().out.count("ends") == 2
    assert user.run("attach").ran().out.count("ends") == 2


def test_roles_have_slots_of_their_own(user: OnSlots) -> None:
    slots = user.slots("ps=1x0+worker=1x0", node="host1")
    done = user.run("run", slots, user.script(COUNT), "--json", "--dry-run", "--", "0").ran()
    plan = json.loads(done.out)
    assert {task["task"]: task["host"] for task in plan["tasks"]} == {
        "ps/0": "host1-s0",
        "worker/0": "host1-s1",
    }


def test_a_hostfile_may_name_an_engine(user: OnSlots, tmp_path: Path) -> None:
    hosts = tmp_path / "slots.yaml"
    at = user.scheduler.directory
    hosts.write_text(
        f"engine: plain\nslots:\n  - {{role: worker, count: 2}}\nsettings: {{at: {at}}}\n"
        "defaults: {env: {GREETING: hello}}\n"
    )
    script = user.script("import os; print(os.environ['GREETING'], os.environ['TFLAUNCH_HOST'])")
    done = user.run("run", hosts, script, "--ps", "0", "--no-flags").ran()
    assert "hello host1-s0" in done.out
    assert "hello host2-s1" in done.out
    hosts.write_text(
        f"engine: plain\nslots:\n  - {{count: 2, nod: host1}}\nsettings: {{at: {at}, odor: x}}\n"
    )
    wrong = user.run("run", hosts, script).ran(2)
    assert "slots.yaml:3:21: nod: plain has no such setting; did you mean node?" in wrong.err
    assert "slots.yaml:4:" in wrong.err
    assert "odor: plain has no such setting; did you mean door?" in wrong.sentences
    hosts.write_text(f"engine: plain\nslots: [{{count: 2}}]\nsettings: {{at: {at}}}\ndefaults:\n  port: 22\n")
    wrong = user.run("run", hosts, script).ran(2)
    assert "slots.yaml:5:3: port: its engine says how a slot is reached" in wrong.err


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("0", "0 slots: want 1 to 10,000"),
        ("2y", "'2y' is not 4 (slots)"),
        ("2,door", "'door' is neither sizes"),
        ("2,dor=tls", "dor: plain has no such setting; did you mean door?"),
        ("2,idle=soon", "idle: 'soon' is not a whole number"),
        ("1+2", "slots without a role: sizes are given twice"),
        (
            "node=2x1",
            "node=2x1 are slots for the role node, which is the name of a setting: write node=VALUE",
        ),
    ],
)
def test_what_is_wrong_with_the_words_is_said_before_the_engine_is_asked(
    user: OnSlots, sizes: str, said: str
) -> None:
    wrong = user.run("run", user.slots(sizes), user.script(COUNT)).ran(2)
    assert said in wrong.sentences
    assert not user.scheduler.requests()


def test_verbs_that_look(user: OnSlots, door: Mapping[str, str]) -> None:
    slots = user.slots(**door)
    check = json.loads(user.run("check", slots, "--no-tensorflow", "--json").ran().out)
    assert check["dials"].keys() == {"host1-s0", "host2-s1"}
    assert not [each for each in check["findings"] if each["level"] == "error"]
    gpus = json.loads(user.run("gpus", slots, "--json").ran().out)
    assert {each["host"] for each in gpus["hosts"]} == {"host1-s0", "host2-s1"}
    user.scheduler.wait_until_free()
    assert len(user.scheduler.requests()) == 2


# Says what it was sent at its port.
CALLED = """
    import json, os, socket
    host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0].rsplit(":", 1)
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("", int(port)))
    server.listen()
    print("step 7 listens", flush=True)
    while True:
        with server.accept()[0] as caller:
            print("called by", caller.recv(24), flush=True)
"""


def test_a_run_is_looked_at_while_it_goes_on(user: OnSlots, door: Mapping[str, str]) -> None:
    words = ("--workers=1", "--ps=0", "--no-flags", "--name=looked")
    with user.start("run", user.slots("1", **door), user.script(CALLED), *words) as run:
        run.wait_for("listens")
        screen = Terminal(user.argv("top", "looked", "--interval=1"), user.env(), columns=80)
        screen.shows(r"looked-\w+ +● 1/1 tasks run")
        screen.shows(r"^>worker/0 +host1-s0 .* \d\.\d\d .* 7 +-$")
        screen.type("q")
        assert screen.end() == 0
        done = user.run("profile", "looked").ran(69)
        assert "worker/0: no TensorFlow server answers at its port" in done.sentences
        run.wait_for("called by b'PRI * HTTP/2.0")
        run.interrupt()
        run.end()
    found = json.loads(user.run("report", "looked", "--json").ran().out)["runs"][0]
    assert found["tasks"][0]["host"] == "host1-s0"


def test_a_run_waits_for_its_slots_and_says_why(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.hold("2 jobs are before it")
    with user.start("run", user.slots(), user.script(COUNT), *TASKS, "--json", "--", "0") as running:
        running.wait_for("2 jobs are before it")
        listed = user.run("ps").ran()
        assert "waiting" in listed.out
        scheduler.late = 1
        scheduler.why = ""
        running.wait_for("the last one is late")
        scheduler.give()
        assert running.end() == 0, running.err


def test_a_request_that_can_never_be_met(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.never = "no node has 2 TiB"
    done = user.run("run", user.slots(), user.script(COUNT)).ran(65)
    assert "no node has 2 TiB" in done.err
    assert user.run("ps").code == 2  # it left no record


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_waits_is_given_up(user: OnSlots, scheduler: Scheduler, number: signal.Signals) -> None:
    scheduler.hold("no node is free")
    with user.start("run", user.slots(), user.script(COUNT)) as running:
        job = scheduler.wait_for_request()
        running.signal(number)
        assert running.end() == 128 + number
    assert scheduler.released(job)


def test_stop_gives_up_a_request_from_another_terminal(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.hold("no node is free")
    with user.start("run", user.slots(), user.script(COUNT), "--name", "early") as running:
        job = scheduler.wait_for_request()
        until(lambda: "waiting" in user.run("ps").out, "the run in ps")
        assert "given up its request" in user.run("stop", "early").ran().sentences
        assert running.end() == 143, running.err
        assert "nothing was started" in running.err
    assert user.run("ps").code == 2  # it left no record
    assert scheduler.released(job)


def test_a_request_that_the_scheduler_cancels(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.hold("no node is free")
    with user.start("run", user.slots(), user.script(COUNT)) as running:
        scheduler.cancel(scheduler.wait_for_request(), "cancelled by uid 0")
        assert running.end() == 75
        assert "cancelled by uid 0" in running.err


def test_a_detached_run_starts_when_its_slots_come(
    user: OnSlots, scheduler: Scheduler, door: Mapping[str, str]
) -> None:
    scheduler.hold("no node is free")
    words = (*TASKS, "--name", "later", "-d", "--", "60")
    done = user.run("run", user.slots(**door), user.script(COUNT), *words).ran()
    run = done.out.strip()
    assert run.startswith("later-")
    assert "starts by itself once its slots are there" in done.sentences
    assert "waiting" in user.run("status", run).ran().out
    scheduler.give()
    until(lambda: "2/2" in user.run("ps").out, "both tasks")
    assert "begins worker/0" in user.run("logs", run, "worker/0").ran().out
    assert "at the same place" in user.run("stacks", run).ran().out
    user.run("fetch", run, "made.txt").ran()
    assert sorted(path.read_text() for path in user.code.rglob("made.txt"))[0] == "by worker/0"
    # Another machine, which has no record and no token.
    elsewhere = {"TFLAUNCH_STATE": str(user.directory / "elsewhere")}
    there = f"plain:at={scheduler.directory}"
    assert run in user.run("ps", there, env=elsewhere).ran().out
    assert "begins worker/1" in user.run("logs", "-H", there, run, env=elsewhere).ran().out
    assert "running" in user.run("status", "-H", there, env=elsewhere).ran().out
    assert "is stopped" in user.run("stop", "-H", there, run, env=elsewhere).ran().sentences
    # What the engine says of the slots tells the first machine that; then nobody needs it any more.
    scheduler.wait_until_free()
    (job,) = scheduler.requests()
    assert not scheduler.released(job)
    assert "stopped" in user.run("ps", "-a").ran().out
    assert scheduler.released(job)


def test_who_attaches_early_follows_a_run_that_starts_meanwhile(user: OnSlots, scheduler: Scheduler) -> None:
    """Between two looks at its record it may get its slots and hand over, and its launcher ends."""
    scheduler.hold("no node is free")
    done = user.run("run", user.slots(), user.script(COUNT), *TASKS, "-d", "--", "60").ran()
    launcher = json.loads((user.state / done.out.strip() / "run.json").read_text())["pid"]
    with user.start("attach") as viewer:
        viewer.wait_for("waits for its slots")
        viewer.signal(signal.SIGSTOP)
        scheduler.give()
        until(lambda: not alive(launcher), "the end of its launcher")
        viewer.signal(signal.SIGCONT)
        viewer.wait_for("begins worker/0")
        user.run("stop").ran()
        assert viewer.end() == 143


def test_the_waiting_process_of_a_detached_run_may_die(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.hold("no node is free")
    done = user.run("run", user.slots(idle="2"), user.script(COUNT), *TASKS, "-d", "--", "9").ran()
    record = user.state / done.out.strip() / "run.json"
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    listed = json.loads(user.run("ps", "--json").ran().out)["runs"]
    assert [each["state"] for each in listed] == ["waiting"]
    user.run("stop").ran()
    assert all(map(scheduler.released, scheduler.requests()))


def test_clean_gives_back_what_a_killed_launcher_has_asked_for(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.hold("no node is free")
    with user.start("run", user.slots(), user.script(COUNT), *TASKS, "--name", "lost", "--", "9") as running:
        job = scheduler.wait_for_request()
        until(lambda: "waiting" in user.run("ps").out, "the run in ps")
        running.signal(signal.SIGKILL)
        running.end()
    cleaned = user.run("clean", "--yes", "lost")
    assert scheduler.released(job), cleaned.err + cleaned.out


def test_two_runs_with_hosts_of_equal_names(user: OnSlots, scheduler: Scheduler) -> None:
    for count, name in enumerate(("one", "two"), 1):
        words = (*TASKS, "--name", name, "-d", "--", "60")
        user.run("run", user.slots(), user.script(COUNT), *words).ran()
        until(lambda count=count: user.run("ps").out.count("2/2") == count, f"the tasks of {name}")
    listed = user.run("ps").ran().out
    assert "one-" in listed
    assert "two-" in listed
    user.run("stop", "one").ran()
    until(lambda: "2/2" in user.run("ps").out, "the other run, untouched")
    assert "two-" in user.run("ps").ran().out
    # The slots of the first have ended: nothing fails for that.
    until(
        lambda: sum(slot.process.poll() is None for slot in scheduler.slots.values()) == 2, "its slots' end"
    )
    assert user.run("ps").ran().out.count("2/2") == 1
    user.run("stop").ran()


def test_kill_of_the_launcher_frees_the_slots(
    user: OnSlots, scheduler: Scheduler, door: Mapping[str, str]
) -> None:
    slots = user.slots(idle="1", **door)
    with user.start("run", slots, user.script(COUNT), *TASKS, "--lease", "5", "--", "60") as running:
        running.wait_for("begins worker/1")
        running.signal(signal.SIGKILL)
        running.end()
    scheduler.wait_until_free()
    assert "no run is alive" in user.run("ps").ran().sentences


def test_kill_of_a_wire_is_no_end(
    user: OnSlots, scheduler: Scheduler, bed: Bed, door: Mapping[str, str]
) -> None:
    with user.start("run", user.slots(**door), user.script(COUNT), *TASKS, "--", "8") as running:
        running.wait_for("begins worker/1")
        told = [scheduler.slot(name).told for name in ("s0", "s1")]
        if door:  # the command in the slot has the stream itself: nobody misses the relay
            sockets = {each["socket"] for each in told}
            relays = [each for each in processes() if sockets.intersection(each.words)]
            relays = [each for each in relays if each.words[1:2] == ("-c",)]
            assert len(relays) == 2
            for relay in relays:
                relay.kill()
        else:
            for each, host in zip(told, bed.hosts, strict=True):
                host.do("ss", "-K", "state", "established", f"sport = :{each['port']}")
            running.wait_for(" is back after", 2)
        assert running.end() == 0, running.err
        assert running.out.count("ends") == 2


def test_a_sweep_has_its_slots_and_gives_them_back(user: OnSlots, door: Mapping[str, str]) -> None:
    words = ("--grid=lr=1,2,3,4,5,6", "--metric=forked", "--maximize", "--preload=xmlrpc.client")
    done = user.run("sweep", user.slots(**door), user.script(FORKED), *words).ran()
    forked = {int(row.split()[1]): row.split()[0] for row in done.out.splitlines()[1:]}
    assert len(forked) == 6
    assert forked[5] == "1", "the last one; the first of each slot is not"
    assert all(map(user.scheduler.released, user.scheduler.requests()))


def test_a_detached_sweep_leaves_the_terminal_once_the_scheduler_has_its_request(
    user: OnSlots, scheduler: Scheduler
) -> None:
    scheduler.hold("no node is free")
    words = ("--grid", "lr=1,2", *SEARCH, "--detach")
    sweep = user.run("sweep", user.slots(), user.script(TRIAL), *words).ran().out.strip()
    assert "waiting" in user.run("status", sweep).ran().out
    scheduler.give()
    until(lambda: "succeeded" in user.run("ps", "-a").out, "both trials")
    (job,) = scheduler.requests()
    until(lambda: scheduler.released(job), "its slots given back")
    # One that goes on leaves again.
    scheduler.hold("no node is free")
    words = ("--grid", "lr=1,2,3", *SEARCH, "--detach")
    assert user.run("sweep", user.slots(), user.script(TRIAL), *words).ran().out.strip() == sweep
    scheduler.give()
    results = user.state / sweep / "results.jsonl"
    until(lambda: len(results.read_text().splitlines()) == 3, "the third trial")


def test_why_a_detached_sweep_could_not_start_is_on_record(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.hold("no node is free")
    done = user.run("sweep", user.slots(), user.script(TRIAL), "--grid", "lr=1,2", *SEARCH, "--detach").ran()
    scheduler.cancel(scheduler.wait_for_request(), "cancelled by uid 0")
    until(lambda: "cancelled by uid 0" in user.run("status", done.out.strip()).out, "the reason in status")


def test_stop_gives_the_slots_of_a_sweep_back(user: OnSlots, scheduler: Scheduler) -> None:
    script = user.script("import time; print('begins', flush=True); time.sleep(60)")
    words = ("--grid", "lr=1,2", "--name", "search")
    with user.start("sweep", user.slots(idle="60"), script, *words) as running:
        until(lambda: "running" in user.run("ps").out, "a trial")
        user.run("stop", "search").ran()
        assert running.end() in (1, 143), running.err
    assert all(map(scheduler.released, scheduler.requests()))


@pytest.mark.parametrize("verb", [("stop", "search"), ("clean", "--yes", "search")], ids=["stop", "clean"])
def test_the_request_of_a_killed_sweep_is_given_back(
    user: OnSlots, scheduler: Scheduler, verb: tuple[str, ...]
) -> None:
    scheduler.hold("no node is free")
    with user.start("sweep", user.slots(), user.script(TRIAL), "--grid", "lr=1,2", *SEARCH) as running:
        job = scheduler.wait_for_request()
        until(lambda: "waiting" in user.run("ps").out, "the sweep in ps")
        running.signal(signal.SIGKILL)
        running.end()
    assert "waiting" in user.run("ps").ran().out
    done = user.run(*verb)
    assert scheduler.released(job), done.err + done.out


def test_stop_gives_up_the_request_of_a_sweep(user: OnSlots, scheduler: Scheduler) -> None:
    """One that goes on is afterwards what it was before."""
    script = user.script(TRIAL)

    def stopped(grid: str) -> None:
        scheduler.hold("no node is free")
        with user.start("sweep", user.slots(), script, "--grid", grid, *SEARCH) as running:
            until(lambda: "waiting" in user.run("ps").out, "the sweep in ps")
            assert "given up its request" in user.run("stop", "search").ran().sentences
            assert running.end() == 143, running.err

    stopped("lr=1,2")
    assert user.run("ps").code == 2  # it left no record
    scheduler.give()
    user.run("sweep", user.slots(), script, "--grid", "lr=1,2", *SEARCH).ran()
    stopped("lr=1,2,3")
    assert "succeeded" in user.run("status", "search").ran().out
    scheduler.give()
    done = user.run("sweep", user.slots(), script, "--grid", "lr=1,2,3", *SEARCH).ran()
    assert "1 trial" in done.sentences
    assert all(map(scheduler.released, scheduler.requests()))


def test_a_sweep_that_goes_on_gives_back_what_a_killed_launcher_has_asked_for(
    user: OnSlots, scheduler: Scheduler
) -> None:
    scheduler.hold("no node is free")
    words = ("sweep", user.slots(), user.script(TRIAL), "--grid", "lr=1,2", *SEARCH)
    with user.start(*words) as running:
        job = scheduler.wait_for_request()
        until(lambda: "waiting" in user.run("ps").out, "the sweep in ps")
        running.signal(signal.SIGKILL)
        running.end()
    scheduler.give()
    user.run(*words).ran()
    assert scheduler.released(job)
    listed = json.loads(user.run("ps", "-a", "--json").ran().out)["runs"]
    assert [each["state"] for each in listed] == ["succeeded"]


def test_the_engine_knows_a_sweep_by_the_name_of_its_record(user: OnSlots, scheduler: Scheduler) -> None:
    scheduler.hold("no node is free")
    with user.start("sweep", user.slots(), user.script(TRIAL), "--grid", "lr=1,2", *SEARCH) as running:
        job = scheduler.wait_for_request()
        asked = json.loads((scheduler.directory / "requests" / f"{job}.json").read_text())
        assert asked["run"].startswith("search-")
        running.interrupt()
        assert running.end() == 130
