"""Hosts that go down, fill up, lose the time or their names; and what a task may do to one."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.faults import FULL, NOTHING, Trial, over_both_wires
from tests.support.dead_files import dead_files, missing
from tests.support.patience import until
from tflaunch.agent.host import reserve as reserves

FLOOD_MB = 1000 if FULL else 50


@pytest.mark.fault(
    "host not there at the start: no such name, no route, no answer, or no sshd",
    "the run goes on without it where what was asked for fits on the others, and names it; else nothing is started, 69",
    NOTHING,
)
def test_host_not_there_at_the_start(trial: Trial) -> None:
    _, silent, refusing, _ = trial.up(4)
    trial.bed.block(trial.bed.launcher, silent, 22)
    refusing.kill_sshd(sessions=True)
    trial.start(lines=100)
    assert {host.name for host in trial.placement.values()} == {"host1", "host4"}
    for host in (silent, refusing):
        assert re.search(
            rf"^! {host.name} cannot be reached \(.*\): going on without it$", trial.running.err, re.MULTILINE
        )
    trial.check(0, all_lines=100)


@pytest.mark.parametrize("keep_disk", [True, False], ids=["disk-kept", "disk-lost"])
@pytest.mark.fault(
    "host rebooted: all its processes killed, its disk kept or lost",
    "the run ends, 76, and names the host",
    "what its tasks had printed in the last moment, with the disk all of it but the launcher's record",
)
def test_host_rebooted(trial: Trial, keep_disk: bool) -> None:
    trial.up(2)
    trial.start(lines=100_000)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.reboot(host, keep_disk=keep_disk)
    trial.wait_until_noticed()
    trial.check(76, gone=[host], sockets_left_on=[host] if keep_disk else [])
    assert host.name in trial.running.err


@pytest.mark.fault(
    "host without power, for ever",
    "the run ends, 76, and says that the host could not be checked",
    "what its tasks had printed in the last moment",
)
def test_host_switched_off(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, lease_s=8)
    host = trial.placement["worker/0"]
    trial.now()
    trial.bed.power_off(host)
    trial.wait_until_noticed()
    trial.check(76, gone=[host], sockets_left_on=[host])
    assert f"{host.name}: could not check that nothing is left" in " ".join(trial.running.err.split())


@pytest.mark.fault(
    "host without power, back after a while",
    "the run ends, 76; nothing of it is alive there",
    "what its tasks had printed in the last moment",
)
def test_host_switched_off_and_on(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, lease_s=20)
    host = trial.placement["ps/0"]
    trial.now()
    trial.bed.power_off(host)
    trial.wait_for_more("worker/0", 200)
    trial.bed.boot(host)
    trial.wait_until_noticed()
    trial.check(76, gone=[host], sockets_left_on=[host])


@pytest.mark.fault(
    "host that hangs: every process of it stopped, for ever",
    "the run ends, 76, and says that the host could not be checked; when it goes on, its agent ends its tasks",
    "what its tasks had printed in the last moment is on that host only",
)
def test_host_hangs(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000, lease_s=8)
    host = trial.placement["worker/0"]
    trial.now()
    host.freeze()
    trial.wait_until_noticed()
    assert running.end() == 76
    trial.after("ended")
    host.thaw()
    trial.check(76, gone=[host])


@pytest.mark.fault(
    "disk full in the run directory",
    "a task that cannot print fails by its own hand, and the run with its code; what was printed is there",
    "what no longer found room",
)
def test_disk_full_on_a_host(trial: Trial) -> None:
    trial.up(2)
    for host in trial.hosts:
        host.small_disk("/var/tmp", 1 << 20)
    trial.start(lines=100_000)
    host = trial.placement["worker/0"]
    trial.now()
    host.fill("/var/tmp")
    trial.check(1)


@pytest.mark.fault(
    "disk full in the run directory of tasks that print little",
    "the agent has kept room for its own files: it says so and ends the tasks; the run ends, 76",
    NOTHING,
)
def test_disk_full_before_a_task_prints(trial: Trial) -> None:
    trial.up(2)
    for host in trial.hosts:
        host.small_disk("/var/tmp", 1 << 20)
    trial.start(lines=1000, rate=0.02, more=["--threshold=stopped_s=1"])
    host = trial.placement["worker/0"]
    trial.now()
    host.fill("/var/tmp")
    trial.task("worker/0").kill(signal.SIGSTOP)  # what the watchdog says of it, the agent writes down
    trial.check(76)
    said = " ".join(trial.running.err.split())
    assert "No space left on device" in said
    assert "its agent ended the tasks: make room there" in said
    events = (trial.directory(host) / "events.jsonl").read_text().splitlines()
    assert json.loads(events[-1])["type"] in ("swept", "outcome")
    assert "could not check" not in said


@pytest.mark.fault(
    "disk full in the run directory for a moment, of tasks that print little",
    "nothing: the agent has kept room for its own files, and keeps some again afterwards",
    NOTHING,
)
def test_disk_full_for_a_moment(trial: Trial) -> None:
    trial.up(2)
    for host in trial.hosts:
        host.small_disk("/var/tmp", 1 << 20)
    trial.start(lines=2, more=["--threshold=stopped_s=1"])
    host = trial.placement["worker/0"]
    reserve = trial.directory(host) / reserves.NAME
    trial.now()
    host.fill("/var/tmp")
    trial.task("worker/0").kill(signal.SIGSTOP)
    until(lambda: reserve.stat().st_size < reserves.BYTES, "the agent to need its reserve")
    host.do("sh", "-c", "rm /var/tmp/filler1 /var/tmp/filler2")
    trial.task("worker/0").kill(signal.SIGCONT)
    until(lambda: reserve.stat().st_size == reserves.BYTES, "all of the reserve again")
    trial.check(0)


@pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="no loop devices here")
@pytest.mark.fault(
    "the disk of the run directory turns read-only, as after an error of the disk",
    "a task that cannot print fails by its own hand, and the run with its code; it says why",
    "what could not be written any more",
)
def test_disk_turns_read_only(trial: Trial) -> None:
    trial.up(2)
    for host in trial.hosts:
        host.failing_disk("/var/tmp")
    trial.start(lines=100_000)
    host = trial.placement["worker/0"]
    trial.now()
    host.fail_disk("/var/tmp")
    trial.check(1, sockets_left_on=[host])
    said = " ".join(trial.running.err.split())
    assert f"on {host.name}, where worker/0's log lies, has become read-only" in said


@pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="no loop devices here")
@pytest.mark.fault(
    "the disk of the run directory turns read-only under tasks that print little",
    "the agent says so and ends the tasks; the run ends, 76",
    NOTHING,
)
def test_disk_turns_read_only_before_a_task_prints(trial: Trial) -> None:
    trial.up(2)
    for host in trial.hosts:
        host.failing_disk("/var/tmp")
    trial.start(lines=1000, rate=0.02, more=["--threshold=stopped_s=1"])
    host = trial.placement["worker/0"]
    trial.now()
    host.fail_disk("/var/tmp")
    trial.task("worker/0").kill(signal.SIGSTOP)
    trial.check(76, sockets_left_on=[host])
    assert "Read-only file system; its agent ended the tasks" in " ".join(trial.running.err.split())


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.fault(
    "the file system of the run directory answers no more, as that of a file server that is away",
    "its guard ends the tasks when the lease is over; the run ends, 76; agent and guard end once it answers again",
    "what its tasks had printed in the last moment is on that host only",
)
def test_file_system_of_the_run_directory_hangs(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=100_000, lease_s=8)
    host = trial.placement["worker/0"]
    with dead_files(Path("/var/tmp"), host.inside()):
        trial.now()
        trial.wait_until_noticed()
        until(lambda: trial.running.process.poll() is not None, "the launcher's end")
        trial.after("ended")
        left = [each for each in host.processes() if each.env.get("TFLAUNCH_TASK")]
        assert not left, f"its agent hangs, and {left} are left"
        assert f"{host.name} was lost" in trial.running.err
    trial.check(76, gone=[host])


@pytest.mark.fault(
    "disk full in the launcher's record",
    "said once; the run goes on, all of it is shown; it ends with 73",
    "the rest of the record",
)
def test_disk_full_in_the_record(trial: Trial) -> None:
    trial.up(2)
    trial.bed.launcher.small_disk(trial.far.state, 64 << 10)
    trial.bed.launcher.do("chmod", "700", str(trial.far.state))
    trial.start(lines=10_000, rate=2000)
    trial.now()
    trial.bed.launcher.fill(trial.far.state)
    trial.running.wait_for("No space left on device")
    trial.after("noticed")
    trial.check(73, all_lines=10_000, record=False)


@pytest.mark.fault(
    "clocks of hosts an hour off, either way, from the start or all at once (simulated)", "nothing", NOTHING
)
def test_clocks_off(trial: Trial) -> None:
    one, two, three = trial.up(3, clock=True)
    one.set_clock(3600)
    trial.start(lines=400, workers=2)
    trial.now()
    one.set_clock(0)
    two.set_clock(3600)
    three.set_clock(-3600)
    trial.wait_for_more("worker/0", 200)
    trial.check(0, all_lines=400)


@pytest.mark.fault("no names any more, on launcher and hosts, in the middle of a run", "nothing", NOTHING)
def test_names_forgotten(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=400)
    trial.now()
    for machine in (trial.bed.launcher, *trial.hosts):
        machine.forget_names()
    trial.wait_for_more("worker/0", 200)
    trial.check(0, all_lines=400)


@pytest.mark.timeout(900)
@pytest.mark.fault("a flood of output", "every byte of it is shown and recorded", NOTHING)
@over_both_wires
def test_log_flood(trial: Trial) -> None:
    trial.up(2)
    lines = FLOOD_MB * 10_000  # of 100 bytes
    trial.start(lines=lines, rate=0)
    trial.now()
    trial.check(0, all_lines=lines, patience_s=600)


@pytest.mark.fault("Ctrl-C in a flood of output", "the run ends as ever, 130", NOTHING)
@over_both_wires
def test_interrupt_in_a_flood(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=100_000_000, rate=0)
    until(lambda: trial.seen("worker/0") > 100_000, "a flood")
    trial.now()
    running.interrupt()
    trial.check(130, patience_s=300, shown=False)


@pytest.mark.fault(
    "a task that fills the process table", "it fails by its own hand, and the run with its code", NOTHING
)
def test_process_table_filled(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=0, manners="fork wait", more=["--env=GO=/var/tmp/go"])
    host = trial.placement["worker/0"]
    with host.at_most(50):
        trial.now()
        host.path("/var/tmp/go").write_text("")
        trial.check(3)
    assert re.search("cannot fork.*temporarily unavailable", trial.running.out + trial.running.err)


@pytest.mark.fault(
    "Ctrl-C with the process table filled by a task",
    "the agent needs no process to end them all, 130",
    NOTHING,
)
def test_interrupt_with_a_full_process_table(trial: Trial) -> None:
    trial.up(2)
    running = trial.start(lines=0, manners="fork wait stay deaf", more=["--env=GO=/var/tmp/go"])
    host = trial.placement["worker/0"]
    with host.at_most(50):
        host.path("/var/tmp/go").write_text("")
        running.wait_for("cannot fork")
        trial.now()
        running.interrupt()
        trial.check(130)
