"""The test bed: whether what it says befalls its hosts does befall them, and nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support import bed as beds
from tests.support.bed import Bed, FarLauncher, Machine
from tests.support.launcher import alive
from tests.support.nvml import build
from tests.support.patience import PATIENCE_S, until

# Asks an sshd for its first words; says how that ended.
KNOCK = """\
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.0) as connection:
        print(connection.recv(4).decode())
except OSError as error:
    print(type(error).__name__)
"""
TIMEOUT = ("TimeoutError", "timeout")  # older Pythons have another name for it


def knock(source: Machine, target: Machine, port: int = 22) -> str:
    """What `source` hears from the sshd of `target`."""
    return source.do("python3", "-c", KNOCK, target.name, str(port)).strip()


def ssh(bed: Bed, home: Path, host: Machine, command: str) -> subprocess.Popen[str]:
    """A command over SSH, from the launcher's machine."""
    words = ("ssh", "-F", str(home / ".ssh/config"), "-o", "BatchMode=yes", host.name, command)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(bed.launcher.inside(*words), text=True, **pipes)


def test_a_host_has_everything_of_its_own(bed: Bed) -> None:
    one, two = bed.up(2)
    assert one.do("hostname") == "host1\n"
    assert "10.77.0.1/16" in one.do("ip", "-o", "address")
    assert one.do("ps", "-A", "-o", "comm=").split() == ["sh", "sshd", "sleep", "ps"]
    for place in ("/home", "/tmp", "/var/tmp", "/run"):
        mine = f"{place}/{bed.directory.name}.mine"
        one.do("touch", mine)
        assert not two.path(mine).exists()
        assert not Path(mine).exists()
    assert one.do("python3", "-c", f"import os; print(os.path.exists({str(bed.directory)!r}))") == "False\n"
    assert one.do(sys.executable, "-c", "import tflaunch; print(tflaunch.__file__)", cwd=ROOT).startswith(
        f"{ROOT}/"
    )


def test_the_network(bed: Bed) -> None:
    one, two, three = bed.up(3)

    def reached() -> set[tuple[str, str]]:
        pairs = {"1": (one, two), "2": (two, one), "3": (three, one), "4": (three, two)}
        with ThreadPoolExecutor() as pool:
            heard = pool.map(lambda pair: knock(*pair), pairs.values())
        return {name for name, words in zip(pairs, heard, strict=True) if words == "SSH-"}

    assert reached() == {"1", "2", "3", "4"}
    bed.cut(one, two)
    assert knock(one, two) in TIMEOUT
    assert reached() == {"3", "4"}
    bed.heal(one, two)
    bed.cut(one, two, refuse=True)
    assert {knock(one, two), knock(two, one)} == {"ConnectionRefusedError"}
    assert reached() == {"3", "4"}
    bed.heal(one)
    bed.cut(one)
    assert reached() == {"4"}
    bed.heal()
    bed.block(three, one, 22)
    assert reached() == {"1", "2", "4"}
    bed.heal()
    bed.block(three, one, 22, refuse=True)
    assert knock(three, one) == "ConnectionRefusedError"
    assert reached() == {"1", "2", "4"}
    bed.heal()
    assert reached() == {"1", "2", "3", "4"}


def test_one_way(bed: Bed) -> None:
    [one] = bed.up(1)
    counts = "import sys; print(next(l for l in open('/proc/net/dev') if 'eth0' in l).split()[%d])"

    def packets(machine: Machine, received: bool) -> int:
        return int(machine.do("python3", "-c", counts % (2 if received else 10)))

    assert knock_from_launcher(bed, one) == "SSH-"
    bed.cut_one_way(one, bed.launcher)
    before = packets(one, received=True)
    assert knock_from_launcher(bed, one) in TIMEOUT
    assert packets(one, received=True) > before  # the questions came, the answers did not
    bed.heal(one, bed.launcher)
    assert knock_from_launcher(bed, one) == "SSH-"
    bed.cut_one_way(bed.launcher, one)
    before = packets(one, received=True)
    assert knock_from_launcher(bed, one) in TIMEOUT
    assert packets(one, received=True) == before


