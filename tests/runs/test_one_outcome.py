"""How a run has ended is one truth: the launcher's exit code, the hosts' records, and what `ps` shows of them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.bed import Bed, BedHost, FarLauncher
from tests.support.launcher import Process
from tests.support.patience import until

# A trial on host2 never ends.
TRIALS = """\
import os, time
print("trial on", os.environ["TFLAUNCH_HOST"], flush=True)
while os.environ["TFLAUNCH_HOST"] == "host2":
    time.sleep(0.1)
"""
# The ps takes its time to end, and says when it was asked.
SLOW_PS = """\
import os, pathlib, signal, time
if os.environ["TFLAUNCH_TASK"] == "ps/0":
    signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("/tmp/asked").touch())
    while True:
        time.sleep(0.1)
"""


def outcome_on(host: BedHost) -> tuple[str, int]:
    """How the only run ended, by that host's journal: status, exit code; waits until it is there."""
    [journal] = host.disk.glob(f"tflaunch-*/*/{host.name}/events.jsonl")

    def outcomes() -> list[dict[str, object]]:
        events = map(json.loads, journal.read_text().splitlines())
        return [each["outcome"] for each in events if each["type"] == "outcome"]

    [outcome] = until(outcomes, f"an outcome on {host.name}")
    return outcome["status"], outcome["exit_code"]


def kill_agent(host: BedHost) -> None:
    [about] = host.disk.glob("tflaunch-*/*/*/agent.json")
    Process(host.outside(json.loads(about.read_text())["pid"]), (), {}).kill()


def shown(far: FarLauncher, hostfile: Path) -> tuple[str, int]:
    """What `ps` shows of the only run."""
    out = far.run("ps", hostfile, "--all", "--json").ran().out
    [run] = json.loads(out)["runs"]
    return run["state"], run["outcome"]["exit_code"]


def test_a_sweep_that_loses_a_host_and_finishes_elsewhere_has_succeeded_for_everybody(
    bed: Bed, far: FarLauncher
) -> None:
    one, two = bed.up(2)
    hostfile = far.hostfile([one, two])
    with far.start("sweep", hostfile, far.script(TRIALS), "--grid=x=1,2,3,4", "--yes") as sweep:
        until(lambda: any("TFLAUNCH_TRIAL" in each.env for each in two.processes()), "a trial on host2")
        kill_agent(two)
        done = sweep.done().ran(0)
    assert "nothing is left running" in done.sentences
    assert outcome_on(one) == ("succeeded", 0)
    assert shown(far, hostfile) == ("succeeded", 0)


def test_a_run_that_loses_a_host_at_its_end_has_one_exit_code(bed: Bed, far: FarLauncher) -> None:
    hosts = bed.up(2)
    words = ("--workers=1", "--ps=1", "--ps-grace=0.1", "--grace=60")
    with far.start("run", far.hostfile(hosts), far.script(SLOW_PS), *words) as running:
        [lost] = until(
            lambda: [each for each in hosts if each.path("/tmp/asked").exists()], "the ps is asked to end"
        )
        kill_agent(lost)
        done = running.done().ran(0)
    assert "nothing is left running" in done.sentences
    [other] = set(hosts) - {lost}
    assert outcome_on(other) == ("succeeded", 0)
