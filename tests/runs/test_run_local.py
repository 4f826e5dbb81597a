"""`tflaunch run` on hosts that are all this machine: how a run ends, and what of its logs is seen."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.launcher import TELL, Launcher, alive, told
from tests.support.patience import PATIENCE_S, until
from tflaunch.lifecycle.links import SILENCE_S

QUICK = ("--grace", "2", "--ps-grace", "0.2")


# ---- how a run ends


def test_ps_are_stopped_when_the_workers_have_succeeded(launcher: Launcher, out: Path) -> None:
    done = launcher.run(
        "run",
        launcher.local(),
        launcher.script(TELL),
        "--ps=2",
        "--workers=2",
        f"--env=OUT={out}",
        "--json",
        *QUICK,
    ).ran()

    report = done.events[-1]
    exits = {exit["task"]: exit for exit in report["exits"]}
    assert {task: (exit["code"], exit["signal"], exit["stopped"]) for task, exit in exits.items()} == {
        "ps/0": (None, "SIGTERM", True),
        "ps/1": (None, "SIGTERM", True),
        "worker/0": (0, None, False),
        "worker/1": (0, None, False),
    }
    assert report["event"], report["status"] == ("report", "succeeded")
    assert not report["survivors"]
    assert not report["unverified"]
    assert sorted(told(out)) == sorted(exits)
    assert len({task.host for task in told(out).values()}) == 4
    launcher.wait_until_nothing_is_left()
    assert list(launcher.hosts.rglob("agent.sock")) == []


def test_a_ps_that_ends_by_itself_in_its_grace_is_not_killed(launcher: Launcher, out: Path) -> None:
    trainer = launcher.script(
        """
        import os, pathlib, time
        out = pathlib.Path(os.environ["OUT"])
        if os.environ["TFLAUNCH_TASK"] == "worker/0":
            (out / "queue").touch()
        else:
            while not (out / "queue").exists():
                time.sleep(0.01)
            time.sleep(0.3)  # the worker's exit is known long since
            (out / "ended").write_text("properly")
        """
    )
    done = launcher.run(
        "run",
        launcher.local(2),
        trainer,
        "--ps=1",
        "--workers=1",
        f"--env=OUT={out}",
        "--json",
        "--ps-grace=60",
    ).ran()
    assert (out / "ended").read_text() == "properly"
    exits = {exit["task"]: exit for exit in done.events[-1]["exits"]}
    assert (exits["ps/0"]["code"], exits["ps/0"]["stopped"]) == (0, False)


def test_the_first_failure_ends_the_run_and_comes_first(launcher: Launcher) -> None:
    trainer = launcher.script(
        """
        import os, signal, sys, time
        task = os.environ["TFLAUNCH_TASK"]
        def told_to_end(*_):
            print("worker/0 fails too")
            sys.exit(9)
        signal.signal(signal.SIGTERM, told_to_end)
        if task != "worker/1":
            signal.pause()
        for number in range(100):
            print("step", number)
        sys.exit("no more data")
        """
    )
    done = launcher.run("run", launcher.local(), trainer, "--ps=1", "--workers=2", *QUICK).ran(1)
    first, _, _ = done.err.partition("its whole log")
    assert re.search(r"^✗ worker/1 on local\d exited with code 1", first, re.MULTILINE)
    tail = re.findall(r"│ (.*?) *$", first, re.MULTILINE)
    assert tail == [f"step {number}" for number in range(71, 100)] + ["no more data"]
    assert "worker/0" not in first.partition("training")[2]
    assert "nothing is left running" in done.err.splitlines()[-2]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_is_128_and_its_number(launcher: Launcher, number: signal.Signals) -> None:
    trainer = launcher.script(f"import os; print('here'); os.kill(os.getpid(), {int(number)})")
    done = launcher.run("run", launcher.local(1), trainer, "--workers=1", "--ps=0", *QUICK).ran(128 + number)
    assert number.name in done.err


def test_the_code_is_the_tasks_own(launcher: Launcher) -> None:
    trainer = launcher.script("import sys; sys.exit(77)")
    launcher.run("run", launcher.local(1), trainer, "--workers=1", "--ps=0", *QUICK).ran(77)


WAITS = """
    import os, pathlib, signal, time
    task, out = os.environ["TFLAUNCH_TASK"], pathlib.Path(os.environ["OUT"])
    (out / task.replace("/", "-")).touch()
    if task in os.environ["ENDS"].split(","):
        while len(list(out.iterdir())) < int(os.environ["TASKS"]):
            time.sleep(0.01)
        print(task, "is done")
    else:
        signal.pause()
