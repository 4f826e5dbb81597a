"""Programs that are no Python."""

from __future__ import annotations

import pytest

from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork


@pytest.mark.parametrize("connection", ["local", "ssh"])
def test_a_shell_script_runs_with_flags_and_arguments(
    network: SshNetwork, launcher: Launcher, connection: str
) -> None:
    hosts = (
        launcher.local(2)
        if connection == "local"
        else launcher.hostfile([network.add().name for _ in range(2)])
    )
    script = launcher.code / "train.sh"
    script.write_text('#!/usr/bin/env -S bash -e\n./tool "$0" $BASH_VERSION "$@"\n')
    tool = launcher.code / "tool"
    tool.write_text('#!/bin/sh\nfor each; do echo "got $each"; done\n')
    tool.chmod(0o755)
    done = launcher.run("run", hosts, script, "--ps=0", "--workers=2", "--", "--steps", "a b").ran()
    said = [line.partition("│ got ")[2] for line in done.out.splitlines() if line.startswith("worker/1")]
    assert said[0] == "train.sh"
    assert [word.partition("=")[0] for word in said[2:6]] == [
        "--ps_hosts", "--worker_hosts", "--job_name", "--task_index",
    ]  # fmt: skip
    assert said[6:] == ["--steps", "a b"]
    there = launcher.run("run", hosts, tool, "--no-sync", "--ps=0", "--workers=1")
    assert there.code  # by Python: nobody can look at what is on the hosts
    there = launcher.run("run", hosts, script, "--no-sync", "--ps=0", "--workers=1", cwd=launcher.code).ran()
    assert "got --job_name=worker" in there.out
