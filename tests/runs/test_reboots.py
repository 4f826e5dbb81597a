"""A host that is restarted under a run, its disk kept: nothing of the run survives that, and that is what is said."""

from __future__ import annotations

import json
import re
import time

from tests.support.bed import Bed, FarLauncher
from tests.support.patience import until

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
        done = run.done().ran(76)
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
    far.wait_until_no_run_is_kept()


def test_a_sweep_whose_trials_have_all_succeeded_elsewhere_is_a_success(bed: Bed, far: FarLauncher) -> None:
    one, two = bed.up(2)
    hosts = far.hostfile([one, two])
    with far.start("sweep", hosts, far.script(WAITS), "--grid=x=0,1,2,3", "--grace=1", "--yes") as sweep:
        until(lambda: any(each.env.get("TFLAUNCH_HOST") for each in two.processes()), "a trial there")
        bed.reboot(two)
        done = sweep.done().ran(0)
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
        done = watching.done().ran(76)
    assert re.search(r"host2 is lost: the host was restarted \(booted at .*\d\d:\d\d\)", done.sentences)
    assert re.search(RESTARTED, done.sentences)
