"""Detached runs whose tasks end when the test says so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.launcher import Launcher

# Prints numbered lines until $OUT/<task>.stop appears; then ends with the code that is in it.
COUNT = """
    import os, pathlib, sys, time
    task, out = os.environ["TFLAUNCH_TASK"].replace("/", "-"), pathlib.Path(os.environ["OUT"])
    attempt = os.environ["TFLAUNCH_ATTEMPT"]
    number = 0
    while True:
        print(f"{task} attempt {attempt} number {number}", flush=True)
        number += 1
        stop = out / f"{task}.stop"
        if stop.exists():
            code = int(stop.read_text() or 0)
            stop.unlink()
            sys.exit(code)
        time.sleep(0.02)
"""


def detached(launcher: Launcher, hosts: Path, out: Path, *options: str) -> str:
    """The id of a run of 1 ps and 2 workers that has been left to itself."""
    trainer = launcher.script(COUNT)
    words = ("--ps=1", "--workers=2", f"--env=OUT={out}", "--lease=6", "--ps-grace=0.2", *options)
    done = launcher.run("run", "-d", hosts, trainer, *words).ran()
    found = re.search(r"(\S+) goes on by itself: 3 tasks", done.err)
    assert found, done.err
    return found[1]


def end(out: Path, task: str, code: int = 0) -> None:
    """Have a task end with that code."""
    (out / f"{task}.new").write_text(str(code))
    (out / f"{task}.new").rename(out / f"{task}.stop")
