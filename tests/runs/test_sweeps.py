"""Sweeps over local hosts, real sshd and simulated GPUs: trials, results, failures, and going on after them."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.lab import Gpus, uuid
from tests.support.launcher import Launcher, Running
from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import SshNetwork, logins
from tflaunch.cli import application
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_RECORD, EXIT_USAGE

# Says what it was told and where it is, then ends as its parameters have it; with $OUT/hold it waits for $OUT/go, or
# $OUT/go-7 of its own, first.
TRIAL = """\
import argparse, json, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--fail", default="")
parser.add_argument("--kind")
parser.add_argument("rest", nargs="*")
flags = parser.parse_args()
out = pathlib.Path(os.environ["OUT"])
me = {name: os.environ.get(name) for name in (
    "TFLAUNCH_TRIAL", "TFLAUNCH_PARAMS", "TFLAUNCH_ATTEMPT", "TFLAUNCH_HOST", "TFLAUNCH_RUN", "CUDA_VISIBLE_DEVICES",
    "TF_CONFIG", "TF_FORCE_GPU_ALLOW_GROWTH")}
me.update(argv=sys.argv[1:], pid=os.getpid(), code=sorted(os.listdir(".")), before=os.path.exists("mine"))
pathlib.Path("mine").touch()
if os.path.isdir("kept"):
    open("kept/new", "x").close()
with open(out / "told.jsonl", "a") as file:
    file.write(json.dumps(me) + "\\n")
print("loss:", flags.x + 1, flush=True)
passes = (out / "go", out / f"go-{me['TFLAUNCH_TRIAL']}")
while (out / "hold").exists() and not any(map(os.path.exists, passes)):
    time.sleep(0.02)
if flags.fail and me["TFLAUNCH_ATTEMPT"] in flags.fail:
    sys.exit(5)
print("loss:", flags.x, flush=True)
print(json.dumps({"step": 10, "accuracy": 1 - flags.x}))
"""


class Lab:
    """A user with the trainer above, and what its trials have told."""

    def __init__(self, launcher: Launcher, directory: Path) -> None:
        self.launcher = launcher
        self.out = directory / "trials"
        self.out.mkdir()
        self.trainer = launcher.script(TRIAL, "trial/trainer.py")

    def words(self, hostfile: Path, *options: str) -> tuple[str | Path, ...]:
        """The command line, less the program's own arguments."""
        return ("sweep", hostfile, self.trainer, f"--env=OUT={self.out}", "--yes", *options)

    def hold(self) -> None:
        """Let trials wait from now on."""
        (self.out / "go").unlink(missing_ok=True)
        (self.out / "hold").touch()

    def go(self, *trials: int) -> None:
        """Let them end: these, or all."""
        for name in [f"go-{trial}" for trial in trials] or ["go"]:
            (self.out / name).touch()

    @property
    def told(self) -> list[dict[str, Any]]:
        """One for each attempt, in the order in which they began."""
        path = self.out / "told.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, attempts: int) -> list[dict[str, Any]]:
        """Until so many attempts have begun."""
        until(lambda: len(self.told) >= attempts, f"{attempts} attempts")
        return self.told

    def record(self, name: str = "lab") -> Path:
        """The record of the only sweep of that name."""
        return next(iter(self.launcher.state.glob(f"{name}-??????")), self.launcher.state / "none")

    def results(self, name: str = "lab") -> list[dict[str, Any]]:
        """What is on record."""
        path = self.record(name) / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def lab(launcher: Launcher, tmp_path: Path) -> Lab:
    return Lab(launcher, tmp_path)


