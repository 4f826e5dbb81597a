"""What a job file says reaches the run, and options win over it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.launcher import TELL, Launcher, told
from tflaunch.protocol.errors import EXIT_USAGE


def test_options_win_over_it_and_arguments_follow_its_own(launcher: Launcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    launcher.script(TELL, "src/trainer.py")
    job = launcher.code / "jobs" / "job.yaml"
    job.parent.mkdir()
    job.write_text(
        f"""
        program: ../src/trainer.py
        args: [--epochs, 3]
        env: {{OUT: {out}, X: file, Y: file}}
        flags: {{task_index: task_id}}
        roles:
          ps: 2
          worker: {{count: 4, hosts: local1, args: [--of-worker]}}
        jobs:
          data: {{count: 2, env: {{X: role}}, end: decides}}
        place: pack
        grace: 2
        restarts: 3
        restart: task
        timeout: 50s
        """
    )
    words = (
        "--workers=1",
        "--env=Y=option",
        "--job-args=data=--of-data",
        "--ps-grace=0.2",
        "--restarts=0",
        "--json",
        "--",
        "more",
    )
    done = launcher.run("run", launcher.local(), job, *words, cwd=tmp_path).ran()
    tasks = told(out)
    assert sorted(tasks) == ["data/0", "data/1", "ps/0", "ps/1", "worker/0"]
    assert tasks["worker/0"].host == "local1"
    assert [tasks["worker/0"].env[name] for name in "XY"] == ["file", "option"]
    assert [tasks["data/1"].env[name] for name in "XY"] == ["role", "option"]
    assert tasks["worker/0"].argv[-5:] == (b"--task_id=0", b"--epochs", b"3", b"more", b"--of-worker")
    assert tasks["data/1"].argv[-2:] == (b"more", b"--of-data")
    assert done.events[-1]["status"] == "succeeded"


def test_problems_are_told_before_anything_is_contacted(launcher: Launcher) -> None:
    job = launcher.script("program: no.py\nroles: {ps: -1}\n", "job.yml")
    done = launcher.run("run", launcher.local(), job).ran(EXIT_USAGE)
    assert "1 problem in the job file; nothing was contacted" in done.sentences
    assert "job.yml:2:13: ps: '-1' is not a whole number" in done.sentences
    told = launcher.run("run", launcher.local(), job, "--json").ran(EXIT_USAGE).events
    assert told[-1]["problems"][0]["line"] == 2
    job.write_text("program: no.py\n")
    assert (
        "no.py: there is no such file" in launcher.run("run", launcher.local(), job).ran(EXIT_USAGE).sentences
    )


def test_both_schemas_are_printed(launcher: Launcher) -> None:
    titles = [
        json.loads(launcher.run("schema", *words).ran().out)["title"] for words in ((), ("hosts",), ("job",))
    ]
    assert titles == ["tflaunch hostfile", "tflaunch hostfile", "tflaunch job file"]
