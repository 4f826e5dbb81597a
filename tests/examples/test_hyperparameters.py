"""The example of a sweep: real TensorFlow."""

from __future__ import annotations

import re

from tests.support import ROOT
from tests.support.frameworks import WITHOUT_KERAS
from tests.support.launcher import Launcher
from tests.support.patience import until

EXAMPLE = ROOT / "examples/hyperparameters.py"


def test_the_example_is_compared_and_a_trial_that_was_killed_goes_on_from_its_checkpoint(
    launcher: Launcher,
) -> None:
    options = ("--metric=loss", "--retries=1", "--name=moons", "--trials-per-host=2", WITHOUT_KERAS)
    with launcher.start(
        *("sweep", launcher.local(1), EXAMPLE, "--grid=lr=1,0.05", *options),
        *("--", "--steps=1500", "--checkpoint_steps=100", "--layers=2"),
        cwd=EXAMPLE.parent,
    ) as sweep:
        log = until(lambda: next(launcher.state.glob("moons-*/logs/trial-0.log"), None), "a log")
        until(lambda: '"step": 200' in log.read_text(), "the second checkpoint")  # the first is whole
        for process in launcher.leftovers():
            if process.env.get("TFLAUNCH_TASK") == "trial/0" and "tflaunch-ready" not in str(process):
                process.kill()
        done = sweep.done(300).ran()
    assert "trial/0 on local1 was killed by SIGKILL; it is tried again (1 of 1)" in done.err
    resumed = re.search(r"^resumes at step (\d+)$", log.with_name("trial-0.1.log").read_text(), re.MULTILINE)
    assert resumed
    assert int(resumed[1]) >= 100
    rows = [row.split() for row in done.out.splitlines()]
    assert [row[1:3] for row in rows] == [["trial", "lr"], ["0", "1"], ["1", "0.05"]]
    assert float(rows[1][0]) < 0.5 * float(rows[2][0])
