"""A detached run that loses a host goes on with a spare, without a launcher."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.runs.test_detach import host_of
from tests.support.detached import COUNT, end
from tests.support.launcher import Launcher
from tests.support.patience import until

# As COUNT; and writes TF_CONFIG and its arguments where the test finds them.
TELLS = (
    """
    import json, os, pathlib, sys
    pathlib.Path(os.environ["OUT"], "%s.%s.told" % (os.environ["TFLAUNCH_TASK"].replace("/", "-"),
        os.environ["TFLAUNCH_ATTEMPT"])).write_text(json.dumps([json.loads(os.environ["TF_CONFIG"]), sys.argv[1:],
        os.environ.get("MINE")]))
"""
    + COUNT
)


def with_spares(launcher: Launcher, out: Path, hosts: Path, spares: str, *options: str) -> str:
    words = (
        "--ps=1",
        "--workers=2",
        f"--env=OUT={out}",
        "--lease=6",
        "--ps-grace=0.2",
        "--restarts=2",
        *options,
    )
    done = launcher.run("run", "-d", hosts, launcher.script(TELLS), f"--spares={spares}", *words).ran()
    found = re.search(r"(\S+) goes on by itself: 3 tasks", done.err)
    assert found, done.err
    return found[1]


def lose(launcher: Launcher, host: str) -> None:
    """End all of that host, as a crash of its machine does."""
    for process in launcher.leftovers():
        if process.env.get("TFLAUNCH_HOST") == host or (process.is_agent and host in process.words):
            process.kill()


def told(out: Path, task: str, attempt: int) -> list[object]:
    path = out / f"{task}.{attempt}.told"
    return list(json.loads(until(lambda: path.exists() and path.read_text(), f"{task}, attempt {attempt}")))


def test_its_tasks_go_on_there_and_all_learn_where_they_are(launcher: Launcher, out: Path) -> None:
    hosts = launcher.local(4)
    run = with_spares(launcher, out, hosts, "local4", "--env=MINE={worker_hosts}")
    lost = host_of(launcher, "worker/1")
    config, _, mine = told(out, "worker-0", 0)
    lose(launcher, lost)
    with launcher.start("attach", run) as watching:
        watching.wait_for("worker-1 attempt 1 number 5")
        configs = [told(out, task, 1) for task in ("ps-0", "worker-0", "worker-1")]
        assert len({json.dumps(each[0]["cluster"]) for each in configs}) == 1
        cluster = configs[0][0]["cluster"]
        assert cluster["worker"][0] == config["cluster"]["worker"][0]
        assert cluster["ps"] == config["cluster"]["ps"]
        assert cluster["worker"][1] != config["cluster"]["worker"][1]
        assert f"--worker_hosts={','.join(cluster['worker'])}" in configs[1][1]
        assert configs[1][2] == ",".join(cluster["worker"])
        [log] = launcher.hosts.glob(f"tflaunch-*/{run}/local4/logs/worker-1.1.log")
        shown = json.loads(launcher.run("status", run, "--json").ran().out)
        assert {task["task"]: task["host"] for task in shown["tasks"]}["worker/1"] == "local4"
        for worker in ("worker-0", "worker-1"):
            end(out, worker)
        done = watching.done().ran()
    assert f"{run} succeeded" in done.err
    assert "worker/1 moves to local4, and all tasks start again (restart 1 of 2)" in done.sentences
    assert "local4: worker/1 is on this host from now on" in done.sentences
    launcher.wait_until_nothing_is_left()
