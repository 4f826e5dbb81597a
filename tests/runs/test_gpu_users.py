"""`tflaunch gpus --all-users` on real sshd with simulated GPUs: who holds which GPUs since when."""

from __future__ import annotations

import getpass
import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.gpus_lab import Lab
from tests.support.lab import HOLD
from tests.support.launcher import Launcher
from tests.support.other_users import BECOME, WAIT, nobody
from tests.support.patience import until
from tests.support.sshd import SshNetwork


@pytest.fixture
def lab(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Lab:
    """A lab without hosts."""
    return Lab(library, tmp_path, network, launcher)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_runs_and_other_users_processes_with_sums(lab: Lab, tmp_path: Path) -> None:
    with nobody(BECOME + WAIT) as his:
        lab.add(
            *(f"gpu uuid=GPU-{index} mem=16384" for index in range(3)), f"proc gpu=2 pid={his.pid} mem=9000"
        )
        out = tmp_path / "out"
        out.mkdir()
        hostfile = lab.launcher.hostfile(["host1"], gpus="auto")
        script = lab.launcher.script(HOLD)
        words = ("run", hostfile, script, "--ps=0", "--workers=2", f"--env=OUT={out}", "--env=NAME=x")
        with lab.launcher.start(*words) as running:
            until(lambda: len(list(out.glob("*.pid"))) == 2, "the run")
            shown = lab.gpus("--all-users").ran()
            document = json.loads(lab.gpus("--all-users", "--json").ran().out)
            (out / "go-x").touch()
            running.done().ran()
    me = getpass.getuser()
    program = Path(sys.executable).name
    rows = [line.split() for line in shown.out.splitlines()]
    assert any(row[:2] + row[3:] == [me, "2", "run", running.run_id, "host1:0,1"] for row in rows), shown.out
    assert any(row[:2] + row[3:6] == ["nobody", "1", "pid", str(his.pid), program] for row in rows), shown.out
    assert f"{me} 2 GPUs on host1: 1 run" in shown.out
    assert "nobody 1 GPU on host1: 1 other process" in shown.out
    ours, other = document["users"]
    assert (ours["user"], ours["gpus"], other["user"], other["gpus"]) == (me, 2, "nobody", 1)
    (hold,) = other["holds"]
    assert (hold["pid"], hold["gpu"], hold["run"]) == (his.pid, "2", "")
    assert hold["since"] > 0
    assert document["unseen"] == []


def test_too_few_gpus_for_a_run_where_a_driver_shows_none(lab: Lab) -> None:
    lab.add("gpu uuid=GPU-a mem=16384")
    lab.add("init_error 18", "gpu uuid=GPU-b mem=16384")
    hostfile = lab.launcher.hostfile(["host[1-2]"], gpus="auto")
    words = ("run", hostfile, lab.launcher.script(HOLD), "--ps=0", "--workers=2")
    done = lab.launcher.run(*words).ran(65)
    assert "host1 1, host2 none, for they cannot be seen (NVML: " in done.sentences
    assert "On host2, the driver was updated: reboot it, or reload its kernel modules" in done.sentences


def test_a_host_that_cannot_be_asked_and_processes_that_cannot_be_seen(lab: Lab) -> None:
    lab.add("gpu uuid=GPU-a mem=16384 used=9000")
    lab.add("gpu uuid=GPU-b mem=16384", "proc gpu=0 pid=4999999 mem=90")
    lab.add().close()
    done = lab.gpus("--all-users").ran(69)
    assert "host1:0: in use by a process that host1 does not show" in done.out
    assert "host2:0: a process whose user host2 does not show" in done.out
    assert "host3" in done.err
    document = json.loads(lab.gpus("--all-users", "--json").ran(69).out)
    assert list(document["unreachable"]) == ["host3"]
    wrong = lab.gpus("--all-users", "--csv").ran(2)
    assert "--all-users and --csv are two forms of one thing" in wrong.sentences
