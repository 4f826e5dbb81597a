"""What is known of a reboot, and what is not."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agent import ledger
from tflaunch.agent.host import processes
from tflaunch.agent.host.rundir import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(str(tmp_path), "run", "h1")
    found.create()
    return found


def left(directory: RunDirectory, age_s: float, **fields: Any) -> None:
    """What an agent has left, so long before this machine was started."""
    about = {
        "machine": [socket.gethostname(), "another-boot"],
        "tasks": ["worker/0"],
        "over": False,
        **fields,
    }
    directory.write("agent.json", about)
    then = processes.booted() - age_s
    for name in ("agent.json", "guard.json"):
        os.utime(Path(directory.path) / name, (then, then))


def test_an_agent_of_an_earlier_boot_is_gone_with_all_it_had(directory: RunDirectory) -> None:
    left(directory, 60.0)
    assert ledger.restarted(directory) == processes.booted()


@pytest.mark.parametrize(
    "fields",
    [
        {"over": True},  # it had ended before
        {"machine": None},  # an older agent
        {"machine": ["another-machine", "another-boot"]},
        {"machine": [socket.gethostname(), ""]},  # where no boot has a name
        {"machine": "nonsense"},
        {"machine": [1, 2, 3]},
        {"machine": [socket.gethostname(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()]},
    ],
)
def test_what_is_not_sure_is_not_said(directory: RunDirectory, fields: dict[str, Any]) -> None:
    left(directory, 60.0, **fields)
    assert ledger.restarted(directory) == 0.0


def test_an_agent_that_wrote_since_this_machine_has_started_is_another_machines(
    directory: RunDirectory,
) -> None:
    """Two machines of one name share the disk: its tasks may be alive on the other one."""
    left(directory, -60.0)
    assert ledger.restarted(directory) == 0.0
