"""Networks that are slow, lossy, or gone for good."""

from __future__ import annotations

import pytest

from tests.faults import NOTHING, Trial, over_both_wires


@pytest.mark.fault("200 ms more each way and 2 % of all packets lost", "nothing but the delay", NOTHING)
def test_slow_and_lossy(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=900)
    trial.now()
    for host in trial.hosts:
        trial.bed.delay(host, 200, loss_percent=2)
    trial.wait_for_more("worker/0", 200)
    trial.check(0, all_lines=900)


@pytest.mark.fault(
    "link to a host cut for ever",
    "the run ends, 76, and says that the host could not be checked; there, the agent ends it when the lease is over",
    "what its tasks printed since is on that host only",
)
@over_both_wires
def test_link_cut_for_ever(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, lease_s=8)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.cut(host)
    trial.wait_until_noticed()
    trial.check(76, gone=[host])
    assert f"{host.name}: could not check that nothing is left" in " ".join(trial.running.err.split())


@pytest.mark.fault(
    "the launcher's own link cut for ever",
    "the run ends, 76; on the hosts, the agents end it when the lease is over",
    "what the tasks printed since is on the hosts only",
)
def test_launcher_cut_for_ever(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, lease_s=8)
    trial.now()
    trial.bed.cut(trial.bed.launcher)
    trial.wait_until_noticed()
    trial.check(76, gone=trial.hosts)


@pytest.mark.fault("sshd killed or stopped, its open connections left alone", "nothing", NOTHING)
def test_sshd_gone_but_for_its_sessions(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=400)
    trial.now()
    for host in trial.hosts:
        host.kill_sshd(sessions=False)
    trial.wait_for_more("worker/0", 200)
    trial.check(0, all_lines=400)
