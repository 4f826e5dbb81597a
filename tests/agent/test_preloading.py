"""Trials that fork from a process that has imported what they need: over pipes, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_over_pipes import Channel, Host, marked, swept, task
from tests.support.patience import PATIENCE_S, until
from tflaunch.agent.host import processes
from tflaunch.sweeps.seats import preloading

# Says what it is, as its own Python sees it and as others do, then ends as it is told.
PROGRAM = """
import atexit, json, os, pathlib, sys, threading
words, preloaded = sys.argv, "heavy" in sys.modules
import heavy, beside
atexit.register(lambda: print("atexit", flush=True))
proc = pathlib.Path("/proc/self")
print(json.dumps({
    "preloaded": preloaded,
    "words": words, "path": sys.path[0], "main": __name__, "file": __file__, "cwd": os.getcwd(),
    "own": __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals(), "here": beside.HERE,
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "parent": os.getppid(),
    "env": dict(os.environ), "shown": (proc / "environ").read_text().split(chr(0)),
    "cmdline": (proc / "cmdline").read_text().rstrip(chr(0)).split(chr(0)),
    "fds": sorted(os.readlink(each) for each in (proc / "fd").iterdir() if os.path.exists(each)),
    "cpus": sorted(os.sched_getaffinity(0)), "stdin": sys.stdin.read(), "drawn": heavy.DRAWN, "draw": heavy.draw(),
}), flush=True)
print("to stderr", file=sys.stderr, flush=True)
exec(json.loads(os.environ["TFLAUNCH_PARAMS"])["then"])
"""
HEAVY = """
import random
DRAWN = random.random()
draw = random.random
"""


class Sweep:
    """A run with a preloader, whose trials are this program."""

    def __init__(self, host: Host, directory: Path, *modules: str, heavy: str = HEAVY) -> None:
        self.place = directory / "program"
        self.modules = directory / "modules"
        for each in (self.place, self.modules):
            each.mkdir()
        (self.place / "trainer.py").write_text(PROGRAM)
        (self.place / "beside.py").write_text("HERE = True\n")
        (self.modules / "heavy.py").write_text(heavy)
        self.host = host
        self._number = 0
        self.channel: Channel = host.start()
        self.channel.ask(
            "stage",
            tasks=[],
            code=None,
            ports=[],
            gpus=[],
            door=False,
            attempt=0,
            preload=preloading(modules or ("heavy",)),
            answer="staged",
        )
        self.channel.send("watch", after=0, logs={}, window=1 << 20, client="test")
        self.notes: list[str] = []

    def add(self, then: str = "", *, words: tuple[str, ...] = ("trainer.py", "--x=1"), **fields: Any) -> str:
        """Start a trial; its name."""
        name = f"trial/{self._number}"
        self._number += 1
        env = {
            "PYTHONPATH": str(self.modules),
            "TFLAUNCH_TRIAL": str(self._number),
            "TFLAUNCH_PARAMS": json.dumps({"then": then}),
            "CUDA_VISIBLE_DEVICES": f"GPU-{self._number}",
            **fields.pop("env", {}),
        }
        wanted = task(sys.executable, *words, id=name, env=env, **{"cwd": str(self.place), **fields})
        self.channel.send("add", tasks=[wanted], attempt=0)
        return name

    def trial(self, then: str = "", **fields: Any) -> tuple[Mapping[str, Any], Any]:
        """Run a trial to its end: its exit, and what it has said of itself."""
        name = self.add(then, **fields)
        while (said := self.channel.wait("started", "exit", "said")).type != "exit":
            if said.type == "said":
                self.notes.append(said["text"])
        self.log = self.channel.read_log(name, lambda log: len(log) == said["log_bytes"]).decode()
        lines = [line for line in self.log.splitlines() if line.startswith('{"preloaded"')]
        return said.fields, json.loads(lines[0]) if lines else None

    def preloaders(self) -> list[processes.Process]:
        """The processes that fork; none or one."""
        return [
            each for each in marked(self.host.run) if b"preload.py" in b"".join(processes.command(each.pid))
        ]

    def preloader(self) -> processes.Process:
        """The process that forks."""
        (found,) = self.preloaders()
        return found

    def ready(self) -> None:
        """Start trials until one is forked."""
        until(lambda: self.trial()[1]["preloaded"], "a forked trial", PATIENCE_S)


def names(links: list[str]) -> list[str]:
    """What these lead to, without what is another one in each process."""
    return sorted(re.sub(r"trial-\d+|[\[-][-\da-f]+\b", "N", each) for each in links)


@pytest.fixture
def sweep(host: Host, tmp_path: Path) -> Iterator[Sweep]:
    yield Sweep(host, tmp_path)


def test_a_forked_trial_is_as_one_that_was_started(sweep: Sweep) -> None:
    cpu = min(os.sched_getaffinity(0))
    started_exit, started = sweep.trial(cpus=str(cpu))
    forked_exit, forked = started_exit, started
    while not forked["preloaded"]:
        assert sweep.preloader()
        forked_exit, forked = sweep.trial(cpus=str(cpu))
    again = sweep.trial(cpus=str(cpu))[1]
    assert again["preloaded"]
    assert again["drawn"] == forked["drawn"] != started["drawn"]  # by the one import
    assert again["draw"] != forked["draw"]
    assert (forked_exit["code"], forked_exit["signal"]) == (0, None)
    assert forked_exit.keys() == started_exit.keys()

    own = {"TFLAUNCH_TASK", "TFLAUNCH_TRIAL", "CUDA_VISIBLE_DEVICES"}
    left_out = {"preloaded", "drawn", "draw", "env", "shown", "fds"}
    for name in started.keys() - left_out:
        assert forked[name] == started[name], name
    assert forked["env"].keys() == started["env"].keys()
    changed = {name for name in forked["env"] if forked["env"][name] != started["env"][name]}
    assert changed == own
    # What is found by its marks is found by what /proc shows.
    as_it_is = {f"{name}={value}" for name, value in forked["env"].items() if name != "PYTHONPATH"}
    assert {each for each in forked["shown"] if each and not each.startswith("PYTHONPATH=")} == as_it_is
    assert [names(each["fds"]) for each in (started, again)] == [names(forked["fds"])] * 2
    assert sweep.log.splitlines()[1:] == ["to stderr", "atexit"]
    assert swept(sweep.channel)["killed"] == []


@pytest.mark.parametrize(
    ("then", "code", "number", "log"),
    [
        ("sys.exit(7)", 7, None, ""),
        ("os.kill(os.getpid(), 11)", None, signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
        (
            "raise ValueError('no')",
            1,
            None,
            'Traceback (most recent call last):\n  File "{place}/trainer.py", line',
        ),
        ("os.kill(os.getpid(), 2)", None, signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_its_end_is_its_own(sweep: Sweep, then: str, code: int | None, number: int | None, log: str) -> None:
    sweep.ready()
    ended, said = sweep.trial(then)
    assert said["preloaded"]
    assert (ended["code"], ended["signal"]) == (code, number)
    assert log.format(place=sweep.place) in sweep.log


def test_what_it_leaves_behind_ends_with_it_and_a_module_is_a_program_too(sweep: Sweep) -> None:
    leaves = "import subprocess; subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 600'])"
    sweep.ready()
    assert sweep.trial(leaves)[1]["preloaded"]
    assert [each.pid for each in marked(sweep.host.run)] == [sweep.preloader().pid]
    said = sweep.trial(words=("-m", "trainer", "--x=1"))[1]
    assert said["preloaded"]
    assert (said["words"][1:], said["path"]) == (["--x=1"], str(sweep.place))


def test_it_is_stopped_as_any_trial(sweep: Sweep) -> None:
    sweep.ready()
    name = sweep.add("import signal; signal.pause()")
    started = sweep.channel.wait("started")
    sweep.channel.read_log(name, lambda log: b"preloaded" in log)
    process = processes.read(started["pid"])
    assert process is not None
    sweep.channel.send("stop", tasks=[name], grace_s=60.0)
    ended = sweep.channel.wait("exit")
    assert (ended["signal"], ended["stopped"]) == (signal.SIGTERM, True)


def test_where_the_process_that_forks_is_killed_trials_start_as_ever(sweep: Sweep) -> None:
    sweep.ready()
    processes.send(sweep.preloader(), signal.SIGKILL)
    until(lambda: not any(sweep.preloaders()), "its end")
    for _ in range(2):
        ended, said = sweep.trial()
        assert (ended["code"], said["preloaded"]) == (0, False)
    assert sweep.notes == [
        "--preload heavy: trials start without it: the process that has imported it has ended"
    ]


@pytest.mark.parametrize(
    ("heavy", "why"),
    [
        ("raise RuntimeError('no')", "import heavy: RuntimeError: no"),
        (
            HEAVY
            + "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "they leave threads behind: python",
        ),
        (HEAVY + "import os; os._exit(3)", "the process that has imported it has ended"),
    ],
)
def test_what_cannot_be_preloaded_is_not_and_the_user_is_told(
    host: Host, tmp_path: Path, heavy: str, why: str
) -> None:
    own = "import os\nif os.path.basename(__import__('sys').argv[0]) == 'preload.py':\n"
    lines = "".join(f"    {line}\n" for line in heavy.splitlines())
    sweep = Sweep(host, tmp_path, heavy=HEAVY + own + lines)

    def told() -> list[str]:
        assert not sweep.trial()[1]["preloaded"]
        return sweep.notes

    (note,) = until(told, "the reason")
    assert note.startswith(f"--preload heavy: trials start without it: {why}")
    assert not sweep.preloaders()


def test_a_trial_that_needs_another_python_starts_as_ever(sweep: Sweep) -> None:
    sweep.ready()
    other = sweep.place.parent / "other"
    other.mkdir()
    for each in ("trainer.py", "beside.py"):
        (other / each).hardlink_to(sweep.place / each)
    (other / "heavy.py").write_text(HEAVY)
    cases: dict[str, dict[str, Any]] = {
        "it differs from the first one in OF_THE_IMPORT": {"env": {"OF_THE_IMPORT": "1"}},
        "it differs from the first one in setup:": {"setup": ["true"]},
        "its setup uses TFLAUNCH_TRIAL, and would run once for all trials": {
            "setup": ["echo $TFLAUNCH_TRIAL"]
        },
        "it is no Python program": {"words": ("-u", "trainer.py")},
        "its own heavy.py has the name of a module that is preloaded": {
            "cwd": str(other),
            "words": ("./trainer.py",),
        },
    }
    for why, fields in cases.items():
        said = sweep.trial(**fields)[1]
        assert not said["preloaded"], why
    assert sweep.notes == [f"--preload heavy: some trials start without it: {why}" for why in cases]
    assert sweep.trial()[1]["preloaded"]


def test_setup_runs_once_in_front_of_all(sweep: Sweep) -> None:
    setup = ["echo once >> ran", "export BY_SETUP=$((1 + 1))"]
    first = sweep.trial(setup=setup)[1]
    said = until(lambda: (each := sweep.trial(setup=setup)[1])["preloaded"] and each, "a forked trial")
    assert said["env"]["BY_SETUP"] == first["env"]["BY_SETUP"] == "2"
    ran = (sweep.place / "ran").read_text()
    assert sweep.trial(setup=setup)[1]["preloaded"]
    assert (sweep.place / "ran").read_text() == ran
