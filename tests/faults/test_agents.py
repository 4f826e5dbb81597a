"""Runs that lose a whole agent, or one of whose agents hangs: the lease holds all the same."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.faults import NOTHING, Trial
from tests.support.bed import BedHost
from tests.support.patience import until

WHICH = pytest.mark.parametrize("which", ["deciding", "other"])
LAST = "what its tasks had printed in the last moment is on that host only"


def pick(trial: Trial, which: str) -> BedHost:
    """The host with the coordinator, or the other one."""
    deciding = trial.placement["worker/0"]
    [host] = [each for each in trial.hosts if (each is deciding) == (which == "deciding")]
    return host


def kill_both(trial: Trial, host: BedHost) -> None:
    """Kill agent and guard, neither of which can act between the two."""
    agent, guard = trial.agent(host)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for each in (guard, agent):
            each.kill(number)


def tasks_on(host: BedHost) -> list[str]:
    """The tasks that run there."""
    return [task for each in host.processes() if (task := each.env.get("TFLAUNCH_TASK"))]


def holders(trial: Trial, host: BedHost) -> list[str | None]:
    """Which run has each GPU of a host, as `gpus` says."""
    hosts = trial.far.hostfile([host], "one.yaml", gpus=None)
    said = json.loads(trial.far.run("gpus", hosts, "--json").ran().out)
    return [gpu["lease"] and gpu["lease"]["run"] for each in said["hosts"] for gpu in each["gpus"]]


@WHICH
@pytest.mark.fault(
    "detached run: agent and guard of a host killed at once",
    "the others end their tasks when the lease is over; 76; whoever comes to that host next ends what was left there, "
    "and until then its GPUs count as leased",
    LAST,
)
def test_agent_and_guard_killed(trial: Trial, which: str) -> None:
    trial.up(2)
    trial.start(lines=100_000, detached=True, lease_s=8)
    lost = pick(trial, which)
    [other] = [host for host in trial.hosts if host is not lost]
    kill_both(trial, lost)
    trial.now()
    until(lambda: not other.processes(), "the end of the others")
    trial.after("ended")
    assert tasks_on(lost)
    assert not [each for each in lost.processes() if each.is_agent and "visit" not in each.words]
    assert trial.running.end() == 76
    assert f"{lost.name}: the agent is dead, but these live on: pid " in trial.running.err
    assert holders(trial, lost) == [trial.run_id if which == "deciding" else None]  # a ps has no GPU
    assert lost.held_leases() == []
    told = trial.far.run("ps", "--hosts", trial.far.hostfile([lost], "one.yaml", gpus=None)).ran()
    assert f"{lost.name}: ended what {trial.run_id} had left" in " ".join(told.err.split())
    assert not tasks_on(lost)
    assert holders(trial, lost) == [None]
    trial.check(76, gone=[lost])


def test_a_later_run_gets_the_gpu_of_a_run_without_agent_and_guard(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, detached=True, lease_s=8)
    lost = pick(trial, "other")
    kill_both(trial, lost)
    words = ("run", trial.far.hostfile([lost], "one.yaml", gpus=None), trial.far.script("print('done')"))
    trial.far.run(*words, "--ps=0", "--workers=1", "--gpus-per-worker=1").ran()
    assert not tasks_on(lost)
    trial.check(76, gone=[lost])


@WHICH
def test_nothing_is_left_after_stop(trial: Trial, which: str) -> None:
    """Not even the coordinator, whose agent and guard are dead."""
    trial.up(2)
    trial.start(lines=100_000, detached=True, lease_s=60)
    trial.coordinator()
    lost = pick(trial, which)
    kill_both(trial, lost)
    trial.far.run("stop", trial.run_id).ran()
    trial.check({76, 143}, gone=[lost])


def test_a_spare_takes_over_from_an_agent_that_was_killed_with_its_guard(trial: Trial) -> None:
    *_, spare = trial.up(4)
    more = (f"--spares={spare.name}", "--restarts=2")
    trial.start(lines=100_000, workers=2, detached=True, lease_s=8, more=more)
    lost = trial.placement["worker/1"]
    kill_both(trial, lost)
    until(lambda: "worker/1" in tasks_on(spare), "worker/1 on the spare")
    trial.far.run("stop", trial.run_id).ran()
    trial.check(143, gone=[lost], logs=False)


@WHICH
@pytest.mark.fault(
    "detached run: an agent that hangs", "its guard ends it and its tasks when the lease is over; 76", LAST
)
def test_hung_agent_of_a_detached_run(trial: Trial, which: str) -> None:
    trial.up(2)
    trial.start(lines=100_000, detached=True, lease_s=8)
    host = pick(trial, which)
    agent, _ = trial.agent(host)
    trial.now()
    agent.kill(signal.SIGSTOP)
    trial.check(76, gone=[host])
    # The guard is the first, or the coordinator: to both the lease is over at about the same moment.
    said = trial.running.err
    assert "its agent gave no sign of life for" in said or f"{host.name} is lost: not heard of for" in said
    page = trial.far.run("status", trial.run_id).ran().out
    assert f"{host.name}: its agent gave no sign of life for" in page


@pytest.mark.fault(
    "an agent that hangs", "its guard ends it and its tasks when the lease is over; the run ends, 76", LAST
)
def test_hung_agent(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, lease_s=8)
    host = trial.placement["worker/0"]
    agent, _ = trial.agent(host)
    trial.now()
    agent.kill(signal.SIGSTOP)
    trial.wait_until_noticed()
    trial.check(76, gone=[host])


@pytest.mark.fault(
    "an agent that says nothing for a while, as on a host that is overloaded",
    "the host is out of reach until it goes on; the launcher does not log in again",
    NOTHING,
)
def test_an_agent_that_pauses(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1000, lease_s=60)
    host = trial.placement["worker/0"]
    agent, _ = trial.agent(host)

    def connections() -> str:
        return trial.bed.launcher.do("ss", "-Htn", "state", "established", "dst", host.address).split()[2]

    before = connections()
    trial.now()
    agent.kill(signal.SIGSTOP)
    trial.wait_until_noticed()
    agent.kill(signal.SIGCONT)
    trial.now()
    trial.wait_until_back()
    assert connections() == before
    trial.check(0, all_lines=1000)


def test_a_hung_agent_keeps_nobody_from_watching_the_others(trial: Trial) -> None:
    trial.up(3)
    trial.start(lines=100_000, workers=2, detached=True, lease_s=20)
    host = trial.placement["worker/1"]
    agent, _ = trial.agent(host)
    agent.kill(signal.SIGSTOP)
    late = trial.far.start("attach", trial.run_id)
    late.wait_for("worker/0 ")
    late.wait_for(f"{host.name} is out of reach")
    assert late.end() == 76
    assert f"{trial.run_id} failed" in late.err
    assert "no record says" not in late.err
    assert "could not be used" not in late.err
    trial.check(76, gone=[host])


def test_a_host_that_only_this_machine_cannot_reach_is_not_lost(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1000, detached=True, lease_s=8)
    host = pick(trial, "other")
    trial.bed.cut(trial.bed.launcher, host)
    trial.wait_until_noticed()
    trial.let_end()
    assert trial.running.end() == 0, trial.story()
    assert f"{host.name} is lost" not in trial.running.err
    assert f"{host.name} is out of reach of this machine" in trial.running.err
    trial.bed.heal()
    trial.check(0, gone=[host])


def test_an_agent_that_hangs_while_the_run_starts_leaves_nothing(trial: Trial) -> None:
    [host] = trial.up(1)
    setup = ["sleep 3600"]
    hosts = trial.far.hostfile([{"name": host.name, "setup": setup}], gpus=None)
    words = ("--ps=0", "--workers=1", "--lease=8", "--connect-timeout=10")
    running = trial.far.start("run", hosts, trial.far.script("print('never')"), *words)
    until(lambda: tasks_on(host), "the setup of the task")
    [path] = host.disk.glob("tflaunch-*/*/*/agent.json")
    os.kill(host.outside(json.loads(path.read_text())["pid"]), signal.SIGSTOP)
    assert running.end() in (69, 70, 76), running.err
    trial.far.wait_until_nothing_is_left()
    assert host.held_leases() == []


def test_stop_does_not_wait_for_an_agent_that_hangs(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, detached=True, lease_s=600)
    host = pick(trial, "other")
    agent, _ = trial.agent(host)
    agent.kill(signal.SIGSTOP)
    told = trial.far.run("stop", trial.run_id).ran()
    assert "nothing is left running" in told.err
    trial.check({76, 143}, gone=[host])
