"""An agent that was killed, on a host that was not restarted."""

from __future__ import annotations

import json
import os

from tests.support.agent_over_pipes import Host, running, shell


def test_an_agent_that_was_killed_is_not_told_as_a_restart(host: Host) -> None:
    channel = host.start()
    pid = running(channel, shell("sleep 3600"))["worker/0"]
    about = json.loads((host.directory / "agent.json").read_text())
    for each in (about["guard"], about["pid"], pid):
        os.kill(each, 9)
    view = host.attach(after=0, logs={}, client="")
    assert view.wait("gone")["reason"] == "its agent is gone: it was killed"
