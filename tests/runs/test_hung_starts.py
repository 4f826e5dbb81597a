"""An agent that hangs while a run starts: one deadline, the host by name, and nothing left on the other hosts."""

from __future__ import annotations

import re
import signal

import pytest

from tests.support.bed import Bed, BedHost
from tests.support.launcher import Process
from tests.support.patience import until
from tests.support.stopping import Stopping

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
# Stops itself before it boots the agent.
STOPPED = '#!/bin/sh\nkill -STOP $$\nexec /usr/bin/python3 "$@"\n'
ENDS_S = 25.0  # to connect in 10 s, to end on the others, to start Python on a busy machine; it was 48 s


def of_a_run(host: BedHost) -> list[Process]:
    """The processes there of an agent, or of a task."""
    return [each for each in host.processes() if each.is_agent or "TFLAUNCH_RUN" in each.env]


@pytest.mark.parametrize("stage", ["boot", "probe", "code", "stage", "dial", "entrust", "coordinate"])
def test_an_agent_that_hangs_while_a_run_starts_ends_it_by_its_deadline(
    bed: Bed, stopping: Stopping, stage: str
) -> None:
    one, two = bed.up(2)
    stopping.stage = stage
    if stage == "boot":
        two.path("/tmp/python3").write_text(STOPPED)
        two.path("/tmp/python3").chmod(0o755)
        two.path("/home/root/.bashrc").write_text("PATH=/tmp:$PATH\n")
    detach = ["--detach"] if stage in ("entrust", "coordinate") else []
    words = ("--workers=2", "--ps=0", "--connect-timeout=10", *detach)
    with stopping.start("run", stopping.hostfile([one, two]), stopping.script(SLEEPS), *words) as running:
        agents = [] if stage == "boot" else stopping.stop_agents(two)
        done = running.done(ENDS_S)
    assert done.code in (69, 70), done.err
    assert "host2" in done.err
    assert re.search(r"\b10 s\b|\b11 s\b", done.err), done.err
    assert "Traceback" not in done.err
    until(lambda: not of_a_run(one), "the end of all that the run has started there")
    for each in [*agents, *two.processes()]:
        each.kill(signal.SIGCONT)


@pytest.mark.parametrize("stage", ["probe", "stage", "coordinate"])
def test_ctrl_c_ends_a_start_while_an_agent_hangs(bed: Bed, stopping: Stopping, stage: str) -> None:
    one, two = bed.up(2)
    stopping.stage = stage
    words = ("--workers=2", "--ps=0", "--detach", "--connect-timeout=300")  # its deadline is far
    with stopping.start("run", stopping.hostfile([one, two]), stopping.script(SLEEPS), *words) as running:
        agents = stopping.stop_agents(two)
        running.interrupt()
        done = running.done(ENDS_S)
    assert done.code == 76, done.err  # not 130: something may be left
    assert "host2: could not check that nothing is left" in done.sentences
    until(lambda: not of_a_run(one), "the end of all that the run has started there")
    for each in agents:
        each.kill(signal.SIGCONT)
