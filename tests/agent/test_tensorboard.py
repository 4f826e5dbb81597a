"""TensorBoard on a host, while somebody looks at it."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.support.agent_over_pipes import Host, running, shell
from tests.support.launcher import alive
from tests.support.patience import until
from tflaunch.agent.host import processes


def tensorboards() -> list[int]:
    return [
        process.pid
        for process in processes.every().values()
        if b"tensorboard.main" in processes.command(process.pid)
    ]


@pytest.mark.parametrize("how", ["the channel ends", "its process is killed"])
def test_nothing_of_it_outlives_who_looks_at_it(host: Host, how: str) -> None:
    channel = host.start()
    running(channel, shell("exit 0", env={"PATH": os.environ["PATH"]}))
    channel.wait("exit")
    plan = host.directory / "plan.json"
    told = json.loads(plan.read_text())
    told["tasks"][0]["argv"][0] = sys.executable
    plan.write_text(json.dumps(told))
    channel.ask("end", grace_s=0.0, stacks=False, answer="swept")
    channel.leave()
    before = set(tensorboards())
    visit = host.open("visit", run="", host="")
    visit.wait("hello")
    visit.ask("tensorboard", run=host.run, host="h1", logdir=".", answer="hello")
    [pid] = until(lambda: set(tensorboards()) - before, "TensorBoard")
    process = processes.read(pid)
    assert process
    if how == "the channel ends":
        visit.close()
    else:
        os.kill(process.parent, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")
