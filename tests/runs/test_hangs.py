"""Runs that hang, through `tflaunch run`: what is said of them, and how a time limit ends them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.frameworks import WITHOUT_KERAS
from tests.support.impatient import IMPATIENT
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork

# A task that opens its port as TensorFlow does, unless it is a ps that is told not to, and then waits.
OPENS = """
    import json, os, pathlib, signal, socket, sys, time
    task, config = os.environ["TFLAUNCH_TASK"], json.loads(os.environ["TF_CONFIG"])
    mine = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    out = pathlib.Path(os.environ["OUT"])
    print("begins")
    while task.startswith("ps/") and "--late" in sys.argv and not (out / "go").exists():
        time.sleep(0.05)
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("::", int(mine.rpartition(":")[2])))
    server.listen()
    print("listens")
    while not (out / "end").exists():
        time.sleep(0.2)
"""

STUCK = """
    import os, threading
    def here_it_hangs():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    print("begins")
    here_it_hangs()
"""


# Says so when it gets SIGUSR1, and goes on.
SAVES = """
    import signal
    signal.signal(signal.SIGUSR1, lambda *_: print("saving", flush=True))
    print("trains", flush=True)
    while True:
        signal.pause()
"""


class Impatient(Launcher):
    """Whose tflaunch takes `wait_s` for long."""

    wait_s = 4.0  # tasks may begin so long after each other, on a busy machine

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        program = IMPATIENT.format(wait_s=self.wait_s)
        return [sys.executable, "-c", program, *super().argv(verb, *words)[3:]]


@pytest.fixture
def impatient(tmp_path: Path, network: SshNetwork) -> Iterator[Impatient]:
    made = Impatient(tmp_path, network)
    yield made
    made.close()


# ---- what is said


def test_a_ps_that_does_not_open_its_port_and_then_does(impatient: Impatient, out: Path) -> None:
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--grace=2", "--ps-grace=0.2", "--", "--late")
    with impatient.start("run", impatient.local(2), impatient.script(OPENS), *words) as running:
        until(lambda: "has not opened its port" in running.err, "the diagnosis")
        (out / "go").touch()
        until(lambda: "has opened its port" in running.err, "the end of it")
        (out / "end").touch()
        done = running.done().ran()
    [said] = [line for line in done.err.splitlines() if "has not opened" in line]
    found = re.search(
        r"! ps/0 on local\d has not opened its port for \d+ s \(its last output was \d+ s ago\)", said
    )
    assert found, said
    assert said.endswith("worker/0, worker/1 wait for it")
    assert done.err.count("has opened its port") == 1


def test_a_stopped_worker_is_named_and_so_is_its_end(impatient: Impatient, out: Path) -> None:
    words = ("--ps=1", "--workers=1", f"--env=OUT={out}", "--grace=2", "--ps-grace=0.2")
    with impatient.start("run", impatient.local(2), impatient.script(OPENS), *words) as running:
        running.wait_for("listens", 2)
        [worker] = [each for each in impatient.leftovers() if each.env.get("TFLAUNCH_TASK") == "worker/0"]
        os.kill(worker.pid, signal.SIGSTOP)
        until(lambda: "is stopped (state T)" in running.err, "the diagnosis")
        assert f"kill -CONT {worker.pid}" in running.err
        os.kill(worker.pid, signal.SIGCONT)
        until(lambda: re.search(r"worker/0 on local\d goes on", running.err), "the end of it")
        (out / "end").touch()
        running.done().ran()


def test_of_a_run_that_works_nothing_is_said(impatient: Impatient, out: Path) -> None:
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--grace=2", "--ps-grace=0.2", "--json")
    with impatient.start("run", impatient.local(2), impatient.script(OPENS), *words) as running:
        running.wait_for("listens", 3)
        with pytest.raises(AssertionError, match="not within"):
            until(lambda: '"warn"' in running.out, "a warning", 6.0)
        (out / "end").touch()
        running.done().ran()


def test_tensorflow_itself_waits_for_a_ps(impatient: Impatient) -> None:
    impatient.wait_s = 8.0
    trainer = impatient.script(
        """
        import json, os, time
        config = json.loads(os.environ["TF_CONFIG"])
        job, index = config["task"]["type"], config["task"]["index"]
        if job == "ps":
            time.sleep(3600)
        import tensorflow as tf
        v1 = tf.compat.v1
        v1.disable_eager_execution()
        server = v1.train.Server(config["cluster"], job_name=job, task_index=index)
        with v1.device(v1.train.replica_device_setter(cluster=tf.train.ClusterSpec(config["cluster"]))):
            v1.train.get_or_create_global_step()
        print("opens a session")
        v1.train.MonitoredTrainingSession(master=server.target, is_chief=True)
        """
    )
    words = ("--ps=1", "--workers=1", "--grace=2", "--stall-timeout=25", WITHOUT_KERAS)
    done = impatient.run("run", impatient.local(2), trainer, *words).ran(124)
    assert re.search(
        r"! ps/0 on local\d has not opened its port for \d+ s \(no output yet\); worker/0 waits", done.err
    )
    report = done.err.partition("✗")[2]
    assert report.startswith(" no task has written anything for"), "TensorFlow's own lines are no output"
    assert "monitored_session.py" in report, "where the worker hangs"


# ---- time limits


def test_a_stall_ends_the_run_and_tells_where_it_was(launcher: Launcher) -> None:
    words = ("run", launcher.local(2), launcher.script(STUCK), "--ps=1", "--workers=2", "--stall-timeout=2")
    done = launcher.run(*words).ran(124)
    report = done.err.partition("✗")[2].splitlines()
    assert re.fullmatch(r" no task has written anything for \d+ s \(--stall-timeout\)", report[0].rstrip())
    assert "ps/0, worker/0, worker/1 were here" in report[1], "alike ones are told once"
    assert re.search(r'│ File "trainer.py", line 6 in here_it_hangs', report[2])
    assert done.err.rstrip().splitlines()[-2].endswith("exit code 124; nothing is left running")
    launcher.wait_until_nothing_is_left()

    told = launcher.run(*words, "--json").ran(124).events[-1]["first_failure"]
    assert told["tasks"] == ["ps/0", "worker/0", "worker/1"]
    assert told["stacks"]["worker/1"][0].endswith("in here_it_hangs")
    for record in launcher.records():
        outcome = json.loads((record / "outcome.json").read_text())
        assert (outcome["status"], outcome["exit_code"]) == ("failed", 124)
        assert "--stall-timeout" in outcome["first_failure"]["reason"]


def test_a_task_that_does_not_start_in_time_ends_the_run(launcher: Launcher, out: Path) -> None:
    words = ("--ps=1", "--workers=1", f"--env=OUT={out}", "--startup-timeout=3", "--", "--late")
    done = launcher.run("run", launcher.local(2), launcher.script(OPENS), *words).ran(124)
    report = done.err.partition("✗")[2]
    assert report.startswith(" ps/0 has not opened its port 3 s after the start (--startup-timeout)")
    assert re.search(r'ps/0 was here.*\n  │ File "trainer.py", line \d+ in <module>', report)
    assert "worker/0 was here" not in report


def test_a_program_that_catches_sigterm_still_has_its_grace(launcher: Launcher) -> None:
    trainer = launcher.script(
        """
        import signal, sys
        def save(*_):
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("trains")
        while True:
            signal.pause()
        """
    )
    words = ("--ps=0", "--workers=2", "--timeout=6", "--grace=30")
    done = launcher.run("run", launcher.local(2), trainer, *words).ran(124)
    assert done.out.count("saved") == 2
    assert "Fatal Python error" not in done.out
    assert re.search(r"worker/0, worker/1 wrote no stacks; last seen in state S", done.err)
    assert done.err.partition("✗")[2].startswith(" the run has taken 6 s (--timeout)")


def test_before_the_limit_the_tasks_get_a_signal_to_save(launcher: Launcher) -> None:
    words = ("--ps=0", "--workers=2", "--timeout=24", "--warn-before=12s", "--grace=2")
    done = launcher.run("run", launcher.local(2), launcher.script(SAVES), *words).ran(124)
    assert done.out.count("saving") == 2
    assert re.search(r"\b\d+ s before the time limit: 2 tasks got SIGUSR1 \(--warn-before\)", done.sentences)
    assert done.err.partition("✗")[2].startswith(" the run has taken 24 s (--timeout)")


def test_a_program_that_does_not_handle_the_signal_dies_of_it(launcher: Launcher) -> None:
    trainer = launcher.script("import time\nprint('trains')\ntime.sleep(600)")
    words = ("--ps=0", "--workers=1", "--timeout=600", "--warn-before=590", "--grace=2")
    done = launcher.run("run", launcher.local(1), trainer, *words).ran(138)
    assert "worker/0 on local1 was killed by SIGUSR1" in done.sentences
    assert "--warn-before sent SIGUSR1 to worker/0, whose program has no handler for it" in done.sentences


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["--warn-before=90s"], "--warn-before 90s without --timeout", "add --timeout 12h"),
        (
            ["--warn-before=2m", "--timeout=120"],
            "--warn-before 2m is not shorter than --timeout 2m",
            "make --warn-before as long as the tasks need",
        ),
    ],
)
def test_a_warning_that_means_nothing_is_refused(
    launcher: Launcher, words: list[str], said: str, hint: str
) -> None:
    done = launcher.run("run", launcher.local(1), launcher.script(""), *words).ran(2)
    assert said in done.sentences
    assert f"→ {hint}" in done.sentences


def test_the_job_file_may_ask_for_the_warning(launcher: Launcher) -> None:
    job = launcher.script("print('trains')").with_name("job.yaml")
    job.write_text("program: trainer.py\nroles: {ps: 0, worker: 1}\nwarn_before: 90s\n")
    done = launcher.run("run", launcher.local(1), job).ran(2)
    assert "--warn-before 90s without --timeout" in done.sentences
    launcher.run("run", launcher.local(1), job, "--timeout=1h").ran()


def test_limits_that_are_not_reached_change_nothing(launcher: Launcher) -> None:
    trainer = launcher.script("print('done')")
    words = ("--ps=0", "--workers=1", "--timeout=60", "--stall-timeout=60", "--startup-timeout=60")
    launcher.run("run", launcher.local(1), trainer, *words, "--grace=2").ran()


def test_a_detached_run_is_watched_over_by_its_hosts(launcher: Launcher) -> None:
    words = ("--ps=1", "--workers=1", "--stall-timeout=3", "--detach")
    hosts = launcher.local(2)
    run = launcher.run("run", hosts, launcher.script(STUCK), *words).ran()
    [record] = launcher.records()
    assert record.name in run.err
    done = launcher.run("attach", record.name).ran(124)
    report = done.err.partition("✗")[2]
    assert report.startswith(" no task has written anything for"), done.err
    assert re.search(r'ps/0, worker/0 were here.*\n  │ File "trainer.py", line 6 in here_it_hangs', report)
    launcher.wait_until_nothing_is_left()
    status = launcher.run("status", record.name, "--hosts", hosts)
    assert "✗ no task has written anything for" in status.out


def test_a_detached_run_is_warned_by_its_hosts(launcher: Launcher) -> None:
    words = ("--ps=0", "--workers=2", "--timeout=24", "--warn-before=12", "--grace=2", "--detach")
    launcher.run("run", launcher.local(2), launcher.script(SAVES), *words).ran()
    [record] = launcher.records()
    done = launcher.run("attach", record.name).ran(124)
    assert done.out.count("saving") == 2
    assert re.search(r"\b\d+ s before the time limit: 2 tasks got SIGUSR1", done.sentences)
    launcher.wait_until_nothing_is_left()
