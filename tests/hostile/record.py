"""Records what real agents say: `python -m tests.hostile.record [SCENARIO...]` writes recordings.json anew.

Each scenario is a command of a user over two hosts that are this machine, local1 and local2, with simulated GPUs.
What it finds on the launcher's side before it starts (records, programs) is kept with what the agents said, question by
question, so that `tests.hostile.replay` can have the same command hear it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile import relay
from tests.support.launcher import Launcher, Running
from tests.support.nvml import Fleet, build
from tests.support.patience import until

RECORDINGS = Path(__file__).with_name("recordings.json")
ROOT, PYTHON = "@ROOT@", "@PYTHON@"
RUN = "trainer-aaaaaa"  # what a run of the recordings is called that other verbs ask for
HOSTS = ("local1", "local2")

TRAINER = """\
import os, socket, sys, time
task = os.environ["TFLAUNCH_TASK"]
if task.startswith("ps"):
    time.sleep(600)
os.makedirs("out", exist_ok=True)
with open("out/" + task.replace("/", "-") + ".txt", "w") as file:
    file.write("made by " + task + "\\n")
print("hello from", task, flush=True)
time.sleep(float(os.environ.get("SLEEP", "0.3")))
print("loss: 0.5", flush=True)
sys.exit(int(os.environ.get("CODE", "0")))
"""
SWEEP = """\
trainer: trainer.py
sweep:
  grid:
    x: [1, 2]
