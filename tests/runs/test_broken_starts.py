"""Connections that break, or are refused for a while, while a run prepares its hosts: one more try."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.bed import Bed, BedHost, FarLauncher
from tests.support.breaking import BreakingRelay
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork
from tests.support.stopping import Stopping

HELLO = "print('hello', flush=True)\n"
ONE = ("--workers=1", "--ps=0", "--connect-timeout=20")


@pytest.mark.parametrize("connection", ["ssh", "openssh"])
@pytest.mark.parametrize(
    "after_bytes", [0, 60, 1600, 3000, 6000, 15_000], ids=lambda count: f"after-{count}-bytes"
)
def test_a_connection_that_is_reset_is_made_once_more(
    network: SshNetwork, launcher: Launcher, connection: str, after_bytes: int
) -> None:
    launcher.forget_agent()  # so there is much to send
    host = network.add()
    with BreakingRelay(host, after_bytes) as relay:
        entry = {"name": host.name, "port": relay.port, "connection": connection}
        done = launcher.run(
            "run", launcher.hostfile([entry]), launcher.script(HELLO), *ONE, "--accept-new"
        ).ran()
        assert relay.connections > 1
    assert "hello" in done.out
    assert "MTU" not in done.err


def test_so_it_is_beside_a_host_that_is_not_there(network: SshNetwork, launcher: Launcher) -> None:
    host = network.add()
    with BreakingRelay(host, 3000) as relay:
        entries = [{"name": host.name, "port": relay.port}, {"name": "gone", "ssh": "gone.invalid"}]
        words = (launcher.hostfile(entries), launcher.script(HELLO), *ONE, "--accept-new", "--yes")
        done = launcher.run("run", *words).ran()
    assert done.err.count("the run is prepared once more") == 1
    assert "gone cannot be reached" in done.sentences


def test_what_breaks_twice_ends_the_start_with_advice_about_what_cuts_connections(
    network: SshNetwork, launcher: Launcher
) -> None:
    host = network.add()
    with BreakingRelay(host, 6000, times=100) as relay:
        hosts = launcher.hostfile([{"name": host.name, "port": relay.port}])
        done = launcher.run("run", hosts, launcher.script(HELLO), *ONE, "--accept-new").ran(69)
    assert done.err.count("the run is prepared once more") == 1
    assert "something on the way cut connections" in done.sentences
    assert "MTU" not in done.err


def _restart_sshd(host: BedHost) -> Callable[[], None]:
    host.kill_sshd(sessions=True)
    return host.start_sshd


def _reset(host: BedHost) -> Callable[[], None]:
    host.reset_connections()
    return lambda: None


@pytest.mark.parametrize("stage", ["probe", "code", "stage", "dial"])
@pytest.mark.parametrize("break_it", [_reset, _restart_sshd], ids=["reset", "sshd-restarted"])
def test_a_start_that_is_broken_at_any_step_is_tried_once_more(
    bed: Bed, stopping: Stopping, stage: str, break_it: Callable[[BedHost], Callable[[], None]]
) -> None:
    one, two = bed.up(2)
    stopping.stage = stage
    words = ("--workers=2", "--ps=0", "--connect-timeout=20")
    with stopping.start("run", stopping.hostfile([one, two]), stopping.script(HELLO), *words) as running:
        stopping.wait_for_the_stage()
        mend = break_it(two)
        stopping.go_on()
        running.wait_for("the run is prepared once more")
        mend()
        done = running.done().ran()
    assert re.search(r"! host2: .*; the run is prepared once more", done.err), done.err
    assert done.out.count("hello") == 2
    assert "MTU" not in done.err


def test_a_spare_takes_the_place_of_a_host_that_is_gone_at_the_second_try(
    bed: Bed, stopping: Stopping
) -> None:
    one, two, three = bed.up(3)
    stopping.stage = "stage"
    hosts = stopping.hostfile([one, two, three], slots=1)
    spares = (f"--spares={three.name}", "--restarts=1")
    words = ("--workers=2", "--ps=0", "--connect-timeout=20", *spares)
    with stopping.start("run", hosts, stopping.script(HELLO), *words) as running:
        stopping.wait_for_the_stage()
        two.kill_sshd(sessions=True)
        stopping.go_on()
        running.wait_for("the run is prepared once more")
        done = running.done().ran()
    assert f"calling {three.name} of --spares" in done.sentences
    assert done.out.count("hello") == 2
    assert "moves from" not in done.err


def test_a_host_that_refuses_is_dialled_until_its_sshd_is_up(bed: Bed, far: FarLauncher) -> None:
    [host] = bed.up(1)
    host.kill_sshd(sessions=False)
    with far.start("run", far.hostfile([host]), far.script(HELLO), *ONE) as running:
        refused = Path(f"/proc/{bed.launcher.pid}/net/snmp")
        until(lambda: _refusals(refused.read_text()) > 2, "a call that is refused, and another")
        host.start_sshd()
        assert "hello" in running.done().ran().out


def _refusals(snmp: str) -> int:
    """How many calls of that machine have failed."""
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("AttemptFails")])
