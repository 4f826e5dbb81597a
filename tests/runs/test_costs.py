"""What a launch costs, as far as it can be counted: connections, logins, bytes, threads and processes for each host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.bed import Bed, FarLauncher
from tests.support.bed.machines import BedHost
from tests.support.launcher import Launcher
from tests.support.patience import until
from tests.support.sshd import SshNetwork, logins
from tflaunch.sessions import payload

HOSTS = 3
THREADS = 1  # for each host: paramiko's own; what sends the agent and the code goes when that is done
OTHER_THREADS = 3  # the one that decides, one that writes to the terminal, one that keeps the events
WARM_BYTES = 12_000  # of SSH, its handshake included, to a host that has the agent and the code


def received(log: str) -> list[int]:
    """The bytes that came by each connection to that sshd, as it counts them."""
    return list(map(int, re.findall(r"Transferred: sent \d+, received (\d+) bytes", log)))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_what_each_host_costs(network: SshNetwork, launcher: Launcher, tmp_path: Path) -> None:
    hosts = [network.add() for _ in range(HOSTS)]
    for host in hosts:
        (host.directory / "runs").mkdir()
    script = launcher.script(
        "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists(sys.argv[-1]): time.sleep(0.05)\n"
    )
    entries = [{"name": host.name, "run_dir": str(host.directory / "runs")} for host in hosts]
    words = ("run", launcher.hostfile(entries), script, "--ps=0", f"--workers={HOSTS}")
    for number in (1, 2):
        over = tmp_path / f"over-{number}"
        with launcher.start(*words, "--", over) as running:
            running.wait_for("up", HOSTS)
            most = THREADS * HOSTS + OTHER_THREADS
            until(
                lambda most=most, pid=running.process.pid: threads(pid) <= most,
                f"no more than {most} threads",
            )
            over.touch()
            running.done().ran()
        for host in hosts:
            until(lambda host=host, number=number: len(received(host.log())) == number, "sshd to count")
            assert logins(host) == number
    for host in hosts:
        cold, warm = received(host.log())
        assert warm < WARM_BYTES < len(payload.agent()) < cold


def processes(host: BedHost) -> int:
    """How many processes and threads that host has begun since it booted, the reader's own included."""
    return int(host.do("cat", "/proc/sys/kernel/ns_last_pid"))


def test_how_many_processes_a_host_begins(bed: Bed, far: FarLauncher) -> None:
    """Those of sshd and of one command; guard, agent, what asks NVML, and the task.

    A fork more has the agent's memory copied once more: the dial check begins none where /etc/hosts has the names, nor
    does the look for outputs where there are none.
    """
    hosts = bed.up(2)
    words = ("run", far.hostfile(hosts), far.script("pass\n"), "--ps=0", "--workers=2", "--no-stacks")
    far.run(*words).ran()  # the hosts keep the agent from now on
    login = ("ssh", "-F", str(far.home / ".ssh/config"), "-o", "BatchMode=yes", hosts[0].name, "exec true")

    def begun(argv: list[str]) -> int:
        before = processes(hosts[0])
        subprocess.run(argv, check=True, capture_output=True, cwd=far.directory)
        return processes(hosts[0]) - before

    for_a_command = begun(bed.launcher.inside(*login)) - begun(["true"])
    before = processes(hosts[0])
    far.run(*words).ran()
    assert processes(hosts[0]) - before - begun(["true"]) == for_a_command + 4
