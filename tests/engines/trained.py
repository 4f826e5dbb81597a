"""What the tests of every engine with a cluster run, and what they ask of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.support.bed import FarLauncher
from tests.support.launcher import TFLAUNCH, Running

TRAINER = """
    import os, signal, sys, time
    def save(*_):
        print("saved by", os.environ["TFLAUNCH_TASK"], flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    open("made.txt", "w").write("by " + os.environ["TFLAUNCH_TASK"])
    misleading = [name for name in os.environ if name.startswith(MISLEADING)]
    print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "of", os.environ["TFLAUNCH_TASK"], misleading, flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        time.sleep(0.05)
    print("ends", flush=True)
"""


def trainer(*misleading: str) -> str:
    """A program that runs for as many seconds as its argument says, and saves at SIGTERM.

    It names the variables that begin like one of `misleading`: what an engine tells its own processes.
    """
    return TRAINER.replace("MISLEADING", repr(misleading))


def train(user: FarLauncher, program: str, slots: str, tasks: Sequence[str], *words: str) -> Running:
    """A run whose tasks train, as many as `tasks` says by `--workers=N`."""
    [workers] = [int(word.partition("=")[2]) for word in tasks if word.startswith("--workers=")]
    running = user.start("run", slots, user.script(program), *tasks, *words)
    running.wait_for("attempt 0 of", workers)
    return running


def look_from_other_terminals(user: FarLauncher, running: Running) -> None:
    """Every verb finds the run, of two tasks; the last one stops it."""
    with running:
        assert "2/2" in user.run("ps").ran().out
        assert "running" in user.run("status").ran().out
        assert "attempt 0 of worker/1" in user.run("logs", running.run_id, "worker/1").ran().out
        with user.start("attach") as viewer:
            viewer.wait_for("attempt 0 of", 2)
            assert "is stopped" in user.run("stop").ran().sentences
            assert viewer.end() == 143
        assert running.end() == 143, running.err
    assert "stopped" in user.run("ps", "-a").ran().out


class Impatient(FarLauncher):
    """A user whose tflaunch tells after a second what it waits for; goes before the class of the engine's user."""

    changes: ClassVar[Mapping[str, object]] = {}  # of constants in `tflaunch.engines`, as `module.NAME`

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        inside = len(self.inside().words)
        lines = ["import sys", "from tflaunch.console import phases", "phases._SLOW_S = 1.0"]
        for name, value in self.changes.items():
            lines += [f"from tflaunch.engines import {name.partition('.')[0]}", f"{name} = {value!r}"]
        lines += ["from tflaunch.cli import main", "sys.exit(main())"]
        argv = super().argv(verb, *words)
        return [*argv[:inside], sys.executable, "-c", "\n".join(lines), *argv[inside + len(TFLAUNCH) :]]
