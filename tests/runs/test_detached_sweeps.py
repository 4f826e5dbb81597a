"""`tflaunch sweep --detach`: the sweep goes on without its terminal, from this machine."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launcher import Launcher, Process, alive, processes
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import SshNetwork
from tflaunch.documents.json_objects import of_document

# Says its value; waits for $OUT/go.
pytestmark = pytest.mark.usefixtures("started_anew")

TRIAL = """\
import os, sys, time
value = sys.argv[1].partition("=")[2]
open(os.path.join(os.environ["OUT"], f"begun-{value}"), "x").close()
while not os.path.exists(os.path.join(os.environ["OUT"], "go")):
    time.sleep(0.02)
print("loss:", value)
"""


class Away:
    """A user who starts a sweep of x = 0, 1, 2 and leaves it."""

    def __init__(self, launcher: Launcher, directory: Path) -> None:
        self.launcher = launcher
        self.out = directory / "trials"
        self.out.mkdir()
        self.trainer = launcher.script(TRIAL, "trial/trainer.py")

    def words(self, hostfile: Path, *options: str) -> tuple[str | Path, ...]:
        own = (f"--env=OUT={self.out}", "--grid=x=0,1,2", "--metric=loss: (.*)", "--yes", "--detach")
        return ("sweep", hostfile, self.trainer, *own, *options)

    @property
    def begun(self) -> int:
        return len(list(self.out.glob("begun-*")))

    def launchers(self) -> list[Process]:
        """Launchers of sweeps that are alive."""
        home = str(self.launcher.home)
        return [
            each for each in processes() if each.env.get("HOME") == home and str(self.trainer) in each.words
        ]

    def results(self, run: str) -> list[float]:
        path = self.launcher.state / run / "results.jsonl"
        return [json.loads(line)["metric"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def away(launcher: Launcher, tmp_path: Path) -> Iterator[Away]:
    user = Away(launcher, tmp_path)
    yield user
    for process in user.launchers():
        process.kill()


def test_the_command_prints_the_id_and_returns_and_the_sweep_goes_on(away: Away, network: SshNetwork) -> None:
    hostfile = away.launcher.hostfile([network.add().name for _ in range(2)])
    done = away.launcher.run(*away.words(hostfile, "--name=lab")).ran()
    run = done.out.strip()
    assert run.startswith("lab-")
    assert f"{run} goes on without this terminal, from this machine" in done.sentences
    [launcher] = away.launchers()
    until(lambda: away.begun == 2, "two trials")
    [about] = json.loads(away.launcher.run("ps", "--json").ran().out)["runs"]
    assert (about["run_id"], about["state"]) == (run, "running")
    kept = away.launcher.state / run / "samples.jsonl"
    until(lambda: "\n[" in kept.read_text(), "what the trials use")
    (away.out / "go").touch()
    until(lambda: not alive(launcher.pid), "the launcher's end")
    assert sorted(away.results(run)) == [0.0, 1.0, 2.0]
    said = (away.launcher.state / run / "launcher.log").read_text()
    assert "trial/2 on host" in said
    assert "loss  trial  x" in said, "the table, too"
    assert said.endswith(f"{run}  3 of 3 trials succeeded\n")
    assert "\x1b" not in said
    away.launcher.wait_until_nothing_is_left()
    report = json.loads(away.launcher.run("report", run, "trial/1", "--json").ran().out)
    assert not of_document("report", report)
    [found] = report["runs"]
    [trial] = found["tasks"]
    assert trial["trial"] == {"params": {"x": "1"}, "metric": 1.0, "status": "succeeded", "why": ""}
    assert (trial["end"]["code"], found["missing"], found["samples"]["tasks"]) == (0, [], ["trial/1"])
    assert found["samples"]["bins"][0][0] == 0 and trial["means"]["cores"] > 0
    said = away.launcher.run("report", run).ran().out
    assert re.search(r"started +trial/[01] on host[12] is the first trial", said) and "x=2" in said, said
    assert f"{run} has no trial/9" in away.launcher.run("report", run, "trial/9").ran(2).sentences


def test_what_ends_it_before_its_trials_start_is_the_commands_exit_code(away: Away) -> None:
    nowhere = away.launcher.hostfile([{"name": "here", "connection": "local", "gpus": 1}])
    done = away.launcher.run(*away.words(nowhere, "--gpu-model=H200")).ran(65)
    assert done.out == ""
    assert away.launchers() == []
    refused = away.launcher.run(*away.words(nowhere, "--tensorboard=logs")).ran(2)
    assert "--detach --tensorboard logs: nobody would see its address" in refused.sentences


def test_stop_ends_it_and_resume_goes_on_with_it(away: Away) -> None:
    hostfile = away.launcher.local(1)
    run = away.launcher.run(*away.words(hostfile)).ran().out.strip()
    [launcher] = away.launchers()
    until(lambda: away.begun == 1, "a trial")
    away.launcher.run("stop", run).ran()
    until(lambda: not alive(launcher.pid), "the launcher's end")
    away.launcher.wait_until_nothing_is_left()
    (away.out / "begun-0").unlink()
    (away.out / "go").touch()
    again = away.launcher.run("sweep", "--resume", run, env={"OUT": str(away.out)}).ran()
    assert again.out.strip() == run, "detached, as it was"
    until(lambda: len(away.results(run)) == 3, "three results")
    until(lambda: not away.launchers(), "the launcher's end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_its_trials_start_ends_it(
    away: Away, network: SshNetwork, number: signal.Signals
) -> None:
    hostfile = away.launcher.hostfile([network.add().name])
    network.sshds[0].freeze()
    with away.launcher.start(*away.words(hostfile)) as command:
        until(lambda: len(away.launchers()) == 2, "a launcher behind the command")
        command.signal(number)
        assert command.end() == 128 + number
    until(lambda: not away.launchers(), "the launcher's end")
    away.launcher.wait_until_nothing_is_left()


def test_a_command_that_is_killed_before_it_leaves_the_terminal_leaves_a_sweep_that_goes_on(
    away: Away, network: SshNetwork
) -> None:
    hostfile = away.launcher.hostfile([network.add().name])
    network.sshds[0].freeze()
    with away.launcher.start(*away.words(hostfile, "--name=lab")) as command:
        until(lambda: len(away.launchers()) == 2, "a launcher behind the command")
        command.signal(signal.SIGKILL)
        assert command.end() == -signal.SIGKILL
    [launcher] = away.launchers()
    network.sshds[0].thaw()
    (away.out / "go").touch()
    until(lambda: not alive(launcher.pid), "the launcher's end")
    run = next(iter(away.launcher.state.glob("lab-*")))
    assert sorted(away.results(run.name)) == [0.0, 1.0, 2.0]
    said = (run / "launcher.log").read_text()
    assert "Traceback" not in said
    assert said.endswith(f"{run.name}  3 of 3 trials succeeded\n")
    away.launcher.wait_until_nothing_is_left()


def test_it_survives_its_terminal(away: Away) -> None:
    hostfile = away.launcher.local(1)
    ours, its = pty.openpty()
    words = away.launcher.argv(*away.words(hostfile, "--name=lab"))
    command = subprocess.Popen(
        words, stdin=its, stdout=its, stderr=its, cwd=away.launcher.code, env=away.launcher.env(),
        start_new_session=True, preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # noqa: PLW1509
    )  # fmt: skip
    os.close(its)
    shown = b""
    while b"stop it" not in shown:
        shown += os.read(ours, 4096)
    assert command.wait(PATIENCE_S) == 0
    os.close(ours)  # the terminal is gone
    [launcher] = away.launchers()
    run = next(iter(away.launcher.state.glob("lab-*"))).name
    until(lambda: away.begun == 1, "a trial")
    (away.out / "go").touch()
    until(lambda: not alive(launcher.pid), "the launcher's end")
    assert sorted(away.results(run)) == [0.0, 1.0, 2.0]
