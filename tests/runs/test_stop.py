"""`tflaunch stop`, from another terminal, after a crash, and from another machine."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.endless import endless, kill
from tests.support.launcher import Launcher, Process
from tests.support.patience import until
from tests.support.sshd import SshNetwork


@pytest.fixture
def hostfile(network: SshNetwork, launcher: Launcher) -> Path:
    """Two hosts."""
    return launcher.hostfile([network.add().name for _ in range(2)])


def test_from_another_terminal(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as running:
        done = launcher.run("stop", running.run_id).ran()
        assert f"{running.run_id} is stopped: 2 hosts checked, nothing is left running" in done.sentences
        assert launcher.leftovers() == []
        run = running.done().ran(143)
    assert "tflaunch stop ends the run" in run.sentences
    assert "nothing is left running" in run.sentences


def test_without_an_argument_it_is_the_only_one(launcher: Launcher, hostfile: Path) -> None:
    nothing = launcher.run("stop", "--hosts", hostfile).ran()
    assert "no run is alive on these hosts" in nothing.sentences
    unknown = launcher.run("stop", "nosuch", "--hosts", hostfile).ran(2)
    assert "these hosts know no run nosuch" in unknown.sentences
    assert "stopped" not in unknown.sentences, "nothing was"
    with endless(launcher, hostfile) as running:
        done = launcher.run("stop").ran()
        assert f"{running.run_id} is stopped" in done.sentences
        assert running.end() == 143
    # Whatever is said when nothing runs any more, it is no failure of what stop promises.
    again = launcher.run("stop", "--hosts", hostfile).ran()
    assert "no run is alive on these hosts" in again.sentences


def test_which_of_several(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as one, endless(launcher, hostfile) as two:
        which = launcher.run("stop").ran(2)
        assert one.run_id in which.sentences
        assert two.run_id in which.sentences
        assert "tflaunch stop RUN" in which.sentences

        every = launcher.run("stop", "trainer-", "--hosts", hostfile).ran(2)
        assert "matches 2 runs" in every.sentences

        prefix = one.run_id[:-1]
        done = launcher.run("stop", prefix, "--hosts", hostfile).ran()
        assert f"{one.run_id} is stopped" in done.sentences
        assert one.end() == 143
        assert launcher.leftovers(two.run_id)
        assert two.process.poll() is None
        launcher.run("stop", two.run_id[: len("trainer-") + 3]).ran()
        assert two.end() == 143


def test_all_of_them_and_a_name_whose_runs_have_all_ended(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile) as one, endless(launcher, hostfile) as two:
        asked = launcher.run("stop", "--all").ran(2)
        assert "this ends 2 runs: " in asked.sentences
        assert "agree to it: tflaunch stop --all --yes" in asked.sentences
        assert "which?" in launcher.run("stop", "--all", one.run_id).ran(2).sentences
        assert launcher.leftovers(one.run_id)
        assert launcher.leftovers(two.run_id)
        done = launcher.run("stop", "--all", "--yes").ran()
        for run in (one, two):
            assert f"{run.run_id} is stopped: 2 hosts checked, nothing is left running" in done.sentences
            assert run.end() == 143
    launcher.wait_until_nothing_is_left()
    again = launcher.run("stop", "--all", "--yes", "--hosts", hostfile).ran()
    assert "no run is alive on these hosts" in again.sentences
    name = launcher.run("stop", "trainer", "--hosts", hostfile).ran(2)
    assert "no run trainer is alive; 2 of that name have ended: " in name.sentences
    assert one.run_id in name.sentences


def test_after_the_launcher_was_killed(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile, "--env=DEAF=1") as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        assert launcher.leftovers(run)
        done = launcher.run("stop", "--grace=0.5").ran()
    assert f"{run} is stopped" in done.sentences
    assert launcher.leftovers() == []

    again = launcher.run("stop", run).ran()  # idempotent
    assert "nothing of the run was there" in again.sentences


@pytest.mark.parametrize("agents", [True, False], ids=["agents-killed", "tasks-killed"])
def test_after_the_launcher_and_more_was_killed(launcher: Launcher, hostfile: Path, agents: bool) -> None:
    with endless(launcher, hostfile, "--env=DEAF=1") as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        kill(launcher, run, agents=agents)
        if agents:
            until(lambda: not any(each.is_agent for each in launcher.leftovers(run)), "the end of all agents")
            assert launcher.leftovers(run)  # the tasks of a killed guard live on
        done = launcher.run("stop", run, "--grace=0.5").ran()
    assert f"{run} is stopped" in done.sentences
    by_force = re.findall(r"host\d stopped, by force \(SIGKILL\): pid \d+ \S+", done.sentences)
    assert bool(by_force) is agents, done.err
    assert launcher.leftovers() == []


def test_guard_killed_first_then_agent_then_stop_sweeps_by_the_mark(
    launcher: Launcher, hostfile: Path
) -> None:
    with endless(launcher, hostfile, "--env=DEAF=1") as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        for host in ("host1", "host2"):
            pids = launcher.agents(host)
            for each in ("guard", "agent"):
                Process(pids[each], (), {}).kill()
        done = launcher.run("stop", run, "--hosts", hostfile, "--json").ran()
    [stopped] = [event for event in done.events if event["event"] == "stopped"]
    assert stopped["run_id"] == run
    # The hosts are one machine, so either may have met what the other one runs: twice a task and what it forked.
    assert len({each.split()[1] for end in stopped["hosts"].values() for each in end["killed"]}) == 4
    assert not any(end["survivors"] for end in stopped["hosts"].values())
    assert all(end["unsure"] for end in stopped["hosts"].values())
    assert launcher.leftovers() == []


def test_from_another_machine_with_the_hostfile(launcher: Launcher, hostfile: Path) -> None:
    elsewhere = {"TFLAUNCH_STATE": str(launcher.directory / "another-machine")}
    with endless(launcher, hostfile) as running:
        done = launcher.run("stop", "--hosts", hostfile, env=elsewhere).ran()
        assert f"{running.run_id} is stopped" in done.sentences
        assert running.end() == 143


def test_two_stops_at_once(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile, "--env=DEAF=1") as running:
        stop = ("stop", running.run_id, "--grace=1")
        with launcher.start(*stop) as one, launcher.start(*stop) as two:
            assert one.end() == 0, one.err
            assert two.end() == 0, two.err
        assert running.end() == 143


def test_a_host_that_is_down_is_said_and_the_others_are_stopped(
    network: SshNetwork, launcher: Launcher, hostfile: Path
) -> None:
    with endless(launcher, hostfile) as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        down = network.sshds[1]
        down.kill()
        done = launcher.run("stop", run).ran(69)
        assert down.name in done.err
        assert "refuses the connection" in done.sentences
        assert "1 host checked" in done.sentences
        down.start()
        assert "2 hosts checked" in launcher.run("stop", run).ran().sentences
    assert launcher.leftovers() == []


def test_with_all_hosts_down(network: SshNetwork, launcher: Launcher, hostfile: Path) -> None:
    for sshd in network.sshds:
        sshd.kill()
    done = launcher.run("stop", "trainer-aaaaaa", "--hosts", hostfile).ran(69)
    assert "2 of 2 hosts could not be used" in done.sentences


def test_a_run_that_nobody_knows(launcher: Launcher, hostfile: Path) -> None:
    unknown = launcher.run("stop", "trainer-aaaaaa").ran(2)
    assert "trainer-aaaaaa" in unknown.sentences
    there = launcher.run("stop", "trainer-aaaaaa", "--hosts", hostfile).ran(2)
    assert "know no run trainer-aaaaaa" in there.sentences


@pytest.mark.parametrize("run", ["../../etc", "a/b", "", "x" * 100, "a b", "-rf\n", "ü"])
def test_a_hostile_run_id(launcher: Launcher, hostfile: Path, run: str) -> None:
    done = launcher.run("stop", "--hosts", hostfile, "--", run).ran(2)
    assert "not a run id" in done.sentences


def test_ctrl_c_while_it_waits(network: SshNetwork, launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile, "--env=DEAF=1") as running:
        with launcher.start("stop", running.run_id, "--grace=3600") as stop:
            running.wait_for("tflaunch stop ends the run")
            stop.interrupt()
            assert stop.end() == 130, stop.err
            assert "the hosts go on ending the run" in stop.err
            assert "nothing is left" not in stop.err
        launcher.run("stop", running.run_id, "--grace=0").ran()
        launcher.wait_until_nothing_is_left()  # whom the first one has sent sees only at its next beat that it is gone
        assert running.end() == 143


def test_run_directories_that_are_gone_do_not_matter(launcher: Launcher, hostfile: Path) -> None:
    with endless(launcher, hostfile, "--env=DEAF=1") as running:
        run = running.run_id
        running.signal(signal.SIGKILL)
        running.end()
        shutil.rmtree(launcher.hosts)
        launcher.run("stop", run).ran()
        assert launcher.leftovers() == []