def knock_from_launcher(bed: Bed, host: Machine) -> str:
    """What the launcher's machine hears from that sshd."""
    argv = bed.launcher.inside("python3", "-c", KNOCK, host.name, "22")
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def test_a_slow_cable(bed: Bed) -> None:
    one, two = bed.up(2)

    def round_trip_s() -> float:
        started = time.monotonic()
        assert knock(one, two) == "SSH-"
        return time.monotonic() - started

    quick = round_trip_s()
    bed.delay(two, 100)
    assert round_trip_s() > 0.35  # two round trips, 100 ms each way
    # A busy machine is slow by itself, so an upper bound is asked until it holds.
    bed.delay(two, 50)
    until(lambda: round_trip_s() < quick + 0.35, "the cable to be quicker")
    bed.delay(two, 0)
    until(lambda: round_trip_s() < quick + 0.15, "the cable to be as quick as at first")
    bed.delay(two, 0, loss_percent=100)
    assert knock(one, two) in TIMEOUT


@pytest.fixture
def logins() -> Iterator[contextlib.ExitStack]:
    """What is put on it ends with the test."""
    with contextlib.ExitStack() as stack:
        yield stack


def test_what_befalls_a_login(bed: Bed, tmp_path: Path, logins: contextlib.ExitStack) -> None:
    one, other = bed.up(2)
    bed.ssh_directory(tmp_path)

    def login(host: Machine = one) -> subprocess.Popen[str]:
        process = logins.enter_context(ssh(bed, tmp_path, host, "echo here; exec sleep 1000"))
        logins.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process

    session, bystander = login(), login(other)
    one.kill_sshd(sessions=False)
    assert knock(other, one) == "ConnectionRefusedError"
    one.start_sshd()
    second = login()
    assert session.poll() is None
    one.kill_sessions()
    assert {session.wait(PATIENCE_S), second.wait(PATIENCE_S)} == {255}
    one.reset_connections()  # there are none
    session = login()
    one.reset_connections()
    assert session.wait(PATIENCE_S) == 255
    session = login()
    one.freeze()
    with ssh(bed, tmp_path, one, "echo there") as frozen:
        with pytest.raises(subprocess.TimeoutExpired):
            frozen.wait(1.0)
        one.thaw()
        assert frozen.communicate()[0] == "there\n"
    assert session.poll() is None
    bed.reboot(one)
    assert session.wait(PATIENCE_S) == 255
    session = login()
    bed.power_off(one)
    with pytest.raises(subprocess.TimeoutExpired):
        session.wait(1.0)
    bed.boot(one)
    assert session.stdin is not None
    session.stdin.write("x")  # the answer is a RST
    session.stdin.flush()
    assert session.wait(PATIENCE_S) == 255
    assert bystander.poll() is None


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_reboot_and_what_is_on_the_disk(bed: Bed, keep_disk: bool) -> None:
    [one] = bed.up(1)
    one.do(
        "sh", "-c", "sleep 1000 >&- 2>&- & touch /var/tmp/kept /tmp/lost /home/root/kept; mkdir /var/tmp/more"
    )
    assert [process.words for process in one.processes()] == [("sleep", "1000")]
    bed.reboot(one, keep_disk=keep_disk)
    assert one.processes() == []
    assert one.path("/var/tmp/kept").exists() == keep_disk
    assert not one.path("/tmp/lost").exists()
    assert one.path("/home/root/kept").exists()


