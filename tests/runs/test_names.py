"""Runs that are named, and commands that name none: which run is meant, and that it is said."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.detached import detached, end
from tests.support.launcher import Launcher
from tests.support.patience import until

PRINTS = """
    import os, pathlib
    print("printed by", os.environ["TFLAUNCH_TASK"])
    pathlib.Path("made").write_text("it")
"""


def test_a_run_is_found_by_its_name_and_without_one(launcher: Launcher) -> None:
    hosts = launcher.local(2)
    for name in ("first", "second"):
        launcher.run("run", hosts, launcher.script(PRINTS), "--ps=0", "--workers=2", f"--name={name}").ran()
    newest, older = sorted((record.name for record in launcher.records()), reverse=True)
    assert re.fullmatch(r"second-[a-z2-7]{6}", newest)
    said = f"{newest}: the newest run; none is alive"
    one = launcher.run("logs", "worker/1").ran()
    assert one.out == "printed by worker/1\n"
    assert said in one.sentences
    assert "printed by worker/0" in launcher.run("logs").ran().out
    assert launcher.run("logs", "first", "worker/0").ran().out == "printed by worker/0\n"
    assert older in launcher.run("status", "first").ran().out
    assert newest in launcher.run("status").ran().out
    assert said in launcher.run("fetch", "made*", "--to=there").ran().sentences
    assert [path.read_text() for path in (launcher.code / "there").rglob("made")]


def test_of_several_the_living_one_is_meant_and_its_name_is_taken(launcher: Launcher, out: Path) -> None:
    run = detached(launcher, launcher.local(3), out, "--name=lives")
    launcher.run("run", launcher.local(1), launcher.script(PRINTS, "p.py"), "--ps=0", "--workers=1").ran()
    said = launcher.run("logs", "--tail=1", "worker/0").ran()
    assert f"{run}: the only run alive" in said.sentences
    assert said.out.startswith("worker-0 attempt 0")
    for worker in ("worker-0", "worker-1"):
        end(out, worker)
    launcher.run("attach").ran()
    launcher.wait_until_nothing_is_left()


def test_a_name_is_refused_while_it_runs_here_and_when_it_is_none(launcher: Launcher) -> None:
    hosts, wait = launcher.local(1), launcher.script("import time; time.sleep(600)")
    words = ("--ps=0", "--workers=1", "--name=mine", "--grace=0.5")
    with launcher.start("run", hosts, wait, *words) as running:
        until(lambda: "training" in running.err, "the start")
        refused = launcher.run("run", hosts, wait, *words).ran(2)
        assert re.search(r"--name mine: mine-[a-z2-7]{6} runs and has that name", refused.sentences)
        running.interrupt()
        running.done().ran(130)
    bad = launcher.run("run", hosts, wait, "--name=My Run").ran(2)
    assert "--name mnist-big" in bad.sentences


def test_a_script_gets_the_id_of_a_detached_run_alone(launcher: Launcher) -> None:
    trainer = launcher.script(PRINTS)
    done = launcher.run("run", "-d", launcher.local(1), trainer, "--ps=0", "--workers=1").ran()
    run = done.out.rstrip("\n")
    assert re.fullmatch(r"[a-z0-9-]+-[a-z2-7]{6}", run)
    assert "goes on by itself" in done.err
    launcher.run("attach", run).ran()
