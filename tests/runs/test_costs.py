"""What a launch costs, as far as it can be counted: connections, logins, bytes and threads for each host."""

from __future__ import annotations

import re
from pathlib import Path

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