"""


@pytest.mark.parametrize(
    ("done", "ends", "stopped"),
    [
        ("chief", "chief/0", {"ps/0", "worker/0", "worker/1"}),
        ("workers", "chief/0,worker/0,worker/1", {"ps/0"}),
        ("all", "chief/0,ps/0,worker/0,worker/1", set()),
        ("never", "chief/0,ps/0,worker/0,worker/1", set()),  # when nothing runs any more it is over, too
    ],
)
def test_whose_success_ends_the_run(
    launcher: Launcher, out: Path, done: str, ends: str, stopped: set[str]
) -> None:
    events = (
        launcher.run(
            *("run", launcher.local(2), launcher.script(WAITS), "--chief", "--ps=1", "--workers=2", "--json"),
            *(f"--env=OUT={out}", f"--env=ENDS={ends}", "--env=TASKS=4", f"--done={done}", *QUICK),
        )
        .ran()
        .events
    )
    assert {exit["task"] for exit in events[-1]["exits"] if exit["stopped"]} == stopped


@pytest.mark.parametrize(("done", "ends"), [("all", "worker/0,worker/1"), ("never", "worker/0,worker/1")])
def test_success_that_does_not_end_the_run(launcher: Launcher, out: Path, done: str, ends: str) -> None:
    with launcher.start(
        *("run", launcher.local(2), launcher.script(WAITS), "--ps=1", "--workers=2"),
        *(f"--env=OUT={out}", f"--env=ENDS={ends}", "--env=TASKS=3", f"--done={done}", *QUICK),
    ) as running:
        running.wait_for("is done", 2)
        running.wait_for("finished after", 2)
        assert [each.env["TFLAUNCH_TASK"] for each in launcher.leftovers() if not each.is_agent] == ["ps/0"]
        running.interrupt()
        assert running.end() == 130


# ---- what must be ready before any task starts


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ({"setup": ["echo no such module >&2; false"]}, "setup failed with exit code 1"),
        ({"setup": ["exit 5"]}, "code 5"),
        ({"workdir": "/no/such/place"}, "/no/such/place: no such directory"),
        ({"python": "/no/such/python"}, "no program /no/such/python on this host"),
        (
            {"python": "/usr/share"},
            "no program /usr/share on this host: it is a directory → name the interpreter in it by `python:`",
        ),
    ],
    ids=["setup-fails", "setup-exits", "workdir", "python", "python-directory"],
)
def test_a_host_that_cannot_stage_stops_the_launch(
    launcher: Launcher, out: Path, trouble: dict[str, object], sentence: str
) -> None:
    hostfile = launcher.hostfile(["local[1-3]", {"name": "local4", **trouble}], connection="local")
    done = launcher.run(
        "run", hostfile, launcher.script(TELL), "--ps=2", "--workers=2", f"--env=OUT={out}"
    ).ran(70)
    assert "local4" in done.err
    assert sentence in done.sentences
    assert told(out) == {}  # not one task has run
    launcher.wait_until_nothing_is_left()
    launcher.wait_until_no_run_is_kept()
    assert launcher.records() == []


# ---- Ctrl-C and SIGTERM


ENDLESS = """
    import os, signal, time
    if os.environ.get("DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("here I am")
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_cluster_and_says_so(
    launcher: Launcher, number: signal.Signals, code: int
) -> None:
    with launcher.start(
        "run", launcher.local(), launcher.script(ENDLESS), "--ps=2", "--workers=2", "--grace=30"
    ) as running:
        running.wait_for("here I am", 4)
        running.signal(number)
        done = running.done().ran(code)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"{name}: stopping 4 tasks, 30 s to end by themselves; once more kills at once" in done.sentences
    assert "nothing is left running" in done.sentences
    launcher.wait_until_nothing_is_left()


def test_a_second_ctrl_c_kills_at_once(launcher: Launcher) -> None:
    with launcher.start(
        *("run", launcher.local(2), launcher.script(ENDLESS)),
        *("--ps=1", "--workers=1", "--grace=3600", "--env=DEAF=1"),
    ) as running:
        running.wait_for("here I am", 2)
        running.interrupt()
        running.wait_for("once more kills at once")
        running.interrupt()
        done = running.done().ran(130)
    assert "Ctrl-C again: killing 2 tasks" in done.sentences
    assert "nothing is left running" in done.sentences


def test_a_task_that_ignores_term_is_killed_after_the_grace(launcher: Launcher) -> None:
    with launcher.start(
        *("run", launcher.local(2), launcher.script(ENDLESS)),
        *("--ps=1", "--workers=1", "--grace=0.5", "--env=DEAF=1", "--json"),
    ) as running:
        running.wait_for("here I am", 2)
        running.interrupt()
        report = running.done().ran(130).events[-1]
    assert {exit["signal"] for exit in report["exits"]} == {"SIGKILL"}


def test_ctrl_c_while_a_host_is_staging(launcher: Launcher, out: Path) -> None:
    hostfile = launcher.hostfile(
        ["local1", {"name": "local2", "setup": [f"touch {out}/began; sleep 3600"]}], connection="local"
    )
    with launcher.start(
        "run", hostfile, launcher.script(TELL), "--ps=1", "--workers=1", f"--env=OUT={out}"
    ) as running:
        until((out / "began").exists, "the setup of local2")
        running.interrupt()
        done = running.done().ran(130)
    assert "nothing was started, nothing is left" in done.sentences
    assert told(out) == {}
    launcher.wait_until_nothing_is_left()
    assert launcher.records() == []


def test_a_launcher_that_is_killed_while_a_host_is_staging(launcher: Launcher, out: Path) -> None:
    hostfile = launcher.hostfile(
        ["local1", {"name": "local2", "setup": [f"touch {out}/began; sleep 3600"]}], connection="local"
    )
    with launcher.start(
        "run", hostfile, launcher.script(TELL), "--ps=1", "--workers=1", f"--env=OUT={out}", "--lease=3600"
    ) as running:
        until((out / "began").exists, "the setup of local2")
        running.signal(signal.SIGKILL)
        running.end()
    launcher.wait_until_nothing_is_left()  # nothing was started, so nothing waits for a lease
    assert told(out) == {}
    launcher.wait_until_no_run_is_kept()


def test_ctrl_c_is_answered_though_nobody_reads_the_output(launcher: Launcher) -> None:
    trainer = launcher.script("while True:\n    print('x' * 200)")
    errors = launcher.directory / "errors"
    with (
        errors.open("wb") as err,
        subprocess.Popen(
            launcher.argv("run", launcher.local(2), trainer, "--ps=0", "--workers=8", *QUICK),
            env=launcher.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # a terminal that was stopped with Ctrl-S
            stderr=err,
        ) as process,
    ):
        try:
            until(lambda: "training 8 tasks" in errors.read_text(), "the start")
            until(lambda: len([*launcher.hosts.rglob("worker-?.log")]) == 8, "the flood")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 130
        finally:
            process.kill()
    assert "Ctrl-C: stopping 8 tasks" in errors.read_text()


# ---- nothing is left


def test_what_a_task_leaves_behind_is_swept(launcher: Launcher, out: Path) -> None:
    trainer = launcher.script(
        """
        import os, pathlib, signal, subprocess, sys, time
        def vanish(name, env):
            if os.fork():
                return
            os.setsid()
            for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(each, signal.SIG_IGN)
            if os.fork():
                os._exit(0)
            path = os.path.join(os.environ["OUT"], name)
            code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(3600)"
            os.execve(sys.executable, [sys.executable, "-c", code, path], env)
        vanish("marked", dict(os.environ))
        vanish("without-a-mark", {})
        while sum(bool(path.read_text()) for path in pathlib.Path(os.environ["OUT"]).iterdir()) < 2:
            time.sleep(0.01)
        """
    )
    launcher.run("run", launcher.local(1), trainer, "--ps=0", "--workers=1", f"--env=OUT={out}", *QUICK).ran()
    pids = {path.name: int(path.read_text()) for path in out.iterdir()}
    assert sorted(pids) == ["marked", "without-a-mark"]
    assert [name for name, pid in pids.items() if alive(pid)] == []


# ---- logs


NUMBERED = """
    import os, sys, time
    task = os.environ["TFLAUNCH_TASK"]
    begun = time.monotonic()
    for burst in range(200):
        for number in range(burst * 100, burst * 100 + 100):
            print(task, "line", number)
        sys.stdout.flush()
        time.sleep(max(0, begun + burst / 100 - time.monotonic()))
"""


def numbers(text: str, prefix: str) -> list[int]:
    """The N of each `PREFIX line N`."""
    return [int(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{prefix} line ")]


def test_at_ten_thousand_lines_a_second_each_nothing_is_lost(launcher: Launcher) -> None:
    done = launcher.run(
        *("run", launcher.local(4), launcher.script(NUMBERED), "--ps=0", "--workers=8"),
        *("--env=PYTHONUNBUFFERED=", *QUICK),
    ).ran()
    [record] = launcher.records()
    for index in range(8):
        name = f"worker/{index}"
        assert numbers(done.out, f"{name} │ {name}") == list(range(20_000))
        assert numbers((record / "logs" / f"worker-{index}.log").read_text(), name) == list(range(20_000))
    assert len(done.out.splitlines()) == 8 * 20_000


SPEAKS = """
    import os, sys
    print(os.environ["TFLAUNCH_TASK"], "says é", flush=True)
    sys.stdout.buffer.write(b"not UTF-8: \\xff\\n10%\\r50%\\r100%\\nno newline at the end")
"""


def test_lines_are_whole_and_prefixed(launcher: Launcher) -> None:
    done = launcher.run(
        "run", launcher.local(2), launcher.script(SPEAKS), "--ps=0", "--workers=2", *QUICK
    ).ran()
    for index in range(2):
        mine = [line for line in done.out.splitlines() if line.startswith(f"worker/{index} │ ")]
        words = [line.partition(" │ ")[2] for line in mine]
        assert words[:2] == [f"worker/{index} says é", "not UTF-8: \\xff"]
        assert words[-2:] == ["100%", "no newline at the end"]
    assert all(re.match(r"worker/[01] │ ", line) for line in done.out.splitlines())
    [record] = launcher.records()
    log = (record / "logs" / "worker-0.log").read_bytes()
    assert log == "worker/0 says é\nnot UTF-8: ".encode() + b"\xff\n10%\r50%\r100%\nno newline at the end"


def test_what_is_shown_can_be_chosen(launcher: Launcher) -> None:
    speaks = ("run", launcher.local(2), launcher.script(SPEAKS), "--ps=0", "--workers=2", *QUICK)

    quiet = launcher.run(*speaks, "--quiet").ran()
    assert quiet.out == ""
    assert "succeeded" in quiet.err

    only = launcher.run(*speaks, "--only=worker/1").ran()
    assert {line.partition(" ")[0] for line in only.out.splitlines()} == {"worker/1"}

    host = launcher.run(*speaks, "--show-host").ran()
    assert {line.partition(" │ ")[0].split()[-1] for line in host.out.splitlines()} == {"local1", "local2"}

    for record in launcher.records():  # whatever was shown, all of it was kept
        assert len(list((record / "logs").iterdir())) == 2


def test_json_tells_the_whole_story_one_object_a_line(launcher: Launcher) -> None:
    done = launcher.run(
        "run", launcher.local(2), launcher.script(SPEAKS), "--ps=0", "--workers=2", "--json", *QUICK
    ).ran()
    assert done.err == ""
    assert done.out.isascii()
    told = done.events
    assert all(isinstance(event["time"], float) for event in told)
    kinds = [event["event"] for event in told]
    assert [kind for kind, _ in itertools.groupby(kinds) if kind in ("plan", "report")] == ["plan", "report"]
    assert kinds.count("started") == kinds.count("exited") == kinds.count("log_end") == 2
    phases = [event["name"] for event in told if event["event"] == "phase"]
    assert [name for name, _ in itertools.groupby(phases)] == [
        "connecting",
        "shipping",
        "staging",
        "training",
    ]
    lines = [event["line"] for event in told if event["event"] == "log" and event["task"] == "worker/0"]
    assert lines[:2] == ["worker/0 says é", "not UTF-8: \\xff"]
    assert lines[-1] == "no newline at the end"
    # Each task's events are in the order in which things happened.
    mine = [
        event["event"] for event in told if event.get("task") == "worker/0" and event["event"] != "exited"
    ]
    assert [kind for kind, _ in itertools.groupby(mine)] == ["started", "log", "log_end"]
    assert set(told[-1]) == {
        *(
            "event",
            "time",
            "run_id",
            "status",
            "exit_code",
            "exit_code_of",
            "seconds",
            "exits",
            "first_failure",
        ),
        *("unverified", "survivors", "gpus", "record", "host_logs", "restarts", "hint"),
    }
    for task, path in told[-1]["host_logs"].items():
        assert f"{task} says é" in Path(path).read_text("utf-8", "replace")


def test_a_reader_that_goes_away_does_not_end_the_run(launcher: Launcher, out: Path) -> None:
    trainer = launcher.script(
        """
        import os, pathlib, time
        print("first line")
        while not (pathlib.Path(os.environ["OUT"]) / "go").exists():
            time.sleep(0.01)
        for number in range(10_000):
            print("after it, line", number)
        """
    )
    with subprocess.Popen(
        launcher.argv("run", launcher.local(1), trainer, "--ps=0", "--workers=1", f"--env=OUT={out}", *QUICK),
        env=launcher.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"worker/0 \xe2\x94\x82 first line\n"
        process.stdout.close()  # | head -1
        (out / "go").touch()
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 0, said
    assert "succeeded" in said
    [record] = launcher.records()
    assert (record / "logs" / "worker-0.log").read_text().endswith("after it, line 9999\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_goes_to_a_full_disk_does_not_end_the_run(launcher: Launcher, unbuffered: str) -> None:
    trainer = launcher.script("for number in range(1000):\n    print('line', number)")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            launcher.argv("run", launcher.local(1), trainer, "--ps=0", "--workers=1", *QUICK),
            env=launcher.env(PYTHONUNBUFFERED=unbuffered),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    assert "cannot write to stdout: No space left on device; the run goes on" in done.stderr
    assert "Traceback" not in done.stderr
    [record] = launcher.records()
    assert len((record / "logs" / "worker-0.log").read_text().splitlines()) == 1000


def test_the_record_tells_how_it_ended(launcher: Launcher) -> None:
    trainer = launcher.script("import sys; sys.exit(4)")
    launcher.run("run", launcher.local(1), trainer, "--workers=1", "--ps=0", *QUICK).ran(4)
    [record] = launcher.records()
    outcome = json.loads((record / "outcome.json").read_text())
    assert (outcome["status"], outcome["exit_code"]) == ("failed", 4)
    assert outcome["first_failure"]["task"] == "worker/0"


# ---- what sleeps


def test_a_launcher_that_slept_goes_on_with_its_run(launcher: Launcher, out: Path) -> None:
    trainer = launcher.script(
        f"import os, time\nprint('here I am')\nwhile not os.path.exists('{out}/go'):\n    time.sleep(0.1)\n"
    )
    with launcher.start("run", launcher.local(2), trainer, "--ps=0", "--workers=2") as running:
        running.wait_for("here I am", 2)
        running.signal(signal.SIGSTOP)
        time.sleep(SILENCE_S + 2)  # longer than a host may be silent, shorter than the lease
        running.signal(signal.SIGCONT)
        (out / "go").touch()
        running.done().ran()


def test_a_host_that_takes_no_more_of_the_code_holds_up_nobody(launcher: Launcher) -> None:
    trainer = launcher.script(ENDLESS)
    trainer.with_name("large").write_bytes(os.urandom(48 * 2**20))
    with launcher.start("run", launcher.local(2), trainer, "--ps=0", "--workers=2") as running:
        until(lambda: list(launcher.hosts.rglob("files/*.part")), "the code to be on its way")
        agent = launcher.agents("local1")["agent"]
        os.kill(agent, signal.SIGSTOP)
        try:
            running.interrupt()
            done = running.done().ran(76)
        finally:
            os.kill(agent, signal.SIGCONT)
    assert "local1: could not check that nothing is left" in done.sentences
    assert "nothing was started, nothing is left" not in done.sentences
    launcher.wait_until_nothing_is_left()
