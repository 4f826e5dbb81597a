"""Processes that are killed, stopped, or behave badly."""

from __future__ import annotations

import signal

import pytest

from tests.faults import NOTHING, Trial, over_both_wires
from tests.support.patience import until


@pytest.mark.fault(
    "launcher killed (kill -9)",
    "the agents end the run when its lease is over",
    "what the tasks printed after that is on the hosts only",
)
@over_both_wires
def test_launcher_killed(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000, lease_s=5)
    trial.now()
    running.signal(signal.SIGKILL)
    trial.check(None)


@pytest.mark.fault("launcher stopped (SIGSTOP) for less than the lease", "the run goes on", NOTHING)
def test_launcher_stopped_for_a_while(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=1000, lease_s=20)
    trial.now()
    running.signal(signal.SIGSTOP)
    with pytest.raises(AssertionError):
        running.end(8)
    running.signal(signal.SIGCONT)
    trial.check(0, all_lines=1000)


@pytest.mark.fault(
    "launcher stopped for longer than the lease",
    "the agents end the run; 76 once the launcher goes on",
    NOTHING,
)
def test_launcher_stopped_for_too_long(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000, lease_s=5)
    trial.now()
    running.signal(signal.SIGSTOP)
    until(
        lambda: not any("TFLAUNCH_TASK" in each.env for each in trial.far.leftovers()), "the end of all tasks"
    )
    trial.after("gone")
    running.signal(signal.SIGCONT)
    trial.check(76)


@pytest.mark.fault(
    "agent killed",
    "its guard ends the tasks there; the run ends, 76",
    "what its tasks had printed in the last moment is on that host only",
)
def test_agent_killed(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000)
    host = trial.placement["worker/0"]
    agent, _ = trial.agent(host)
    trial.now()
    agent.kill()
    trial.wait_until_noticed()
    trial.check(76, gone=[host])


@pytest.mark.fault(
    "launcher and agent killed",
    "the guard ends the tasks there at once; `tflaunch stop`, or the lease, those elsewhere",
    "what the tasks printed since is on the hosts only",
)
def test_launcher_and_agent_killed(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000, manners="deaf daemon", lease_s=60)
    host = trial.placement["worker/0"]
    agent, _ = trial.agent(host)
    trial.now()
    running.signal(signal.SIGKILL)
    agent.kill()
    until(lambda: not host.processes(), "the end of everything there")  # long before the lease is over
    trial.far.run("stop", trial.run_id, "--grace=0.5").ran()
    trial.check(None, gone=[host])


@pytest.mark.fault(
    "agent and guard killed at once",
    "the launcher finds and ends the tasks by their mark; the run ends, 76",
    "what its tasks had printed in the last moment is on that host only",
)
def test_agent_and_guard_killed(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000)
    host = trial.placement["worker/0"]
    agent, guard = trial.agent(host)
    trial.now()
    guard.kill()
    agent.kill()
    trial.wait_until_noticed()
    trial.check(76, gone=[host], sockets_left_on=[host])


@pytest.mark.parametrize("task", ["worker/1", "worker/0", "ps/0"])
@pytest.mark.fault("a worker, the chief or a ps killed", "the run ends with 137 and names the task", NOTHING)
def test_task_killed(trial: Trial, task: str) -> None:
    trial.up(2)
    trial.start(lines=100_000, workers=2)
    trial.now()
    trial.task(task).kill()
    trial.check(137)
    assert task in trial.running.err
    assert "SIGKILL" in trial.running.err


@pytest.mark.fault("task stopped (SIGSTOP)", "the others go on; Ctrl-C ends it like the others", NOTHING)
def test_task_stopped(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000, workers=2)
    trial.task("worker/1").kill(signal.SIGSTOP)
    trial.wait_for_more("worker/0", 100)
    trial.now()
    running.interrupt()
    trial.check(130)


@pytest.mark.fault(
    "Ctrl-C with tasks that ignore TERM, fork twice, change their session and forget their environment",
    "all of it is killed when the grace is over, 130",
    NOTHING,
)
def test_task_that_escapes(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000, manners="deaf daemon")
    trial.now()
    running.interrupt()
    trial.check(130)


@pytest.mark.fault(
    "launcher killed, and tasks that escape as above",
    "the agents end all of it when the lease is over",
    "what the tasks printed since is on the hosts only",
)
def test_task_that_escapes_a_killed_launcher(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000, manners="deaf daemon", lease_s=5)
    trial.now()
    running.signal(signal.SIGKILL)
    trial.check(None)
