"""`tflaunch rerun`, through the command: a run on record starts once more, and what is not as it was is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.launcher import Launcher

SHOWS = """
    import os, sys
    print("shows", os.environ["RATE"], sys.argv[1:], os.getcwd(), flush=True)
"""


def test_a_run_starts_once_more(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = launcher.script(SHOWS)
    monkeypatch.chdir(trainer.parent)
    words = ("run", "localhost", trainer.name, "--workers=2", "--ps=0", "--no-flags", "--env=RATE=0.5")
    launcher.run(*words, "--name=first", "--", "a b").ran()
    first = launcher.records()[0].name

    monkeypatch.chdir(tmp_path)
    assert "RATE" not in os.environ
    refused = launcher.run("rerun").ran(2)
    assert f"{first} had --env RATE, and no record has the values" in refused.sentences
    assert f"RATE=... tflaunch rerun {first}" in refused.sentences

    monkeypatch.setenv("RATE", "0.25")
    again = launcher.run("rerun", first).ran()
    assert again.out.count("shows 0.25 ['a b']") == 2
    assert "the code is not" not in again.sentences

    trainer.write_text(trainer.read_text() + "\nprint('changed')\n")
    changed = launcher.run("rerun", "--workers=1", first, "--", "c").ran()
    assert changed.out.count("shows 0.25 ['c']") == 1
    assert f"the code is not that of {first}: it has changed since" in changed.sentences
    assert f"{first} also had worker/1" in changed.sentences

    of_the_second = launcher.run("rerun", "--dry-run").ran()  # the newest is a rerun itself
    assert "worker/0" in of_the_second.out
    assert "worker/1" not in of_the_second.out

    trainer.parent.joinpath(trainer.name).unlink()
    gone = launcher.run("rerun", first).ran(2)
    assert trainer.name in gone.sentences


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "no run 'nothing' is on record"),
        (["a", "b.py"], "b.py: rerun takes one RUN, and options of tflaunch run"),
        (["a", "--epochs=3"], "--epochs=3: rerun takes one RUN, and options of tflaunch run"),
    ],
)
def test_what_cannot_be_meant(launcher: Launcher, words: list[str], sentence: str) -> None:
    assert sentence in launcher.run("rerun", *words).ran(2).sentences


STRICT = """
    import argparse, os
    if "NEVER" in os.environ:
        import tensorflow
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    print("epochs", parser.parse_args().epochs, flush=True)
"""


def test_a_program_that_knows_no_cluster_is_one_task_again(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = launcher.script(STRICT)
    monkeypatch.chdir(trainer.parent)
    launcher.run("run", "localhost", trainer.name, "--", "--epochs=3").ran()
    assert "epochs 3" in launcher.run("rerun").ran().out
