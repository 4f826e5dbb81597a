"""Ctrl-C and SIGTERM at any moment of a command's life, from its first line on."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bed import Bed, FarLauncher
from tests.support.launcher import Launcher
from tests.support.patience import PATIENCE_S, until

SCRIPT = str(Path(sys.executable).with_name("tflaunch"))
UNWILLING = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('begun', flush=True)
time.sleep(600)
"""
MOMENTS_S = [each / 25 for each in range(13)]  # 0 to 0.5 s: a start takes 0.2 s


@pytest.fixture
def mute() -> Iterator[int]:
    """A port that accepts and says nothing: what waits for it waits."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(200)
        yield listener.getsockname()[1]


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether that process has said what is to be done at that signal: the first thing that tflaunch does."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("argv", [[sys.executable, "-m", "tflaunch"], [SCRIPT]], ids=["-m", "script"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_at_every_moment_from_its_first_line_on_a_signal_ends_it_as_a_shell_tells_it_and_without_a_traceback(
    launcher: Launcher, mute: int, number: signal.Signals, argv: list[str]
) -> None:
    config = launcher.directory / "mute"
    config.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {mute}\n")
    for moment_s in MOMENTS_S:
        with subprocess.Popen(
            [*argv, "ps", "-H", "gpu01", "-F", config],
            env=launcher.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            until(lambda pid=process.pid: catches(pid, signal.SIGTERM), "its first line")
            time.sleep(moment_s)
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE_S)
        said = f"{number.name} after {moment_s} s: {process.returncode}\n{err.decode()}"
        assert process.returncode == 128 + number, said
        assert b"Traceback" not in err, said
        assert b"Aborted" not in err, said
        assert out == b"", said


def test_ctrl_c_while_a_lost_host_is_looked_for_ends_the_run_and_there_is_no_new_plan(
    bed: Bed, far: FarLauncher
) -> None:
    hosts = bed.up(2)
    script = far.script(UNWILLING)
    words = ("--workers=2", "--ps=0", "--restarts=1", "--lease=5s", "--grace=4")
    connections = Path(f"/proc/{bed.launcher.pid}/net/tcp")

    def calls() -> set[str]:
        """The calls to an sshd that nobody has answered yet, by their own address."""
        found = map(str.split, connections.read_text().splitlines())
        return {words[1] for words in found if words[2].endswith(":0016") and words[3] == "02"}

    with far.start("run", far.hostfile(hosts), script, *words) as running:
        running.wait_for("begun", 2)
        bed.block(bed.launcher, hosts[1], 22)
        running.wait_for("host2 is lost")
        earlier = calls()  # the task that is left ends 4 s later, and host2 is looked for then
        until(lambda: calls() - earlier, "another call to host2, which is given 10 s")
        running.interrupt()
        done = running.done()
    assert done.code == 130, done.err
    assert "the user told tflaunch not to wait for its agent" in done.sentences, done.err
    assert "planning anew" not in done.err
    bed.heal(hosts[1])
