"""An agent that hangs while a run starts: one deadline, the host by name, and nothing left on the other hosts."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bed import Bed, BedHost, FarLauncher
from tests.support.launcher import Process
from tests.support.patience import until

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
# Lets the test stop an agent just before the launcher sends its first message of that type.
STOPPING = """
import pathlib, sys, threading, time
from tflaunch.protocol import wire
from tflaunch.sessions import group, session

STAGE, asked, stopped = {stage!r}, pathlib.Path({asked!r}), pathlib.Path({stopped!r})

def wait_for_the_test():
    asked.touch()
    while not stopped.exists():
        time.sleep(0.01)

def send(self, type, body=b"", *, before=session.Session.send, **fields):
    if type == STAGE:
        wait_for_the_test()
    before(self, type, body, **fields)

def connect(self, hosts, verb, run, first, *, before=group.Sessions.connect):
    if STAGE != "probe":
        return before(self, hosts, verb, run, first)
    hosts = list(hosts)
    before(self, hosts, verb, run, lambda host: b"")

    def probe():
        while not all(each.name in self.by_host and self.by_host[each.name].directory for each in hosts):
            time.sleep(0.01)
        wait_for_the_test()
        for each in hosts:
            self.by_host[each.name]._put_out(first(each))

    threading.Thread(target=probe, daemon=True).start()

session.Session.send, group.Sessions.connect = send, connect
from tflaunch.cli import main  # noqa: E402
sys.exit(main())
"""
# Stops itself before it boots the agent.
STOPPED = '#!/bin/sh\nkill -STOP $$\nexec /usr/bin/python3 "$@"\n'
ENDS_S = 25.0  # to connect in 10 s, to end on the others, to start Python on a busy machine; it was 48 s


class Stopping(FarLauncher):
    """Whose tflaunch waits, at one stage, until the agent of the last host is stopped."""

    stage = ""

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        inside = self.bed.launcher.inside(cwd=self.code)
        program = STOPPING.format(
            stage=self.stage, asked=str(self.directory / "asked"), stopped=str(self.directory / "stopped")
        )
        return [*inside, sys.executable, "-c", program, *super().argv(verb, *words)[len(inside) + 3 :]]

    def stop_agents(self, host: BedHost) -> list[Process]:
        """Stop all that is of an agent there, as a kernel that hangs does it, once the launcher is at its stage."""
        until((self.directory / "asked").exists, f"the stage {self.stage}")
        agents = [each for each in host.processes() if each.is_agent]
        for each in agents:
            each.kill(signal.SIGSTOP)
        (self.directory / "stopped").touch()
        return agents


@pytest.fixture
def stopping(bed: Bed, tmp_path: Path) -> Iterator[Stopping]:
    launcher = Stopping(tmp_path, bed)
    try:
        yield launcher
    finally:
        launcher.close()


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
    assert [each for each in one.processes() if each.is_agent or "TFLAUNCH_RUN" in each.env] == []
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
    assert [each for each in one.processes() if each.is_agent or "TFLAUNCH_RUN" in each.env] == []
    for each in agents:
        each.kill(signal.SIGCONT)