def test_a_grid_from_the_command_line_to_the_best_one(lab: Lab) -> None:
    hostfile = lab.launcher.local(2)
    lab.launcher.script("", "trial/kept/old.txt")
    grid = ("--grid=x=0.5,0.25", "--grid=kind=a,b", "--metric=loss: (.*)")
    own = ("--", "--kind={kind}", "two words")
    dry = lab.launcher.run(*lab.words(hostfile, *grid, "--name=lab", "--dry-run"), *own).ran()
    assert dry.out.split("\n")[:2] == ["trial  x     kind", "0      0.5   a"]
    assert len(dry.out.splitlines()) == 5
    assert "4 trials · 2 at a time on 2 hosts\n  local[1-2]: 1 at a time, each\n" in dry.err
    assert "trial/0 runs trainer.py --kind=a 'two words' --x=0.5\n" in dry.err
    assert (lab.told, lab.launcher.records()) == ([], [])
    done = lab.launcher.run(*lab.words(hostfile, *grid, "--name=lab"), *own).ran()
    told = {int(each["TFLAUNCH_TRIAL"]): each for each in lab.told}
    assert [told[number]["argv"] for number in range(4)] == [
        ["--kind=a", "two words", "--x=0.5"],
        ["--kind=b", "two words", "--x=0.5"],
        ["--kind=a", "two words", "--x=0.25"],
        ["--kind=b", "two words", "--x=0.25"],
    ]
    assert json.loads(told[2]["TFLAUNCH_PARAMS"]) == {"x": 0.25, "kind": "a"}
    for each in told.values():
        assert (each["TF_CONFIG"], each["CUDA_VISIBLE_DEVICES"]) == (None, "")
        assert (each["code"], each["before"]) == (["kept", "trainer.py"], False)  # nothing of another trial
    assert {each["TFLAUNCH_HOST"] for each in told.values()} == {"local1", "local2"}
    results = {each["trial"]: each for each in lab.results()}
    assert {number: each["metric"] for number, each in results.items()} == {0: 0.5, 1: 0.5, 2: 0.25, 3: 0.25}
    assert results[3]["params"] == {"x": 0.25, "kind": "b"}
    assert {each["status"] for each in results.values()} == {"succeeded"}
    assert "loss: 0.25\n" in Path(results[3]["log"]).read_text()
    with (lab.record() / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["trial"], row["kind"], row["loss"], row["exit_code"]) for row in table] == [
        *(("0", "a", "0.5", "0"), ("1", "b", "0.5", "0"), ("2", "a", "0.25", "0"), ("3", "b", "0.25", "0")),
    ]
    assert [row.split()[:4] for row in done.out.splitlines()] == [
        ["loss", "trial", "x", "kind"],
        *(["0.25", "2", "0.25", "a"], ["0.25", "3", "0.25", "b"]),
        *(["0.5", "0", "0.5", "a"], ["0.5", "1", "0.5", "b"]),
    ]
    again = f" --env OUT {lab.trainer} -- --kind=a 'two words' --x=0.25"
    assert f"the best again: tflaunch run {hostfile} --ps 0 --workers 1 --no-flags " in done.err
    assert again in done.err
    name = lab.record().name
    lab.launcher.run("fetch", name, "trial-[13]/", "--hosts", hostfile, "--to", lab.out / "f").ran()
    assert sorted(str(path.relative_to(lab.out / "f")) for path in (lab.out / "f").rglob("*")) == [
        ".tflaunch-fetched",
        *("trial-1", "trial-1/kept", "trial-1/kept/new", "trial-1/mine"),  # and no link to the code
        *("trial-3", "trial-3/kept", "trial-3/kept/new", "trial-3/mine"),
    ]
    assert "go on:" not in done.err
    [swept] = json.loads(lab.launcher.run("ps", "-a", hostfile, "--json").ran().out)["runs"]
    assert swept["started"] < min(task["ended"] for task in swept["tasks"]), "when the last trial began"

    words = lab.words(hostfile, "--grid=x=0.5,0.25", "--grid=kind=b,a", "--resume=lab")
    resumed = lab.launcher.run(*words, *own).ran()
    assert "nothing is left to run" in resumed.err
    assert resumed.out.startswith("loss "), "its own metric"
    refused = lab.launcher.run(*words, "--", "two").ran(2)
    assert "is a sweep of `-- '--kind={kind}' 'two words'`, and not of `-- two`" in refused.err
    other = lab.words(hostfile, "--grid=y=1", "--name=lab")
    assert "is a sweep over x, kind, and not over y" in lab.launcher.run(*other, *own).ran(2).err
    assert len(lab.told) == 4