def test_limits_of_a_host(bed: Bed, tmp_path: Path) -> None:
    one, two = bed.up(2)
    one.small_disk("/var/tmp", 1 << 20)
    with pytest.raises(subprocess.CalledProcessError) as full:
        one.do("dd", "if=/dev/zero", "of=/var/tmp/file", "bs=1M", "count=2")
    assert "No space left" in full.value.stderr
    two.do("dd", "if=/dev/zero", "of=/var/tmp/file", "bs=1M", "count=2")
    one.small_disk("/var/tmp", 4 << 20)
    one.do("dd", "if=/dev/zero", "of=/var/tmp/file", "bs=1M", "count=2")

    bed.ssh_directory(tmp_path)
    # Each waits for the end of the first, which has the only other end of the pipe: they are there all at once.
    wait = "r, w = os.pipe(); [os.fork() or (os.close(w), os.read(r, 1), os._exit(0)) for _ in range(20)]"
    many = f"exec python3 -c 'import os; {wait}'"
    with one.at_most(20):
        for host, code in ((one, 1), (two, 0)):
            with ssh(bed, tmp_path, host, many) as login:
                _, errors = login.communicate()
            assert login.returncode == code, errors
    with ssh(bed, tmp_path, one, many) as login:
        login.communicate()
    assert login.returncode == 0


def test_names_that_are_forgotten(bed: Bed) -> None:
    one, _ = bed.up(2)
    assert one.do("getent", "hosts", "host2").split() == ["10.77.0.2", "host2"]
    one.forget_names()
    argv = one.inside("timeout", "1", "getent", "hosts", "host2")
    assert subprocess.run(argv, check=False).returncode == 124  # nobody answers
    bed.name_all()
    assert one.do("getent", "hosts", "host2").split() == ["10.77.0.2", "host2"]


def test_a_wrong_clock(bed: Bed, tmp_path: Path) -> None:
    [one] = bed.up(1, clock=True)
    bed.ssh_directory(tmp_path)
    ask = "exec python3 -c 'import datetime, time; print(int(time.time()), int(time.monotonic()))'"

    def ahead_s() -> list[float]:
        with ssh(bed, tmp_path, one, ask) as asked:
            wall, monotonic = map(int, asked.communicate()[0].split())
        return [round((wall - time.time()) / 60), round((monotonic - time.monotonic()) / 60)]

    assert ahead_s() == [0, 0]
    one.set_clock(-3600)
    assert ahead_s() == [-60, 0]


def test_tflaunch_on_a_bed_with_gpus(bed: Bed, far: FarLauncher, tmp_path: Path) -> None:
    hosts = bed.up(2)
    for host in hosts:
        host.give_gpus(build(tmp_path), *(f"gpu uuid=GPU-{host.name}-{number}" for number in (1, 2)))
    trainer = far.script(
        "import os, time; print('GPUs', os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
    )
    with far.start(
        "run", far.hostfile(hosts, gpus=None), trainer, "--ps=0", "--workers=4", "--grace=1"
    ) as running:
        running.wait_for("GPUs GPU-", 4)
        for host in hosts:
            assert host.held_leases() == [f"GPU-{host.name}-1", f"GPU-{host.name}-2"]
        assert len(far.leftovers(running.run_id)) >= 8
        assert len(far.run_directories()) == 2
        running.interrupt()
        assert running.end() == 130, running.err
    far.wait_until_nothing_is_left()
    assert [host.held_leases() for host in hosts] == [[], []]


# A bed whose owner is killed; it says the pids of all that is on it.
OWNER = """
import pathlib, sys, time
from tests.support.bed import Bed
bed = Bed(pathlib.Path(sys.argv[1]))
hosts = bed.up(2)
bed.delay(hosts[0], 10)
hosts[1].do("sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
print(*(pid for host in hosts for pid in host.pids()), bed.launcher.pid, bed._switch.pid, flush=True)
time.sleep(1000)
"""


def test_nothing_outlives_a_killed_test(tmp_path: Path) -> None:
    if reason := beds.missing():
        pytest.skip(reason)
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "bed")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) >= 9
        assert all(map(alive, pids))
        owner.kill()
    until(lambda: not any(map(alive, pids)), "the end of everything")
