"""Why a program ended, as a run, its watcher and its status tell it."""

from __future__ import annotations

import re

from tests.support.launcher import Launcher


def test_a_run_its_watcher_and_its_status_tell_why(launcher: Launcher) -> None:
    text = (
        "Traceback (most recent call last):\n  File 'a'\nValueError: the cause \x1b[31m\n" + "noise\n" * 600
    )
    trainer = launcher.script(f"import sys\nsys.stdout.write({text!r} * 1)\nsys.exit(3)\n")
    cause = re.compile(r"ValueError: the cause")
    long = launcher.script(
        f"import sys\nsys.stdout.write({text + 'x' * 60 + chr(10)!r} + 'more noise\\n' * 9000)\nsys.exit(3)\n",
        "long.py",
    )
    done = launcher.run("run", launcher.local(1), long, "--ps=0", "--workers=1", "--json").ran(3)
    assert cause.match(done.events[-1]["first_failure"]["error"])  # more than the 64 KiB that the host tells
    done = launcher.run("run", launcher.local(1), trainer, "--ps=0", "--workers=1", "-q").ran(3)
    assert cause.search(done.err)
    assert "\x1b" not in done.err
    run = re.search(r"^run (\S+)", done.err, re.MULTILINE)[1]  # type: ignore[index]
    assert cause.search(launcher.run("attach", run).err)
    assert cause.search(launcher.run("status", run).out)
