"""`tflaunch attach` to a run that is over: a terminal gets the end of it, a pipe all of it."""

from __future__ import annotations

import json
import re
import signal

from tests.support.endless import endless
from tests.support.launcher import Launcher
from tests.support.terminal import Terminal

LINES = 200
TRAINER = f"""\
import os
for number in range({LINES}):
    print("line", number, "of", os.environ["TFLAUNCH_TASK"])
"""


def lines(text: str) -> list[str]:
    """The lines of the tasks: `worker/0 line 7`."""
    return sorted(" ".join(found) for found in re.findall(r"(worker/\d)\s+│ (line \d+)", text))


def test_a_terminal_gets_the_last_lines_and_the_report(launcher: Launcher) -> None:
    trainer = launcher.script(TRAINER)
    launcher.run("run", launcher.local(2), trainer, "--ps=0", "--workers=2", "--name=mine").ran()
    [run] = [path.name for path in launcher.records()]

    def shown(*words: str) -> Terminal:
        with Terminal(launcher.argv("attach", *words), launcher.env(), launcher.code) as terminal:
            assert terminal.end() == (2 if "--tail=1" in words and "--all" in words else 0)
        return terminal

    brief = shown()
    expected = [f"worker/{task} line {number}" for task in (0, 1) for number in range(LINES - 15, LINES)]
    assert lines(brief.shown) == sorted(expected)
    assert f"{run} is over; its last lines (all: tflaunch attach --all {run}):" in brief.sentences
    assert f"{run} succeeded: 2 tasks" in brief.sentences
    assert len(lines(shown("--only=worker/1").shown)) == 30
    assert lines(shown(run, "--tail=1").shown) == ["worker/0 line 199", "worker/1 line 199"]
    everything = shown("--all", run)
    assert len(lines(everything.shown)) == 2 * LINES
    assert "is over" not in everything.sentences
    assert "--all and --tail or --since: how much?" in shown("--all", "--tail=1").sentences
    piped = launcher.run("attach", run).ran()
    assert len(lines(piped.out)) == 2 * LINES
    assert "is over" not in piped.err


def test_a_run_that_was_stopped_without_its_launcher_is_stopped_for_every_command(
    launcher: Launcher,
) -> None:
    """Nobody was there who could have told the hosts how it ends; this machine has noted it."""
    with endless(launcher, launcher.local(2), "--lease=60") as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
    launcher.run("stop", run).ran()
    [listed] = json.loads(launcher.run("ps", "-a", "--json", "--hosts", launcher.local(2)).ran().out)["runs"]
    assert (listed["state"], listed["outcome"]["status"]) == ("stopped", "interrupted")
    assert listed["outcome"]["exit_code"] == 143
    assert f"{run} stopped by" in launcher.run("attach", run).ran(143).sentences
