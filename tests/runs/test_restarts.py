"""Tasks that fail start again, by the rules that were asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.attempts import log, mine
from tests.support.launcher import Launcher, Running
from tests.support.patience import until

# Ends as $PLAN has it for this attempt ({"worker/1": [3, -9]}: with code 3, then by SIGKILL); later attempts wait
# for $OUT/stop.  With HOARD, its first attempt leaves a process behind that holds on to a file and a port.
PLANNED = """
    import fcntl, json, os, signal, socket, sys, time
    task, attempt = os.environ["TFLAUNCH_TASK"], int(os.environ["TFLAUNCH_ATTEMPT"])
    print("attempt", attempt, flush=True)
    ends = json.loads(os.environ["PLAN"]).get(task, [])
    if task == os.environ.get("HOARD"):
        lock = open(os.environ["OUT"] + "/lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = socket.socket()
        port = os.environ["OUT"] + "/port"
        holder.bind(("127.0.0.1", int(open(port).read()) if os.path.exists(port) else 0))
        holder.listen()
        with open(port, "w") as file:
            file.write(str(holder.getsockname()[1]))
        if attempt == 0 and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(600)
            os._exit(0)
    if attempt < len(ends):
        if ends[attempt] < 0:
            os.kill(os.getpid(), -ends[attempt])
        sys.exit(ends[attempt])
    while not os.path.exists(os.environ["OUT"] + "/stop"):
        time.sleep(0.02)
"""


def planned(
    launcher: Launcher, out: Path, plan: dict[str, list[int]], *words: str, hosts: int = 3
) -> Running:
    """A run of 1 ps and 2 workers that end so."""
    script = launcher.script(PLANNED)
    env = (f"--env=OUT={out}", f"--env=PLAN={json.dumps(plan)}")
    given = ("--ps=1", "--workers=2", "--grace=0.5", "--ps-grace=0.2", *env, *words)
    return launcher.start("run", launcher.local(hosts), script, *given)


def test_back_off_grows_and_every_attempt_can_be_seen(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [3, -9]}, "--restarts=2") as run:
        run.wait_for("worker/1 │ attempt 2")
        told = json.loads(launcher.run("status", "--json").ran().out)
        [task] = [each for each in told["tasks"] if each["task"] == "worker/1"]
        assert (task["state"], task["attempts"]) == ("running", 3)
        [listed] = json.loads(launcher.run("ps", "--json").ran().out)["runs"]
        assert [each["attempts"] for each in listed["tasks"] if each["task"] == "worker/1"] == [3]
        shown = launcher.run("status").ran().out
        assert re.search(r"worker/1 +local\d +1 .*exit code 3 .*worker-1\.log", shown)
        assert re.search(r"worker/1 +local\d +2 .*SIGKILL .*worker-1\.1\.log", shown)
        (out / "stop").touch()
        done = run.done().ran()
    assert re.search(r"worker/1 on local\d exited with code 3 .* in 1 s \(restart 1 of 2\)", done.err)
    assert re.search(r"worker/1 on local\d was killed by SIGKILL .* in 2 s \(restart 2 of 2\)", done.err)
    assert "runs again (attempt 3)" in done.err
    assert [log(launcher, "worker/1", attempt) for attempt in range(3)] == [
        f"attempt {attempt}\n" for attempt in range(3)
    ]


def test_what_the_program_itself_ends_with_is_not_retryable(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [-9, 3]}, "--restarts=5", "--restart-on=retryable") as run:
        done = run.done().ran(3)
    assert "(restart 1 of 5)" in done.err
    assert "(restart 2 of 5)" not in done.err
    assert re.search(r"worker/1 on local\d exited with code 3", done.err)


def test_the_budget_is_used_up(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [4, 5]}, "--restarts=1") as run:
        done = run.done().ran(5)
    assert "worker/1 was started again once (--restarts 1); no more" in done.err


def test_failures_outside_the_window_do_not_count(launcher: Launcher, out: Path) -> None:
    plan = {"worker/1": [4, 5]}
    with planned(launcher, out, plan, "--restarts=1", "--restart-window=0.2s") as run:
        run.wait_for("worker/1 │ attempt 2")
        assert run.err.count("it starts again in 1 s (restart 1 of 1)") == 2
        (out / "stop").touch()
        assert run.end() == 0


def test_each_job_has_its_policy(launcher: Launcher, out: Path) -> None:
    plan = {"ps/0": [6], "worker/1": [4]}
    with planned(launcher, out, {"ps/0": [6]}, "--restarts=3", "--restart=worker=task,ps=never") as run:
        assert run.end() == 6
    words = ("--restarts=3", "--restart=ps=task", "--restart=worker=cluster", "--evaluator")
    with planned(launcher, out, plan, *words) as run:
        run.wait_for("are stopped and start again")
        until(lambda: re.search(r"worker/0 +│ attempt [12]", run.out), "worker/0 to start again, too")
        assert "all tasks but evaluator/0 are stopped" in run.err  # it is beside the cluster
        assert re.findall(r"evaluator/0 │ attempt (.)", run.out) == ["0"]
        (out / "stop").touch()
        assert run.end() == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--restarts=1", "--restart=often"], "--restart often: not POLICY or JOB=POLICY"),
        (["--restarts=1", "--restart=ps=task,wroker=task"], "a job is ps, worker, chief"),
        (["--restart=task"], "--restart task without --restarts: nothing starts again"),
    ],
)
def test_policies_that_mean_nothing_are_refused(
    launcher: Launcher, out: Path, words: list[str], sentence: str
) -> None:
    with planned(launcher, out, {}, *words) as run:
        assert sentence in run.done().ran(2).sentences


@pytest.mark.parametrize("policy", ["task", "cluster"])
def test_what_an_attempt_left_behind_is_gone_before_the_next(
    launcher: Launcher, out: Path, policy: str
) -> None:
    words = ("--restarts=1", f"--restart={policy}", "--env=HOARD=worker/1")
    with planned(launcher, out, {"worker/1": [3]}, *words) as run:
        run.wait_for("worker/1 │ attempt 1")
        until(lambda: mine(launcher, "worker/1"), "its second attempt")
        (out / "stop").touch()
        done = run.done().ran()  # it could take the lock and the port
    assert "(restart 1 of 1)" in done.err


@pytest.mark.parametrize("detached", [False, True])
def test_a_last_attempt_that_writes_nothing_is_not_waited_for(
    launcher: Launcher, out: Path, detached: bool
) -> None:
    script = launcher.script("""
        import os, sys
        if os.environ["TFLAUNCH_ATTEMPT"] == "0":
            print("once")
            sys.exit(3)
    """)
    words = ("--ps=0", "--workers=1", "--restarts=1", *(["-d"] if detached else []))
    done = launcher.run("run", launcher.local(1), script, *words).ran()
    if detached:
        [run] = re.findall(r"(\S+) goes on by itself", done.err)
        done = launcher.run("attach", run).ran()
    assert done.out.count("once") == 1
    assert "more bytes of its log" not in done.err


def test_ctrl_c_while_a_restart_waits(launcher: Launcher, out: Path) -> None:
    with planned(launcher, out, {"worker/1": [1, 1, 1]}, "--restarts=3") as run:
        run.wait_for("it starts again in 4 s")
        run.interrupt()
        done = run.done().ran(130)
    assert "stopping 2 tasks" in done.err
    assert not log(launcher, "worker/1", 3)