def test_what_fails_is_tried_again_and_counts_in_the_end(lab: Lab, network: SshNetwork) -> None:
    hostfile = lab.launcher.hostfile([network.add().name for _ in range(2)])
    (lab.out / "trials.yaml").write_text("- {x: 1}\n- {x: 2, fail: '0'}\n- {x: 3, fail: '01'}\n- {x: 4}\n")
    done = lab.launcher.run(
        *lab.words(hostfile, f"--trials-file={lab.out / 'trials.yaml'}", "--retries=1", "--name=lab"),
        *("--metric=accuracy", "--maximize", "--json"),
        *("--fetch=/mine", f"--fetch-to={lab.out / 'f'}"),
    ).ran(5)
    assert sorted(path.parent.name for path in (lab.out / "f").glob("*/mine")) == [
        *("trial-0", "trial-1", "trial-2", "trial-3"),
    ]
    results = {each["trial"]: each for each in lab.results()}
    assert {number: (each["status"], each["attempts"]) for number, each in results.items()} == {
        **{0: ("succeeded", 1), 1: ("succeeded", 2), 2: ("failed", 2), 3: ("succeeded", 1)},
    }
    assert (results[2]["exit_code"], results[2]["why"]) == (5, "exited with code 5: loss: 4.0")
    assert {number: each["metric"] for number, each in results.items()} == {0: 0.0, 1: -1.0, 2: None, 3: -3.0}
    events = {event["event"]: event for event in done.events}
    assert events["summary"]["best"] == results[0]
    assert (events["summary"]["succeeded"], events["summary"]["failed"]) == (3, 1)
    assert events["report"]["first_failure"]["task"] == "trial/2"
    assert [event for event in done.events if event["event"] == "result" and event["trial"] == 2]
    # Each host was connected to once, for all of its trials.
    assert [logins(sshd) for sshd in network.sshds] == [1, 1]

    lab.hold()
    words = lab.words(hostfile, f"--trials-file={lab.out / 'trials.yaml'}", "--name=lab")
    late = lab.launcher.run(*words, "--timeout=1").ran(124)
    assert "trial/2 on host1 has taken 1 s (--timeout) and is ended" in late.err
    assert re.search(r"^ *failed +2 .* was ended \(--timeout 1\)$", late.out, re.MULTILINE)
    lab.go()
    again = lab.launcher.run(*words).ran()
    # With another attempt's number it succeeds.
    assert [each["TFLAUNCH_TRIAL"] for each in lab.told[6:]][-1:] == ["2"]
    assert lab.results()[-1]["attempts"] == 4
    assert "3 of them done before" in again.err
    # The host that had nothing to do this time still has what its trials wrote.
    assert {path.name for path in lab.launcher.run_directories()} == {"host1", "host2"}


def start(lab: Lab, hostfile: Path, *options: str) -> Running:
    """A sweep called lab of x = 0, 1, 2, ... that waits in its first trials."""
    lab.hold()
    values = ",".join(map(str, range(6)))
    return lab.launcher.start(*lab.words(hostfile, f"--grid=x={values}", "--name=lab", *options))


def test_a_sweep_goes_on_after_its_launcher_was_killed(lab: Lab, network: SshNetwork) -> None:
    hostfile = lab.launcher.hostfile([network.add().name for _ in range(2)])
    with start(lab, hostfile, "--metric=accuracy") as first:
        lab.wait_for(2)
        second = lab.launcher.run(*lab.words(hostfile, "--grid=x=0", "--name=lab")).ran(2)
        assert (
            f"{lab.record().name} is running: its launcher, pid {first.process.pid}, is alive"
            in second.sentences
        )
        lab.go()
        until(lambda: len(lab.results()) >= 2, "two results")
        lab.hold()
        before = len(lab.wait_for(4))
        first.signal(signal.SIGKILL)
        first.end()
    known = {each["trial"] for each in lab.results()}
    pids = [each["pid"] for each in lab.told[-2:]]
    path = lab.record() / "results.jsonl"
    path.write_text(path.read_text() + '{"trial": 5, "para')  # as if it had been killed while it wrote that
    words = lab.words(hostfile, "--grid=x=0,1,2,3,4,5,6", "--resume=lab", "--metric=accuracy")
    with lab.launcher.start(*words) as resumed:
        resumed.wait_for("has started")
        lab.go()  # not before, lest what was left running succeeds
        done = resumed.done().ran()
    assert f"{len(known)} of them done before" in done.err
    started = {int(each["TFLAUNCH_TRIAL"]) for each in lab.told[before:]}
    assert started == set(range(7)) - known
    results = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert sorted(each["trial"] for each in results) == list(range(7))
    # What the killed launcher had left running was ended first, and its logs are not mixed with the new ones.
    assert all(pid not in [each["pid"] for each in lab.told[before:]] for pid in pids)
    for each in results:
        assert Path(each["log"]).read_text().count("accuracy") == 1
    lab.launcher.wait_until_nothing_is_left()


