"""A host that is restarted under a run, its disk kept: nothing of the run survives that, and that is what is said."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent_over_pipes import Host, running, shell
from tests.bed import Bed, FarLauncher
from tests.launcher import until
from tflaunch.agent import ledger, processes
from tflaunch.agent.files.rundir import RunDirectory

WAITS = """
    import os, time
    print("begun", flush=True)
    if not os.environ["TFLAUNCH_TASK"].startswith("trial") or os.environ["TFLAUNCH_HOST"] == "host2":
        time.sleep(3600)
"""
RESTARTED = r"host2 was restarted \(booted at .*\d\d:\d\d\): nothing of the run is alive there"


def test_a_run_whose_host_is_restarted_says_so(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    hosts = far.hostfile([one, two])
    with far.start("run", hosts, far.script(WAITS), "--ps=0", "--workers=2", "--grace=1") as run:
        run.wait_for("begun", 2)
        bed.reboot(two)
        done = run.done(120).ran(76)
    assert re.search(r"host2 (was|is) lost: the host was restarted \(booted at .*\d\d:\d\d\)", done.sentences)
    assert re.search(RESTARTED, done.sentences)
    assert "agent and guard were killed" not in done.sentences
    assert "could not check" not in done.sentences
    shown = far.run("status", run.run_id).ran()
    assert re.search(RESTARTED, shown.out)
    assert "gone: the host was restarted" in shown.out
    told = json.loads(far.run("status", "--json", run.run_id).ran().out)
    [share] = [each for each in told["hosts"] if each["host"] == "host2"]
    assert share["state"] == "lost"
    assert abs(share["restarted"] - time.time()) < 600
    assert re.search(f"{run.run_id}: {RESTARTED}", far.run("ps", "-a").ran().out)
    stopped = far.run("stop", run.run_id).ran()
    assert re.search(RESTARTED, stopped.sentences)
    assert "agent and guard were killed" not in stopped.sentences
    far.run("clean", "--yes", run.run_id).ran()
    assert not far.run_directories()


def test_a_sweep_whose_trials_have_all_succeeded_elsewhere_is_a_success(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    hosts = far.hostfile([one, two])
    with far.start("sweep", hosts, far.script(WAITS), "--grid=x=0,1,2,3", "--grace=1", "--yes") as sweep:
        until(lambda: any(each.env.get("TFLAUNCH_HOST") for each in two.processes()), "a trial there")
        bed.reboot(two)
        done = sweep.done(120).ran(0)
    assert "will run elsewhere" in done.sentences
    assert re.search(RESTARTED, done.sentences)
    assert "agent and guard were killed" not in done.sentences


def test_a_detached_run_whose_host_is_restarted_says_so_to_who_watches(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    words = ("--ps=0", "--workers=2", "--grace=1", "--lease=6")
    done = far.run("run", "-d", far.hostfile([one, two]), far.script(WAITS), *words).ran()
    [run] = re.findall(r"(\S+) goes on by itself", done.err)
    with far.start("attach", run) as watching:
        watching.wait_for("begun", 2)
        bed.reboot(two)
        done = watching.done(120).ran(76)
    assert re.search(r"host2 is lost: the host was restarted \(booted at .*\d\d:\d\d\)", done.sentences)
    assert re.search(RESTARTED, done.sentences)


# ---- what is known of a reboot, and what is not


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(str(tmp_path), "run", "h1")
    found.create()
    return found


def left(directory: RunDirectory, age_s: float, **fields: Any) -> None:
    """What an agent has left, so long before this machine was started."""
    about = {
        "machine": [socket.gethostname(), "another-boot"],
        "tasks": ["worker/0"],
        "over": False,
        **fields,
    }
    directory.write("agent.json", about)
    then = processes.booted() - age_s
    for name in ("agent.json", "guard.json"):
        os.utime(Path(directory.path) / name, (then, then))


def test_an_agent_of_an_earlier_boot_is_gone_with_all_it_had(directory: RunDirectory) -> None:
    left(directory, 60.0)
    assert ledger.restarted(directory) == processes.booted()


@pytest.mark.parametrize(
    "fields",
    [
        {"over": True},  # it had ended before
        {"machine": None},  # an older agent
        {"machine": ["another-machine", "another-boot"]},
        {"machine": [socket.gethostname(), ""]},  # where no boot has a name
        {"machine": "nonsense"},
        {"machine": [1, 2, 3]},
        {"machine": [socket.gethostname(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()]},
    ],
)
def test_what_is_not_sure_is_not_said(directory: RunDirectory, fields: dict[str, Any]) -> None:
    left(directory, 60.0, **fields)
    assert ledger.restarted(directory) == 0.0


def test_an_agent_that_wrote_since_this_machine_has_started_is_another_machines(
    directory: RunDirectory,
) -> None:
    """Two machines of one name share the disk: its tasks may be alive on the other one."""
    left(directory, -60.0)
    assert ledger.restarted(directory) == 0.0


def test_an_agent_that_was_killed_is_not_told_as_a_restart(host: Host) -> None:
    channel = host.start()
    pid = running(channel, shell("sleep 3600"))["worker/0"]
    about = json.loads((host.directory / "agent.json").read_text())
    for each in (about["guard"], about["pid"], pid):
        os.kill(each, 9)
    view = host.attach(after=0, logs={}, client="")
    assert view.wait("gone")["reason"] == "its agent is gone: it was killed"
