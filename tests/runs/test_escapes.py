"""Whatever a host, a lease, another user or a file says acts on no terminal: the verbs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.evil import EVIL, assert_json, evil, harmless
from tests.support.gpus_lab import Lab, Terminal
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork


@pytest.fixture
def lab(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Lab:
    return Lab(library, tmp_path, network, launcher)


def on_terminal(launcher: Launcher, verb: str, *words: str | Path, columns: int = 100) -> str:
    """What `tflaunch VERB ...` shows there until its end, or, with --watch, the first look."""
    argv = [str(word) for word in launcher.argv(verb, *words)]
    screen = Terminal(argv, launcher.env(), columns=columns)
    if "--watch" in words:
        screen.shows("of 2 on 1 host")
        for keys, shown in (
            ("\r", "^gpu +pid"),
            ("?", "keeps no history"),
            ("\x1b", "^gpu +pid"),
            ("\x1b", "^>host1"),
        ):
            screen.type(keys)
            screen.shows(shown)
        screen.process.send_signal(signal.SIGINT)
    screen.end()
    return b"".join(screen._parts).decode()


def test_a_lease_that_anybody_may_write_and_a_process_name_act_on_no_terminal(lab: Lab) -> None:
    argv = [
        sys.executable,
        "-c",
        "import time; time.sleep(600)",
        EVIL.replace("\0", "").encode("utf-8", "replace"),
    ]
    process = subprocess.Popen(argv, start_new_session=True)
    with contextlib.ExitStack() as after:
        after.callback(process.wait)
        after.callback(process.kill)
        lab.add(
            "gpu uuid=GPU-a mem=81559", "gpu uuid=GPU-b mem=81559", f"proc gpu=1 pid={process.pid} mem=60000"
        )
        held = lab.leases / "GPU-a"
        held.parent.mkdir()
        held.parent.chmod(0o1777)
        with held.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump({"user": EVIL, "run": EVIL, "since": math.nan, "planning": False}, lock)
            lock.flush()
            for words in ((), ("--csv",), ("--oneline",), ("--topology",)):
                done = lab.gpus(*words).ran()
                harmless(done.out + done.err)
            assert len(lab.gpus("--csv").ran().out.splitlines()) == 3
            assert_json(lab.gpus("--json").ran().out)
            for more in ((), ("--watch",)):
                verb, *rest = lab.words(*more)
                for columns in (80, 130):
                    harmless(on_terminal(lab.launcher, str(verb), *rest, columns=columns), own=True)
            trainer = lab.launcher.script("")
            hosts = lab.launcher.hostfile([sshd.name for sshd in lab.network.sshds], gpus="auto")
            for json_too in ((), ("--json",)):
                refused = lab.launcher.run(
                    "run", hosts, trainer, "--ps=0", "--workers=2", "--gpus-per-worker=1", *json_too
                )
                assert refused.code == 65, refused.err
                assert "leased to" in refused.out + refused.err
                harmless(refused.out + refused.err)


def test_the_files_of_a_run_act_on_no_terminal(launcher: Launcher) -> None:
    hosts, own = launcher.local(1), launcher.hosts / f"tflaunch-{os.getuid()}"
    directory = own / "odd-aaaaaa" / "local1"
    (directory / "logs").mkdir(parents=True)
    for each in (own, directory.parent, directory):
        each.chmod(0o700)
    about = {"launcher": EVIL, "command": ["tflaunch", "run", EVIL], "hosts": ["local1", EVIL], "tasks": {}}
    plan = {"tasks": [{"id": "worker/0", "gpu_labels": [EVIL]}], "ports": [5000], "about": about}
    (directory / "plan.json").write_text(json.dumps(plan))
    (directory / "logs" / "worker-0.log").write_bytes(evil(b""))
    event = {"type": "exit", "task": "worker/0", "attempt": 0, "code": None, "signal": 9, "signal_name": EVIL}
    events = [
        {"type": "started", "n": 1, "time": 2.0, "task": "worker/0", "attempt": 0, "pid": 7},
        {**event, "n": 2, "time": 3.0, "seconds": math.inf, "stopped": False, "log_bytes": 3},
        {"type": "outcome", "n": 3, "time": 3.0, "outcome": {"status": EVIL, "exit_code": 1}},
    ]
    (directory / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    for words in (
        ("ps", "-a"),
        ("status", "odd-aaaaaa"),
        ("logs", "odd-aaaaaa"),
        ("clean", "--all", "--dry-run"),
    ):
        done = launcher.run(*words, "-H", hosts)
        assert "odd-aaaaaa" in done.out or words[0] in ("logs", "clean"), done.err
        assert "Traceback" not in done.err, done.err
        harmless(done.out + done.err)
        for columns in (80, 130):
            harmless(on_terminal(launcher, *words, "-H", hosts, columns=columns), own=True)
    bare = launcher.start("logs", "odd-aaaaaa", "worker/0", "-H", hosts)
    bare.done().ran()
    assert bare.stdout.read_bytes() == evil(b"")  # into a file it goes byte for byte
    lines = on_terminal(launcher, "logs", "odd-aaaaaa", "worker/0", "-H", hosts)
    harmless(lines, own=True, rows=False)  # all are the task's
    assert launcher.run("ps", "-aq", "-H", hosts).ran().out == "odd-aaaaaa\n"
    for words in (
        ("ps", "-a", "--json"),
        ("status", "odd-aaaaaa", "--json"),
        ("logs", "odd-aaaaaa", "--json"),
    ):
        assert_json(launcher.run(*words, "-H", hosts).ran().out)