def test_ctrl_c_stops_the_trials_and_keeps_the_results(lab: Lab) -> None:
    with start(lab, lab.launcher.local(2)) as sweep:
        lab.go(0, 1)
        sweep.wait_for("has started", 4)
        until(lambda: len(lab.results()) == 2, "two results")
        ended = {f"trial-{each['trial']}.log" for each in lab.results()}
        pids = [lab.launcher.agents(host)["agent"] for host in ("local1", "local2")]
        for pid in (sweep.process.pid, *pids):
            until(lambda pid=pid: ended.isdisjoint(open_files(pid)), f"{pid} to close {ended}")
        sweep.interrupt()
        done = sweep.done().ran(130)
    assert "Ctrl-C: stopping 2 trials" in done.err
    command = re.search(
        r"  go on: tflaunch (sweep --env=OUT --resume lab-[a-z2-7]{6})$", done.err, re.MULTILINE
    )
    assert command
    assert "  2 of 6 trials succeeded · 4 not run\n" in done.err
    assert len(lab.results()) == 2
    # That is enough, in any directory; variables of --env come from the environment, as no record has their values.
    lab.go()
    words = lab.launcher.argv(*command[1].split())
    env = {**lab.launcher.env(), "OUT": str(lab.out)}
    again = subprocess.run(
        words, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert again.returncode == 0, again.stderr
    assert "6 trials, 2 of them done before" in again.stderr
    assert again.stderr.endswith("  6 of 6 trials succeeded\n")
    assert sorted(each["trial"] for each in lab.results()) == list(range(6))
    # It is on record as it was before, so that it can go on like this once more.
    command_on_record = json.loads((lab.record() / "run.json").read_text())["command"]
    assert str(lab.trainer) in command_on_record
    assert not [word for word in command_on_record if str(lab.out) in word]
    lab.launcher.wait_until_nothing_is_left()


def test_trials_that_succeed_while_no_launcher_is_alive_count(lab: Lab, network: SshNetwork) -> None:
    hostfile = lab.launcher.hostfile([network.add().name for _ in range(2)])
    with start(lab, hostfile, "--metric=accuracy") as first:
        lab.wait_for(2)
        first.signal(signal.SIGKILL)
        first.end()
    lab.go()
    pids = [each["pid"] for each in lab.told]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of both trials")
    done = lab.launcher.run(*lab.words(hostfile, "--grid=x=0,1,2,3,4,5", "--resume=lab")).ran()
    assert "trial/0, trial/1 succeeded while no launcher was alive, and count" in done.err
    assert [each["TFLAUNCH_TRIAL"] for each in lab.told].count("0") == 1
    assert {each["trial"]: each["metric"] for each in lab.results()} == {x: 1.0 - x for x in range(6)}
    for each in lab.results():
        assert Path(each["log"]).read_text().count("accuracy") == 1


def test_a_metric_that_no_trial_printed_is_told_and_the_logs_can_be_scored_anew(lab: Lab) -> None:
    words = lab.words(
        lab.launcher.local(1), "--grid=x=0.5,0.25", "--metric=acuracy", "--maximize", "--name=lab"
    )
    with lab.launcher.start(*words) as sweep:
        sweep.wait_for("trial/0 printed no acuracy; its lines have numbers for: loss, step, accuracy.")
        done = sweep.done().ran(66)
    assert done.err.count("printed no acuracy; its") == 1
    assert (
        "no trial printed acuracy (2 succeeded); trial/0's lines have numbers for: loss, step, accuracy\n"
        in done.err
    )
    assert done.err.endswith("  2 of 2 trials succeeded, none printed acuracy\n")
    [told] = json.loads(lab.launcher.run("ps", "-a", "--json").ran().out)["runs"]
    assert (told["state"], told["outcome"]["exit_code"]) == ("failed", 66)
    command = re.search(
        r"  go on: tflaunch (sweep --env=OUT --metric accuracy --maximize --resume lab-[a-z2-7]{6})$",
        done.err,
        re.MULTILINE,
    )
    assert command
    scored = lab.launcher.run(*command[1].split(), env={"OUT": str(lab.out)}).ran()
    assert "scored anew by accuracy: 2 of 2 logs have it" in scored.err
    assert [row.split()[:2] for row in scored.out.splitlines()] == [
        ["accuracy", "trial"],
        ["0.75", "1"],
        ["0.5", "0"],
    ]
    assert len(lab.told) == 2, "nothing ran again"
    assert [each["metric"] for each in lab.results()[-2:]] == [0.5, 0.75]
    with (lab.record() / "results.csv").open() as file:
        assert [row["accuracy"] for row in csv.DictReader(file)] == ["0.5", "0.75"]
    # This is its metric from now on.
    again = lab.launcher.run("sweep", "--resume=lab", env={"OUT": str(lab.out)}).ran()
    assert again.out == scored.out
    assert "scored anew" not in again.err


def test_first_trials_that_fail_alike_end_the_sweep(lab: Lab) -> None:
    hostfile = lab.launcher.local(1)
    lab.trainer = lab.launcher.script("import sys; sys.exit('there is no data set')\n")
    done = lab.launcher.run(*lab.words(hostfile, "--grid=x=1,2,3,4,5,6", "--name=lab")).ran(1)
    assert (
        "the first 3 trials exited with code 1: there is no data set, each within 30 s; the "
        "other 3 are not run (--keep-going runs them)"
    ) in done.sentences
    assert [each["trial"] for each in lab.results()] == [0, 1, 2]
    assert done.err.endswith("  0 of 6 trials succeeded · 3 failed · 3 not run\n")
    (row,) = done.out.splitlines()[1:]
    assert row.endswith("(+2 alike) exited with code 1: there is no data set")
    assert done.err.count("x=") == 6 + 1 - 3, "a line for each start, and one for the failures"
    kept = lab.launcher.run("sweep", "--resume=lab", "--keep-going", env={"OUT": str(lab.out)}).ran(1)
    assert kept.err.endswith("  0 of 6 trials succeeded · 6 failed\n")
    assert "(+5 alike)" in kept.out


def test_bad_trials_are_stopped_early(lab: Lab) -> None:
    # Of trial 5, the loss is worse than the median at the first report; it would go on for ever.
    lab.trainer = lab.launcher.script(
        """
        import sys, time
        x = float(sys.argv[1].partition("=")[2])
        print("loss:", x, flush=True)
        while x > 5:
            time.sleep(0.1)
        print("loss:", x / 10, flush=True)
        """
    )
    words = lab.words(lab.launcher.local(1), "--grid=x=1,2,3,4,5,6,0", "--name=lab", "--metric=loss: (.*)")
    done = lab.launcher.run(*words, "--stop-below=median").ran()
    results = {each["trial"]: each for each in lab.results()}
    assert {number: each["status"] for number, each in results.items()} == {
        **dict.fromkeys((0, 1, 2, 3, 4, 6), "succeeded"),
        5: "stopped",
    }
    assert results[5]["why"] == "its best loss 6 at report 1 is worse than 3, the median of 5 trials"
    assert "trial/5 on local1 was stopped after " in done.err
    assert done.err.endswith("  6 of 7 trials succeeded · 1 stopped early\n")
    assert "go on:" not in done.err
    assert (
        "nothing is left to run"
        in lab.launcher.run("sweep", "--resume=lab", env={"OUT": str(lab.out)}).ran().err
    )


def test_the_others_go_on_when_a_host_is_lost(lab: Lab, network: SshNetwork) -> None:
    hostfile = lab.launcher.hostfile([network.add().name for _ in range(2)])
    with start(lab, hostfile) as sweep:
        lab.wait_for(2)
        for process in lab.launcher.leftovers():
            if process.pid == lab.launcher.agents("host2")["agent"]:
                process.kill()
        sweep.wait_for("will run elsewhere")
        lab.go()
        done = sweep.done().ran()
    assert "host2" in done.err
    assert sorted(each["trial"] for each in lab.results()) == list(range(6))
    assert {each["host"] for each in lab.results()} == {"host1"}
    lost = next(each["TFLAUNCH_TRIAL"] for each in lab.told if each["TFLAUNCH_HOST"] == "host2")
    assert [each["attempts"] for each in lab.results() if each["trial"] == int(lost)] == [2]


def test_a_connection_that_is_lost_costs_no_trial(lab: Lab, network: SshNetwork) -> None:
    hostfile = lab.launcher.hostfile([network.add().name for _ in range(2)])
    with start(lab, hostfile, "--metric=accuracy") as sweep:
        lab.wait_for(2)
        network.sshds[1].kill_sessions()
        sweep.wait_for("host2 is out of reach")
        lab.go()
        done = sweep.done().ran()
    assert "host2 is back" in done.err
    assert len(lab.told) == 6
    assert {each["metric"]: each["attempts"] for each in lab.results()} == {1.0 - x: 1 for x in range(6)}


def test_what_a_trial_leaves_behind_is_gone_before_the_next_one_begins(lab: Lab, tmp_path: Path) -> None:
    lab.trainer = lab.launcher.script(
        """
        import os, subprocess
        held = os.environ["OUT"] + "/lock"
        subprocess.run(["flock", "-n", held, "true"], check=True)
        subprocess.Popen(["setsid", "flock", held, "sleep", "600"])
        while subprocess.run(["flock", "-n", held, "true"]).returncode == 0:
            pass
        """
    )
    lab.launcher.run(*lab.words(lab.launcher.local(1), "--grid=x=1,2,3", "--name=lab")).ran()
    assert [each["status"] for each in lab.results()] == ["succeeded"] * 3


def open_files(pid: int) -> set[str]:
    """The names of the files that a process has open."""
    names = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            names.add(each.readlink().name)
    return names


class Terminal:
    """A terminal of 24 lines, and what a command has shown on it."""

    def __init__(self, launcher: Launcher, *words: str | Path) -> None:
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        env = {name: value for name, value in launcher.env(TERM="xterm").items() if name != "COLUMNS"}
        streams = {"stdin": other, "stdout": other, "stderr": other}
        self._process = subprocess.Popen(
            launcher.argv(*map(str, words)), **streams, env=env, cwd=launcher.code
        )
        os.close(other)
        self.shown = b""

    def wait_for(self, *patterns: str) -> None:
        """Until all of them have been on the screen, colours left out."""
        while not all(re.search(pattern, self._plain()) for pattern in patterns):
            self.shown += os.read(self._main, 65536)

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        with contextlib.suppress(OSError):  # a terminal ends like that
            while more := os.read(self._main, 65536):
                self.shown += more
        return self._process.wait(PATIENCE_S)

    def _plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.shown.decode("utf-8", "replace"))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._main)


