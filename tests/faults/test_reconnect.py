"""Connections that are lost while the run is well: it goes on, and nothing of it is missed."""

from __future__ import annotations

import time

import pytest

from tests.faults import BACK, NOTHING, Trial


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
def test_link_cut_for_5_s(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1500)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    for_a_while(trial, 5)
    trial.bed.heal(host)
    trial.wait_for_more("worker/0", 500)
    trial.check(0, all_lines=1500)


@pytest.mark.fault(
    "link to a host cut for 30 s",
    "said once noticed; the tasks run on, and what they printed comes after it",
    NOTHING,
)
def test_link_cut_for_30_s(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=4000)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    trial.wait_until_noticed()
    for_a_while(trial, 21)
    trial.bed.heal(host)
    trial.now()
    recovers(trial, 4000)


@pytest.mark.parametrize("heard", [True, False], ids=["host-does-not-hear", "host-is-not-heard"])
@pytest.mark.fault("link cut in one direction only, for 15 s", "as above, in either direction", NOTHING)
def test_one_way(trial: Trial, heard: bool) -> None:
    trial.up(2)
    trial.start(lines=2500)
    host, launcher = trial.placement["worker/0"], trial.bed.launcher
    trial.now()
    trial.bed.cut_one_way(*((launcher, host) if heard else (host, launcher)))
    for_a_while(trial, 15)
    trial.bed.heal(host)
    trial.wait_for_more("worker/0", 500)
    trial.check(0, all_lines=2500)


@pytest.mark.fault(
    "the launcher's own link cut for 15 s", "all hosts are out of reach, and then back", NOTHING
)
def test_launcher_cut(trial: Trial) -> None:
    trial.up(3)
    trial.start(lines=2500, workers=2)
    trial.now()
    trial.bed.cut(trial.bed.launcher)
    trial.wait_until_noticed()
    for_a_while(trial, 5)
    trial.bed.heal(trial.bed.launcher)
    trial.wait_until_back(hosts=3)
    trial.check(0, all_lines=2500)


@pytest.mark.fault(
    "the launcher gets another address", "its old connections fall silent, it comes back by new ones", NOTHING
)
def test_launcher_moves(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=2500)
    trial.now()
    trial.bed.launcher.move("10.77.255.1")
    trial.wait_until_noticed()
    trial.wait_until_back(hosts=2)
    trial.check(0, all_lines=2500)


@pytest.mark.fault("connections reset (RST)", "it comes back at once", NOTHING)
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
    trial.start(lines=1500)
    trial.now()
    for host in trial.hosts:
        host.kill_sshd(sessions=True)
    trial.wait_until_noticed()
    for_a_while(trial, 5)
    for host in trial.hosts:
        host.start_sshd()
    recovers(trial, 1500)


@pytest.mark.fault("relay killed (what sshd has started on the host)", "it comes back at once", NOTHING)
def test_relay_killed(trial: Trial) -> None:
    trial.up(2)
    trial.start()
    trial.now()
    trial.relay(trial.placement["worker/0"]).kill()
    trial.wait_until_noticed()
    recovers(trial, 300)


@pytest.mark.fault("host that hangs for 15 s", "as a link that was cut", NOTHING)
def test_host_hangs_for_a_while(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1000)
    host = trial.placement["worker/0"]
    trial.now()
    host.freeze()
    trial.wait_until_noticed()
    for_a_while(trial, 5)
    host.thaw()
    trial.wait_until_back()
    trial.check(0, all_lines=1000)


@pytest.mark.fault("connections reset while no name can be resolved", "it comes back when names do", NOTHING)
def test_reset_without_names(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=1500)
    trial.now()
    for machine in (trial.bed.launcher, *trial.hosts):
        machine.forget_names()
    for host in trial.hosts:
        host.reset_connections()
    trial.wait_until_noticed()
    for_a_while(trial, 5)
    trial.bed.name_all()
    recovers(trial, 1500)


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.fault(
    "a worker ends while its host is out of reach",
    "its end is known when the host is back, and counts as ever",
    NOTHING,
)
def test_end_behind_a_cut(trial: Trial, code: int) -> None:
    trial.up(2)
    trial.start(code=code)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    trial.wait_until_noticed()
    assert not BACK.search(trial.running.err)
    trial.bed.heal(host)
    trial.check(code, all_lines=300)


@pytest.mark.fault(
    "Ctrl-C while a host is out of reach",
    "the others are ended, that one when it is back within the time; 130",
    NOTHING,
)
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


@pytest.mark.fault(
    "link to a host cut for longer than the lease",
    "its agent ends the tasks there, the launcher the run everywhere, 76",
    "what its tasks printed since is on that host only",
)
def test_link_cut_for_longer_than_the_lease(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, lease_s=12)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    for_a_while(trial, 5)
    trial.running.end(60)
    trial.bed.heal(host)
    trial.check(76, gone=[host])
    assert "lease" in trial.running.err
