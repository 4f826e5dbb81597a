"""Connections that are lost while the run is well: it goes on, and nothing of it is missed."""

from __future__ import annotations

import time

import pytest

from tests.faults import BACK, FULL, NOTHING, Trial, over_both_wires


def recovers(trial: Trial, lines: int = 500) -> None:
    """Once the launcher has noticed: it comes back to the hosts, and every line comes."""
    trial.wait_until_back()
    trial.wait_for_more("worker/0", 100)
    trial.check(0, all_lines=lines)


def for_a_while(trial: Trial, seconds: float) -> None:
    """The fault lasts so long; the run must be alive at the end of it."""
    time.sleep(seconds)
    assert trial.running.process.poll() is None, trial.story()


@pytest.mark.fault(
    "link to a host cut for 5 s", "nothing: what it printed comes when the link is back", NOTHING
)
@over_both_wires
def test_link_cut_for_5_s(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=800)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    for_a_while(trial, 5)
    trial.bed.heal(host)
    trial.wait_for_more("worker/0", 300)
    trial.check(0, all_lines=800)


@pytest.mark.fault(
    "link to a host cut for 30 s",
    "said once noticed; the tasks run on, and what they printed comes after it",
    NOTHING,
)
@over_both_wires
def test_link_cut_for_30_s(trial: Trial) -> None:
    trial.up(2)
    lines = 4000 if FULL else 1500
    trial.start(lines=lines)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    trial.wait_until_noticed()
    for_a_while(trial, 20 if FULL else 2)
    trial.bed.heal(host)
    trial.now()
    recovers(trial, lines)


@pytest.mark.fault(
    "links cut in one direction only: one host does not hear, another is not heard", "as above", NOTHING
)
def test_one_way(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1500)
    one, two = trial.hosts
    trial.now()
    trial.bed.cut_one_way(trial.bed.launcher, one)
    trial.bed.cut_one_way(two, trial.bed.launcher)
    trial.wait_until_noticed(hosts=2)
    for_a_while(trial, 1)
    trial.bed.heal()
    trial.now()
    trial.wait_until_back(hosts=2)
    trial.check(0, all_lines=1500)


@pytest.mark.fault("the launcher's own link cut", "all hosts are out of reach, and then back", NOTHING)
def test_launcher_cut(trial: Trial) -> None:
    trial.up(3)
    trial.start(lines=1400, workers=2)
    trial.now()
    trial.bed.cut(trial.bed.launcher)
    trial.wait_until_noticed()
    for_a_while(trial, 1)
    trial.bed.heal(trial.bed.launcher)
    trial.now()
    trial.wait_until_back(hosts=3)
    trial.check(0, all_lines=1400)


@pytest.mark.fault(
    "the launcher gets another address", "its old connections fall silent, it comes back by new ones", NOTHING
)
def test_launcher_moves(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1400)
    trial.now()
    trial.bed.launcher.move("10.77.255.1")
    trial.wait_until_noticed()
    trial.wait_until_back(hosts=2)
    trial.check(0, all_lines=1400)


@pytest.mark.fault("connections reset (RST)", "it comes back at once", NOTHING)
@over_both_wires
def test_reset(trial: Trial) -> None:
    trial.up(2)
    trial.start()
    trial.now()
    for host in trial.hosts:
        host.reset_connections()
    trial.wait_until_noticed()
    recovers(trial, 300)


@pytest.mark.fault("sshd killed with its sessions, started again after 5 s", "it comes back then", NOTHING)
def test_sshd_restarted(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1000)
    trial.now()
    for host in trial.hosts:
        host.kill_sshd(sessions=True)
    trial.wait_until_noticed()
    for_a_while(trial, 5)
    for host in trial.hosts:
        host.start_sshd()
    trial.now()
    recovers(trial, 1000)


@pytest.mark.fault("process killed that sshd has started on the host", "it comes back at once", NOTHING)
@over_both_wires
def test_what_sshd_has_started_killed(trial: Trial) -> None:
    trial.up(2)
    trial.start()
    trial.now()
    trial.started_by_sshd(trial.placement["worker/0"]).kill()
    trial.wait_until_noticed()
    recovers(trial, 300)


@pytest.mark.fault("host that hangs for a while", "as a link that was cut", NOTHING)
@over_both_wires
def test_host_hangs_for_a_while(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1000)
    host = trial.placement["worker/0"]
    trial.now()
    host.freeze()
    trial.wait_until_noticed()
    for_a_while(trial, 1)
    host.thaw()
    trial.now()
    trial.wait_until_back()
    trial.check(0, all_lines=1000)


@pytest.mark.fault("connections reset while no name can be resolved", "it comes back when names do", NOTHING)
def test_reset_without_names(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1000)
    trial.now()
    for machine in (trial.bed.launcher, *trial.hosts):
        machine.forget_names()
    for host in trial.hosts:
        host.reset_connections()
    trial.wait_until_noticed()
    for_a_while(trial, 5)
    trial.bed.name_all()
    trial.now()
    recovers(trial, 1000)


@pytest.mark.fault(
    "a worker ends while its host is out of reach",
    "its end is known when the host is back, and counts as ever",
    NOTHING,
)
def test_end_behind_a_cut(trial: Trial) -> None:
    trial.up(2)
    trial.start(code=7)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    trial.let_end()
    trial.wait_until_noticed()
    assert not BACK.search(trial.running.err)
    trial.bed.heal(host)
    trial.check(7, all_lines=300)


@pytest.mark.fault(
    "Ctrl-C while a host is out of reach",
    "the others are ended, that one when it is back within the time; 130",
    NOTHING,
)
@over_both_wires
def test_interrupt_behind_a_cut(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    trial.wait_until_noticed()
    running.interrupt()
    running.wait_for("Ctrl-C")
    trial.bed.heal(host)
    trial.check(130)
