"""A tflaunch that stops at one stage of a start, until the test has done something to a host."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.support.bed import BedHost, FarLauncher
from tests.support.launcher import Process
from tests.support.patience import until

# Lets the test stop an agent just before the launcher sends its first message of that type.
STOPPING = """
import pathlib, threading, time
from tflaunch.protocol import wire
from tflaunch.sessions import group, session

STAGE, asked, stopped = {stage!r}, pathlib.Path({asked!r}), pathlib.Path({stopped!r})

def wait_for_the_test():
    asked.touch()
    while not stopped.exists():
        time.sleep(0.01)

def send_frame(self, frame, type, fields, *, before=session.Session.send_frame):
    if type == STAGE:
        wait_for_the_test()
    before(self, frame, type, fields)

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

session.Session.send_frame, group.Sessions.connect = send_frame, connect
from tflaunch.__main__ import command  # noqa: E402
command()
"""


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
        self.wait_for_the_stage()
        agents = [each for each in host.processes() if each.is_agent]
        for each in agents:
            each.kill(signal.SIGSTOP)
        self.go_on()
        return agents

    def wait_for_the_stage(self) -> None:
        """Until the launcher is at its stage, and waits."""
        until((self.directory / "asked").exists, f"the stage {self.stage}")

    def go_on(self) -> None:
        """Let the launcher go on."""
        (self.directory / "stopped").touch()
