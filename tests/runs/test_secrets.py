"""What a variable of --env holds is for the tasks alone: nobody is shown it, and no record keeps it."""

from __future__ import annotations

import json
import re
import shlex

from tests.support.launcher import Launcher

SECRET = "hf_abcdef123"


def test_nobody_is_shown_the_value_of_a_variable_and_only_its_host_keeps_it_for_the_tasks(
    launcher: Launcher,
) -> None:
    hosts, end = launcher.local(2), launcher.directory / "end"
    trainer = launcher.script(
        f"""
        import os, time
        print(len(os.environ["TOKEN"]), len(os.environ["OTHER"]), flush=True)
        while not os.path.exists({str(end)!r}):
            time.sleep(0.1)
        """
    )
    secret = (f"--env=TOKEN={SECRET}", "-e", f"TOKEN={SECRET}", "--job-env", f"worker=OTHER={SECRET}")
    with launcher.start("run", hosts, trainer, "--ps=0", "--workers=2", *secret) as running:
        running.wait_for(f"{len(SECRET)} {len(SECRET)}", 2)
        [record] = launcher.records()
        shown = [
            launcher.run(*words, "-H", hosts).ran()
            for words in (
                ("ps",),
                ("ps", "--json"),
                ("status", running.run_id),
                ("status", running.run_id, "--json"),
            )
        ]
        end.touch()
        done = running.done().ran()
    for each in (*shown, done):
        assert SECRET not in each.out + each.err
    assert "TOKEN=***" in shown[2].out
    [told] = json.loads(shown[1].out)["runs"]
    assert "worker=OTHER=***" in told["command"]
    for path in (record, *launcher.run_directories()):
        for file in path.rglob("*"):
            if file.is_file() and SECRET.encode() in file.read_bytes():
                assert file.name == "plan.json", file  # what a host starts the tasks from, again if need be
                assert record not in file.parents
    launcher.wait_until_nothing_is_left()


def test_a_sweep_tells_how_to_go_on_without_telling_the_value(launcher: Launcher) -> None:
    trainer = launcher.script(
        """
        import sys
        print("loss", float(sys.argv[-1].partition("=")[2]))
        sys.exit(sys.argv[-1] == "--x=2")
        """
    )
    words = (launcher.local(1), trainer, "--grid", "x=1,2", "--metric", "loss ([0-9.]+)")
    swept = launcher.run("sweep", *words, f"--env=TOKEN={SECRET}")
    assert swept.code == 1, swept.err
    assert SECRET not in swept.out + swept.err
    [resume] = [line for line in swept.sentences.splitlines() if "--resume" in line]
    assert "--env=TOKEN " in resume
    # It names the variable, which the user may give a value, or have in the environment.
    words = shlex.split(re.search(r"go on: tflaunch (sweep .*)$", swept.err, re.MULTILINE)[1])  # type: ignore[index]
    assert words[1:3] == ["--env=TOKEN", "--resume"]
    assert "TOKEN is not set here" in launcher.run(*words).ran(2).err
    assert "1 of them done before" in launcher.run(*words, env={"TOKEN": SECRET}).ran(1).err
    again = launcher.run("sweep", "--resume", words[3], "--env", f"TOKEN={SECRET}").ran(1)
    assert "1 of them done before" in again.err
    assert SECRET not in again.out + again.err