def test_on_a_terminal_a_live_table_tells_what_runs_and_what_is_best(lab: Lab) -> None:
    lab.hold()
    words = lab.words(lab.launcher.local(2), "--grid=x=0.5,0.25,0.125", "--metric=loss: (.*)", "--name=lab")
    with Terminal(lab.launcher, *words) as terminal:
        terminal.wait_for(
            *(r"0 of 3 done · 2 running · 1 waiting", r"trial/1 +local2 +x=0.25 +1.25 loss +[\d.]+ s"),
        )
        lab.go()
        assert terminal.end() == 0
    terminal.wait_for(r"trial/2 on local\d after [\d.]+ s +0.125 loss +x=0.125", r"results: .*results.jsonl")
    # The last line is the last, also on a terminal, where the table goes to another stream.
    assert terminal.shown.decode().rstrip().endswith("3 of 3 trials succeeded")
    # What was live is gone: each of its lines was left upwards, and wiped.
    assert terminal.shown.count(b"\x1b[J") >= terminal.shown.count(b" of 3 done")


# --- GPUs -----------------------------------------------------------------------------------------------


def test_trials_take_gpus_as_they_become_free(gpus: Gpus, lab: Lab) -> None:
    gpus.add()
    gpus.add()
    with contextlib.ExitStack() as holders:
        for host in ("host1", "host2"):
            words = gpus.words(host, 1, f"--include={host}", "--no-flags")
            holders.enter_context(gpus.launcher.start(*words)).wait_for("has GPU-")
        with start(lab, gpus.hostfile) as sweep:
            sweep.wait_for("as soon as GPUs are free")
            assert lab.told == []
            gpus.let_end("host2")
            assert lab.wait_for(1)[0]["CUDA_VISIBLE_DEVICES"] == uuid(2)
            gpus.let_end("host1")
            assert lab.wait_for(2)[1]["CUDA_VISIBLE_DEVICES"] == uuid(1)
            lab.go()
            sweep.done().ran()
    assert {(each["host"], *each["gpus"]) for each in lab.results()} == {("host1", "0"), ("host2", "0")}


