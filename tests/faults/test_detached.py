"""Runs that go on by themselves, and what befalls them, their hosts and those who watch."""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults import NOTHING, Trial, over_both_wires
from tests.support.patience import until


@pytest.mark.fault("detached run: who watches it is killed", "the run does not care; watch again", NOTHING)
def test_viewer_killed(trial: Trial) -> None:
    trial.up(2)
    viewer = trial.start(lines=500, detached=True)
    trial.now()
    viewer.signal(signal.SIGKILL)
    viewer.end()
    trial.attach()
    trial.check(0, all_lines=500)


@pytest.mark.fault(
    "detached run: the launcher's machine is gone", "it ends by itself; all of it is seen later", NOTHING
)
@over_both_wires
def test_no_launcher_any_more(trial: Trial) -> None:
    trial.up(3)
    viewer = trial.start(lines=500, workers=2, detached=True)
    trial.now()
    trial.bed.cut(trial.bed.launcher)
    viewer.signal(signal.SIGKILL)
    viewer.end()
    trial.let_end()
    trial.far.wait_until_nothing_is_left()
    trial.bed.heal(trial.bed.launcher)
    trial.attach()
    trial.check(0, all_lines=500)


@pytest.mark.fault(
    "detached run: who decides is killed", "its agent starts another one, which knows all it knew", NOTHING
)
def test_coordinator_killed(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=800, detached=True)
    first = trial.coordinator()
    trial.now()
    first.kill()
    until(lambda: trial.coordinator().pid != first.pid, "another one")
    trial.after("back")
    trial.check(0, all_lines=800)


@pytest.mark.parametrize("refuse", [True, False], ids=["refused", "silent"])
@pytest.mark.fault(
    "detached run: the hosts cut from each other for a while",
    "who decides comes back to them; the run goes on",
    NOTHING,
)
def test_hosts_cut_from_each_other(trial: Trial, refuse: bool) -> None:
    one, two, three = trial.up(3)
    trial.start(lines=800 if refuse else 1500, workers=2, detached=True)
    trial.now()
    for pair in ((one, two), (one, three), (two, three)):
        trial.bed.cut(*pair, refuse=refuse)
    time.sleep(4 if refuse else 12)
    assert trial.running.process.poll() is None, trial.story()
    trial.bed.heal()
    trial.check(0, all_lines=800 if refuse else 1500)


@pytest.mark.fault(
    "detached run: the hosts cut from each other for longer than the lease",
    "each ends its tasks; 76",
    NOTHING,
)
def test_hosts_cut_from_each_other_for_too_long(trial: Trial) -> None:
    one, two = trial.up(2)
    trial.start(lines=100_000, detached=True, lease_s=8)
    trial.now()
    trial.bed.cut(one, two)
    trial.check(76)


@pytest.mark.fault(
    "detached run: the host that decides is without power, for ever",
    "the others end their tasks when the lease is over; 76",
    "what its own tasks had printed in the last moment",
)
def test_deciding_host_switched_off(trial: Trial) -> None:
    trial.up(3)
    trial.start(lines=100_000, workers=2, detached=True, lease_s=8)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.power_off(host)
    trial.check(76, gone=[host], sockets_left_on=[host])


@pytest.mark.fault(
    "detached run: another host is rebooted",
    "who decides ends the run; 76, which names the host",
    "what its tasks had printed in the last moment",
)
def test_other_host_rebooted(trial: Trial) -> None:
    trial.up(3)
    trial.start(lines=100_000, workers=2, detached=True, lease_s=8)
    [host] = {*trial.hosts} - {trial.placement["worker/0"], trial.placement["ps/0"]}
    trial.now()
    trial.bed.reboot(host)
    trial.check(76, gone=[host], sockets_left_on=[host])
    assert host.name in trial.running.err


def test_a_spare_takes_the_place_of_a_host_without_power(trial: Trial) -> None:
    """With a GPU of its own, over the network; a later loss ends the run, for no spare is left."""
    *_, spare = trial.up(4)
    more = (f"--spares={spare.name}", "--restarts=2")
    trial.start(lines=100_000, workers=2, detached=True, lease_s=8, more=more)
    lost = trial.placement["worker/1"]
    assert spare not in trial.placement.values()
    assert spare.held_leases() == [f"GPU-{spare.name}"]
    trial.bed.power_off(lost)
    [moved] = until(
        lambda: [each for each in spare.processes() if each.env.get("TFLAUNCH_TASK") == "worker/1"],
        "worker/1 on the spare",
    )
    assert moved.env["CUDA_VISIBLE_DEVICES"] == f"GPU-{spare.name}"
    assert moved.env["TFLAUNCH_ATTEMPT"] == "1"
    trial.far.run("stop", trial.run_id).ran(69)  # the lost host cannot be asked
    trial.check(143, gone=[lost], sockets_left_on=[lost], logs=False)
