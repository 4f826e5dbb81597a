"""What the watchdog of a real run was told is noted, and can be told again."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.diagnosis import recorder
from tests.diagnosis.replay import replay
from tests.support import ROOT
from tests.support.launcher import Launcher
from tests.support.patience import until

PROGRAM = """
    import pathlib, os, sys, time
    print("begins", flush=True)
    while not (pathlib.Path(os.environ["OUT"]) / "end").exists():
        time.sleep(0.1)
    sys.exit(3)
"""


class Noted(Launcher):
    """Whose tflaunch is noted."""

    @property
    def record(self) -> Path:
        """Where."""
        return self.directory / "record.jsonl"

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        return [sys.executable, recorder.__file__, self.record, *super().argv(verb, *words)[3:]]

    def env(self, **more: str) -> dict[str, str]:
        return super().env(PYTHONPATH=str(ROOT), **more)


def test_a_run_is_noted_and_told_again(tmp_path: Path, out: Path) -> None:
    launcher = Noted(tmp_path)
    words = ("--ps=0", "--workers=1", "--grace=1", f"--env=OUT={out}")
    with launcher.start("run", launcher.local(1), launcher.script(PROGRAM), *words) as running:
        running.wait_for("begins")
        [worker] = [each for each in launcher.leftovers() if each.env.get("TFLAUNCH_TASK") == "worker/0"]
        os.kill(worker.pid, signal.SIGSTOP)
        until(lambda: "is stopped (state T)" in running.err, "the diagnosis")
        os.kill(worker.pid, signal.SIGCONT)
        (out / "end").touch()
        running.done().ran(3)
    launcher.close()
    lines = [json.loads(line) for line in launcher.record.read_text().splitlines()]
    types = [line["type"] for line in lines]
    assert types[:2] == ["watchdog", "begin"]
    assert {"started", "looked", "said", "exit"} <= set(types)
    [ended] = [line for line in lines if line["type"] == "exit"]
    assert (ended["task"], ended["code"]) == ("worker/0", 3)
    said = [sentence for line in lines if line["type"] == "said" for sentence in line["sentences"]]
    assert [text for _, text in replay(launcher.record)] == said
