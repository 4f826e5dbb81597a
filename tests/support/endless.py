"""Runs that go on until somebody ends them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.launcher import Launcher, Running

ENDLESS = """
    import os, signal, time
    if os.environ.get("DEAF"):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
    print("here I am", flush=True)
    while True:
        time.sleep(1)
"""


@contextlib.contextmanager
def endless(launcher: Launcher, hostfile: Path, *more: str) -> Iterator[Running]:
    """A run of one ps and one worker that both run for ever."""
    script = launcher.script(ENDLESS)
    with launcher.start("run", hostfile, script, "--ps=1", "--workers=1", "--grace=2", *more) as running:
        running.wait_for("here I am", 4 if any("DEAF" in word for word in more) else 2)  # the deaf ones fork
        yield running


def kill(launcher: Launcher, run: str, *, agents: bool) -> None:
    """What a crash does: kill -9 to what carries the run's name, its agents or its tasks."""
    for process in launcher.leftovers(run):
        if process.is_agent == agents:
            process.kill()