def test_trials_wait_for_a_gpu_share_it_or_have_several(gpus: Gpus, lab: Lab) -> None:
    gpus.add(2)
    with contextlib.ExitStack() as running:
        holder = running.enter_context(gpus.launcher.start(*gpus.words("host1", 2, "--no-flags")))
        holder.wait_for("has GPU-")
        sweep = running.enter_context(start(lab, gpus.hostfile, "--trials-per-gpu=2", "--wait"))
        sweep.wait_for("waiting: 0 of 1 GPUs free; 1st in line")
        gpus.let_end("host1")
        told = lab.wait_for(4)
        lab.go()
        sweep.done().ran()
    assert sorted(each["CUDA_VISIBLE_DEVICES"] for each in told) == [uuid(1, 0)] * 2 + [uuid(1, 1)] * 2
    assert {each["TF_FORCE_GPU_ALLOW_GROWTH"] for each in told} == {"true"}

    words = lab.words(gpus.hostfile, "--grid=x=1,2", "--name=two")
    gpus.launcher.run(*words, "--gpus-per-trial=2").ran()
    assert [each["CUDA_VISIBLE_DEVICES"] for each in lab.told[-2:]] == [f"{uuid(1, 0)},{uuid(1, 1)}"] * 2
    refused = gpus.launcher.run(*lab.words(gpus.hostfile, "--grid=x=1"), "--gpus-per-trial=3").ran(65)
    assert (
        "no host has 3 free GPUs for a trial; host1 has the most: 2 (1 trial x 3: host1 2)"
        in refused.sentences
    )
    assert "Give each trial fewer: --gpus-per-trial 2." in refused.sentences
    lab.launcher.wait_until_nothing_is_left()
    assert [path.name[:4] for path in lab.launcher.records()] == [
        "lab-",
        "trai",
        "two-",
    ]  # nothing of the refused


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to try"),
        (["--grid=x=1", "--random=y=1..2"], "--grid and --random are two ways"),
        (["--random=y=1..2"], "how many trials?"),
        (["--grid=x=1", "--trials=3"], "--trials is for --random"),
        (["--grid=x=1", "--maximize"], "--maximize without --metric"),
        (["--grid=x=1", "--stop-below=median"], "--stop-below without --metric"),
        (["--grid=x=1", "--metric=loss", "--stop-below=mean"], "neither `median` nor a percentage"),
        (["--grid=x=1", "--name=a", "--resume=a"], "name the same thing"),
        (["--grid=x=1", "--resume=nothing"], "no run 'nothing' is on record"),
        (["--grid=x=1", "--name=No/Name"], "1 to 33 of a-z"),
        (["--grid=x=1", "--trials-per-gpu=2", "--gpus-per-trial=2"], "either several GPUs for a trial"),
        (["--grid=x=1", "--dry-run", "--wait"], "a dry run starts nothing, and waits for nothing"),
    ],
)
def test_what_is_no_sweep(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    for name, value in lab.launcher.env().items():
        monkeypatch.setenv(name, value)
    words = lab.words(lab.launcher.local(1), *options, "--json")
    refused = CliRunner().invoke(application(), [str(word) for word in words])
    assert refused.exit_code == 2
    assert message in " ".join(json.loads(line).get("message", "") for line in refused.stdout.splitlines())
    assert lab.launcher.records() == []


def test_a_job_file_is_not_swept(lab: Lab) -> None:
    job = lab.launcher.code / "job.yaml"
    job.write_text("program: trainer.py\n")
    refused = lab.launcher.run("sweep", lab.launcher.local(1), job, "--grid=x=1").ran(2)
    assert "job.yaml: a job file is for tflaunch run" in refused.sentences


def test_the_record_of_a_run_is_no_sweep(lab: Lab) -> None:
    hostfile = lab.launcher.local(1)
    run = lab.launcher.start("run", hostfile, lab.launcher.script("", "empty.py"), "--ps=0")
    name = run.run_id
    run.done().ran()
    refused = lab.launcher.run(*lab.words(hostfile, "--grid=x=1", f"--resume={name}")).ran(2)
    assert f"{name} is no sweep" in refused.sentences
    assert (lab.launcher.state / name / "outcome.json").exists()


def test_optuna_proposes_the_trials_and_stops_bad_ones(launcher: Launcher) -> None:
    trainer = """
    import argparse, time
    parser = argparse.ArgumentParser()
    parser.add_argument("--x", type=float)
    x = parser.parse_args().x
    for step in range(1, 6):
        print(f"step {step} loss {(x - 1) ** 2 + 1 / step}", flush=True)
        time.sleep(0.02)
    """
    script, hosts = launcher.script(trainer), launcher.local(2)
    axes = (
        "--random=x=-8..8",
        "--trials=14",
        "--metric=loss",
        "--sampler=tpe",
        "--pruner=asha",
        "--name=tpe",
    )
    said = ("sweep", hosts, script, *axes, "--yes")
    dry = launcher.run(*said, "--dry-run").ran()
    assert "14 trials to come, each proposed by what the others have shown" in dry.err
    assert "sweep (new) 14 trials" in dry.err
    assert launcher.records() == []
    record = Path("none")

    def results() -> list[dict[str, Any]]:
        path = next(iter(launcher.state.glob("tpe-??????")), record) / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    with launcher.start(*said) as running:
        until(lambda: len(results()) >= 4, "four results")
        running.interrupt()
        assert running.end() == EXIT_INTERRUPTED
    launcher.run("sweep", "--resume", next(launcher.state.glob("tpe-??????")).name).ran()
    found = results()
    assert sorted({each["trial"] for each in found}) == [*range(14)]
    assert {each["status"] for each in found} <= {"succeeded", "stopped"}
    assert all("by ASHA" in each["why"] for each in found if each["status"] == "stopped")
    assert len({each["params"]["x"] for each in found}) == 14
    refused = launcher.run("sweep", hosts, script, "--grid=x=1,2", "--metric=loss", "--sampler=tpe").ran(
        EXIT_USAGE
    )
    assert "--sampler tpe is for --random" in refused.err


def test_a_storage_that_fails_takes_no_result_with_it(launcher: Launcher, tmp_path: Path) -> None:
    trainer = """
    import os, sqlite3
    print("loss 1")
    if os.environ["TFLAUNCH_TRIAL"] == "1":
        with sqlite3.connect(os.environ["STUDY"]) as study:
            for table in ("trial_values", "trials"):
                study.execute(f"DROP TABLE {table}")
    """
    study, hosts = tmp_path / "study.db", launcher.local(1)
    axes = ("--random=x=0.0..1.0", "--trials=4", "--metric=loss", "--sampler=tpe", "--name=tpe", "--yes")
    storage = (f"--storage=sqlite:///{study}", f"--env=STUDY={study}")
    done = launcher.run("sweep", hosts, launcher.script(trainer), *axes, *storage).ran(EXIT_RECORD)
    assert done.sentences.count("no such table") == 1
    assert "Optuna proposes no more trials" in done.sentences
    (record,) = launcher.state.glob("tpe-??????")
    assert f"tflaunch sweep --env=STUDY --resume {record.name}" in done.sentences
    results = [json.loads(line) for line in (record / "results.jsonl").read_text().splitlines()]
    assert [(each["trial"], each["status"]) for each in results] == [(0, "succeeded"), (1, "succeeded")]
