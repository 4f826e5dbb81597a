"""A run is handed from its launcher to a coordinator on its hosts while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.runs.test_detach import coordinator, events, host_of, second_starts
from tests.support.detached import COUNT, end
from tests.support.launcher import Launcher, Running
from tests.support.patience import until
from tflaunch.agent import processes


def attached(launcher: Launcher, hosts: Path, out: Path, *options: str) -> Running:
    """A run of 1 ps and 2 workers, with its launcher."""
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--lease=6", "--ps-grace=0.2", *options)
    running = launcher.start("run", hosts, launcher.script(COUNT), *words)
    running.wait_for("worker-1 attempt 0 number 5")
    return running


def test_the_launcher_ends_and_the_run_goes_on(launcher: Launcher, out: Path) -> None:
    with attached(launcher, launcher.local(3), out) as running:
        run = running.run_id
        done = launcher.run("detach", run).ran()
        assert f"{run} goes on without its launcher; watch it: tflaunch attach {run}" in done.sentences
        left = running.done().ran()
    assert f"{run} goes on by itself: 3 tasks" in left.err
    assert f"tflaunch attach {run}" in left.err
    assert coordinator(launcher, host_of(launcher, "worker/0"))
    assert "detached: it needs no launcher" in launcher.run("status", run).ran().sentences
    [listed] = json.loads(launcher.run("ps", "--json").ran().out)["runs"]
    assert listed["detached"] is True
    again = launcher.run("detach", run).ran()
    assert "goes on without its launcher already" in again.sentences
    with launcher.start("attach", run) as watching:
        watching.wait_for("has handed it over")
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        watching.done().ran()
    [path] = launcher.hosts.glob("tflaunch-*/*/*/logs/worker-1.log")
    assert "attempt 1" not in path.read_text()
    launcher.wait_until_nothing_is_left()