"""
GPUS = (
    'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-aaaa mem=81559 used=1024 reserved=551 util=7 temp=33 power=71000'
    " limit=700000 cc=9.0 bus=0000:18:00.0 serial=165",
    'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-bbbb mem=81559 used=512 cc=9.0 bus=0000:19:00.0',
    'gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-cccc mem=81559 cc=9.0 bus=0000:1a:00.0 mig=1',
    'mig gpu=2 uuid=MIG-dddd name="NVIDIA H100 80GB HBM3 MIG 1g.10gb" mem=9728 used=12 gi=7 ci=0',
    "topo 0 1 10",
    "nvlink 0 1 18",
)


@dataclass(frozen=True)
class Scenario:
    """A command; `before` prepares what it needs and `beside` does what others do while it runs."""

    words: tuple[str, ...]
    before: Callable[[_Stage], object] = lambda _: None
    beside: Callable[[_Stage, Running], object] = lambda _, __: None
    gpus: bool = False
    env: tuple[tuple[str, str], ...] = ()
    ends: bool = True  # by itself; else Ctrl-C does it, once it shows `shows`
    shows: str = ""


class _Stage:
    """Two hosts, a user, and the program that writes down what passes."""

    def __init__(self, root: Path, library: Path, scenario: Scenario) -> None:
        self.launcher = Launcher(root)
        self.heard = root / "heard"
        self.heard.mkdir()
        self._plan = root / "plan.json"
        self.launcher.script(TRAINER)
        (self.launcher.code / "sweep.yaml").write_text(SWEEP)
        self.env = {
            "PATH": f"{relay.install(root / 'bin')}:{os.environ['PATH']}",
            relay.PLAN: str(self._plan),
        }
        self.env |= {"TFLAUNCH_LEASES": str(root / "leases"), **dict(scenario.env)}
        if scenario.gpus:
            fleet = Fleet(library, root / "fleet", *GPUS, f"proc gpu=0 pid={os.getpid()} mem=500")
            self.env |= fleet.env
        self.hear(False)
        self.launcher.local(2, gpus="auto" if scenario.gpus else 0)

    def hear(self, wanted: bool) -> None:
        """Write down, from now on, or not."""
        mode = {"mode": "record", "to": str(self.heard)} if wanted else {"mode": "mutate"}
        self._plan.write_text(json.dumps(mode))

    def run(self, *words: str) -> None:
        """A command that belongs to the preparations."""
        self.launcher.run(*words, env=self.env)

    def detached(self, *words: str) -> None:
        """A run that goes on by itself."""
        self.run("run", "../hosts.yaml", "trainer.py", "--workers=2", "--ps=1", "--detach", *words)


def _sample(stage: _Stage) -> None:
    """A detached run, of which its hosts have samples."""
    stage.detached("--env=SLEEP=60")
    until(lambda: [*stage.launcher.hosts.glob("**/samples.jsonl")], "samples on a host")


def _kill_agent(stage: _Stage) -> None:
    stage.detached("--env=SLEEP=3")
    [path] = stage.launcher.hosts.glob("tflaunch-*/*/local1/agent.json")
    os.kill(json.loads(path.read_text())["pid"], 9)


def _stop_it(stage: _Stage, running: Running) -> None:
    running.wait_for("hello from worker/1")
    stage.hear(False)
    stage.run("stop", running.run_id)


def _hand_it_over(stage: _Stage, running: Running) -> None:
    running.wait_for("hello from worker/1")
    stage.run("detach", running.run_id)


def _launch(stage: _Stage) -> None:
    """A run whose launcher stays with it."""
    words = ("run", *BASE, "--env=SLEEP=60")
    stage.launcher.start(*words, env=stage.env).wait_for("hello from worker/1")


def _leave_it(stage: _Stage, running: Running) -> None:
    running.wait_for("worker/1 on local2 finished")
    running.interrupt()


def _interrupt(stage: _Stage, running: Running) -> None:
    running.wait_for("tflaunch stop")
    running.interrupt()


def _browse(stage: _Stage, running: Running) -> None:
    running.wait_for("TensorBoard: http")
    url = next(word for word in running.err.split() if word.startswith("http://127"))
    with contextlib.suppress(OSError):
        urllib.request.urlopen(url, timeout=60).read()  # noqa: S310 - our own
    running.interrupt()


BASE = ("../hosts.yaml", "trainer.py", "--workers=2", "--ps=1", "--ps-grace=0s")
SCENARIOS = {
    "run": Scenario(("run", *BASE, "--fetch=out/**", "--fetch-to=got")),
    "failing": Scenario(("run", *BASE, "--env=CODE=3")),
    "watched": Scenario(("run", *BASE, "--startup-timeout=2s", "--env=SLEEP=9")),
    "stopped": Scenario(("run", *BASE, "--env=SLEEP=60", "--grace=1s"), beside=_stop_it),
    "unready": Scenario(("run", *BASE, "--container=none", "--container-engine=/bin/false")),
    "with-gpus": Scenario(
        ("run", "../hosts.yaml", "trainer.py", "--workers=1", "--ps=0", "--wait=1s"), gpus=True
    ),
    "waiting": Scenario(
        ("run", "../hosts.yaml", "trainer.py", "--workers=2", "--ps=0", "--wait=1s"),
        before=lambda stage: stage.run(
            "run", "../hosts.yaml", "trainer.py", "--workers=1", "--ps=0", "--detach", "--env=SLEEP=60"
        ),
        gpus=True,
    ),
    "detached": Scenario(("run", *BASE, "--detach")),
    "handed": Scenario(("run", *BASE, "--env=SLEEP=60"), beside=_hand_it_over),
    "detach": Scenario(("detach", "{run}"), before=_launch),
    "attach": Scenario(("attach",), before=lambda stage: stage.detached("--env=SLEEP=3")),
    "attach-ended": Scenario(("attach", "{run}"), before=lambda stage: stage.run("run", *BASE)),
    "attach-dead": Scenario(("attach", "{run}"), before=_kill_agent, beside=_leave_it, ends=False),
    "logs": Scenario(("logs", "{run}"), before=lambda stage: stage.run("run", *BASE)),
    "fetch": Scenario(("fetch", "{run}", "out/**", "--to=got"), before=lambda stage: stage.run("run", *BASE)),
    "stop": Scenario(("stop", "--grace=1s"), before=lambda stage: stage.detached("--env=SLEEP=60")),
    "ps": Scenario(("ps", "-a"), before=lambda stage: stage.detached("--env=SLEEP=60")),
    "status": Scenario(("status", "{run}"), before=lambda stage: stage.run("run", *BASE, "--env=CODE=3")),
    "status-dead": Scenario(("status", "{run}"), before=_kill_agent),
    "report": Scenario(("report", "{run}"), before=_sample),
    "stacks": Scenario(("stacks", "{run}"), before=lambda stage: stage.detached("--env=SLEEP=60")),
    "bandwidth": Scenario(("check", "../hosts.yaml", "--no-tensorflow", "--bandwidth")),
    "clean": Scenario(("clean", "{run}", "--yes"), before=lambda stage: stage.run("run", *BASE)),
    "clean-old": Scenario(("clean", "--keep-last=0", "--yes"), before=lambda stage: stage.run("run", *BASE)),
    "gpus": Scenario(("gpus", "../hosts.yaml"), gpus=True),
    "topology": Scenario(("gpus", "../hosts.yaml", "--topology"), gpus=True),
    "check": Scenario(("check", "../hosts.yaml", "--no-tensorflow"), gpus=True),
    "sweep": Scenario(("sweep", "../hosts.yaml", "trainer.py", "--grid=x=1,2", "--yes")),
    "up": Scenario(("up", "../hosts.yaml", "--workers=2", "--ps=0"), beside=_interrupt, ends=False),
    "tensorboard": Scenario(
        ("tensorboard", "{run}", "out"),
        before=lambda stage: stage.run("run", *BASE),
        beside=_browse,
        ends=False,
    ),
}


def record(name: str, root: Path, library: Path) -> dict[str, Any]:
    """Run one scenario with real agents; what is kept of it."""
    scenario = SCENARIOS[name]
    stage = _Stage(root, library, scenario)
    try:
        scenario.before(stage)
        run = next((path.name for path in sorted(stage.launcher.records())), RUN)
        words = [word.replace("{run}", run) for word in scenario.words]
        files = {
            str(path.relative_to(root)): path.read_text("utf-8", "surrogateescape")
            for top in ("state", "code", "hosts.yaml")
            for path in sorted([root / top, *(root / top).rglob("*")])
            if path.is_file() and "__pycache__" not in path.parts
        }
        stage.hear(True)
        with stage.launcher.start(*words, env=stage.env) as running:
            scenario.beside(stage, running)
            done = running.done(120)
        stage.hear(False)
        sys.stderr.write(f"{name}: {done.code}\n{done.err if done.code else ''}")
        channels: dict[str, list[Any]] = {}
        for path in sorted(stage.heard.iterdir()):
            channels.setdefault(" ".join(path.name.split("-")[1:3]), []).append(_groups(path))
        return {
            "words": words,
            "code": done.code,
            "files": files,
            "channels": channels,
            "ends": scenario.ends,
        }
    finally:
        for path in stage.launcher.records():
            stage.run("stop", path.name)
        stage.launcher.close()


def _groups(path: Path) -> list[Any]:
    """What was said after each question; beats are left out."""
    groups: list[Any] = [["", []]]
    for line in path.read_text().splitlines():
        way, kind, *more = json.loads(line)
        if way == "in" and kind not in relay.ASIDE:
            groups.append([kind, []])
        elif way == "out" and kind != "beat":
            groups[-1][1].append([kind, *more])
    return groups


def main() -> None:
    """Record the scenarios that are named, or all."""
    wanted = sys.argv[1:] or list(SCENARIOS)
    every = json.loads(RECORDINGS.read_text()) if RECORDINGS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="tflaunch-recorded-") as directory:
        library = Path(directory) / "nvml"
        library.mkdir()
        build(library)
        for name in wanted:
            root = Path(directory) / name
            root.mkdir()
            began = time.monotonic()
            text = json.dumps(record(name, root, library))
            sys.stderr.write(f"{name}: {time.monotonic() - began:.1f} s\n")
            for real, stands in (
                (str(root), ROOT),
                (str(Path(sys.executable).parent), PYTHON),
                (str(Path(__file__).parent.parent.parent), "/src"),
                (socket.gethostname(), "node"),
                (
                    Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
                    "00000000-0000-0000-0000-000000000000",
                ),
            ):
                text = text.replace(real, stands)
            every[name] = json.loads(text)
            RECORDINGS.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
