"""What the agent tells of its host for `tflaunch check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.agent import host_check as agent_check


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, False),
        ({"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=no\n"}, False),
        ({"usr/lib/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=root {me}\n"}, False),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillOnlyUsers=eve\n"}, False),
        (
            {
                "etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/50-keep.conf": "[Login]\nKillUserProcesses=no\n",
            },
            False,
        ),
    ],
)
def test_who_is_killed_at_logout(tmp_path: Path, files: dict[str, str], kills: bool) -> None:
    me = agent_check.logout(str(tmp_path))["user"]
    everywhere = "KillExcludeUsers=\n" if me == "root" else ""
    for name, text in {**files, "proc/self/cgroup": "0::/user.slice/user-0.slice/session-3.scope\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        default = "" if "Exclude" in text or "cgroup" in name else everywhere
        (tmp_path / name).write_text(text.format(me=me) + default)
    assert agent_check.logout(str(tmp_path)) == {
        "kills": kills,
        "session": "session-3.scope",
        "user": me,
        "linger": False,
    }
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/ssh.service\n")
    assert not agent_check.logout(str(tmp_path))["kills"]
