"""Processes below another, found by what the kernel keeps of each one's children."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.patience import until
from tflaunch.agent.host import processes

# A child of a thread that is not the first, and a grandchild.
PROGRAM = """
import subprocess, sys, threading
def start():
    global child
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], stdin=subprocess.DEVNULL)
thread = threading.Thread(target=start)
thread.start()
thread.join()
sys.stdin.read()
child.kill()
"""


@pytest.mark.parametrize("told", [True, False], ids=["by the kernel", "by a look at all"])
def test_all_that_is_below_is_found(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    if not told:
        listdir = os.listdir

        def without_tasks(path: str) -> list[str]:
            if path.endswith("/task"):
                raise FileNotFoundError(path)
            return listdir(path)

        monkeypatch.setattr(os, "listdir", without_tasks)
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE) as program:
        until(lambda: len(processes.at_hand(program.pid)) == 2, "both have started")
        shell, sleeper = sorted(processes.at_hand(program.pid), key=lambda each: each.start)
        assert {each.pid for each in (shell, sleeper)} == {
            each.pid for each in processes.descendants(program.pid, processes.every())
        }
        assert (shell.parent, sleeper.parent) == (program.pid, shell.pid)
        os.kill(sleeper.pid, 9)
        assert program.stdin is not None
        program.stdin.close()


def test_below_what_is_gone_is_nothing() -> None:
    with subprocess.Popen(["true"]) as program:
        program.wait()
        assert processes.at_hand(program.pid) == []
