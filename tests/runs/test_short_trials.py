"""Sweeps whose trials fork from a process that has imported their modules: the command, and what it says."""

from __future__ import annotations

import re

import pytest

from tests.support.launcher import Launcher
from tflaunch.protocol.errors import EXIT_USAGE

# Ends once the process that forks has imported, and says whether it was forked.
TRIAL = """\
import os, sys, time

def there():
    agent = os.getppid()
    for pid in open(f"/proc/{agent}/task/{agent}/children").read().split():
        if "preload.py" in open(f"/proc/{pid}/cmdline").read() and os.readlink(f"/proc/{pid}/cwd") == "/":
            return True

print("forked", int("xmlrpc.client" in sys.modules))
while not there():
    time.sleep(0.05)
"""


def test_trials_fork_once_the_module_is_imported(launcher: Launcher) -> None:
    trainer = launcher.script(TRIAL, "trial/trainer.py")
    words = (
        "sweep",
        launcher.local(1),
        trainer,
        "--metric=forked",
        "--maximize",
        "--grid=x=1,2,3,4,5,6,7,8",
        "--yes",
    )
    done = launcher.run(*words, "--preload=xmlrpc.client").ran()
    forked = {int(row.split()[1]): row.split()[0] == "1" for row in done.out.splitlines()[1:]}
    assert forked.keys() == set(range(8))
    assert not forked[0]
    assert forked[7]  # most likely 1, too; the first ones may end before it is ready
    assert "start without it" not in done.err


def test_what_cannot_be_imported_is_told_once(launcher: Launcher) -> None:
    trainer = launcher.script("print('loss', 1)", "trial/trainer.py")
    words = (
        "sweep",
        launcher.local(1),
        trainer,
        "--metric=loss",
        "--grid=x=1,2,3,4,5,6,7,8,9,10,11,12",
        "--yes",
    )
    done = launcher.run(*words, "--env=PYTHONPATH=relative", "--preload=xmlrpc.client").ran()
    notes = re.findall("--preload xmlrpc.client: trials start without it: (.*)", done.err)
    assert notes == ["PYTHONPATH has a relative directory"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--preload=tensor flow",), "--preload tensor flow: not the name of a module"),
        (("--preload=a", "--container=image"), "--preload a: trials in containers cannot be forked"),
    ],
)
def test_what_cannot_be_preloaded_is_a_mistake(launcher: Launcher, words: tuple[str, ...], why: str) -> None:
    trainer = launcher.script("", "trial/trainer.py")
    done = launcher.run("sweep", launcher.local(1), trainer, *words, "--grid=x=1")
    assert done.code == EXIT_USAGE
    assert why in done.err
