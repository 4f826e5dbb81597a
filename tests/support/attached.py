"""A run with hosts that a test speaks for, and a command that is attached to it."""

from __future__ import annotations

from typing import Any

from tests.support.pipes import Opener, Pipe
from tflaunch.hosts import Host, Hostfile
from tflaunch.protocol import wire
from tflaunch.runs.follow import Follower
from tflaunch.runs.run_states import LEASE_S, HostShare, RunState, TaskState
from tflaunch.runs.wanted import WantedLogs
from tflaunch.sessions.dialler import Connected
from tflaunch.sessions.group import Sessions

EXIT = {"attempt": 0, "signal": None, "signal_name": "", "seconds": 1.0, "stopped": False}


class Watcher:
    """Writes down what is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **_: self.shown.append(f"{name}: {' '.join(map(str, told))}")


class Attached:
    """A run with a task on each of its hosts, watched; the test says what the hosts say."""

    def __init__(self, hosts: int, lease_s: float = LEASE_S) -> None:
        self.names = [f"host{number}" for number in range(1, hosts + 1)]
        self.sessions = Sessions(Opener(), lambda *_: None)
        self.pipes = {name: Pipe() for name in self.names}
        for name, pipe in self.pipes.items():
            self.sessions.put(Connected(Host(name), pipe))  # type: ignore[arg-type]
            self.sessions.next(0.0)
            pipe.feed(wire.MAGIC)
        run = RunState(
            "run-1",
            tuple(HostShare(name, "alive", asked=name) for name in self.names),
            tuple(TaskState(f"worker/{number}", name, "running") for number, name in enumerate(self.names)),
            lease_s=lease_s,
        )
        self.watcher = Watcher()
        hostfile = Hostfile("test", tuple(map(Host, self.names)))
        self.follower = Follower(run, self.sessions, hostfile, self.watcher, WantedLogs())  # type: ignore[arg-type]
        self._told = dict.fromkeys(self.names, 0)

    def say(self, host: str, type: str, **fields: Any) -> None:
        self._told[host] += 1
        self.pipes[host].feed(wire.encode(type, n=self._told[host], time=1.0, **fields))

    def ends(self, host: str, code: int, outcome: int | None) -> None:
        """The host's task ends with that code; how the run has ended it tells before, if it does."""
        task = f"worker/{self.names.index(host)}"
        if outcome is not None:
            self.say(host, "outcome", outcome=ended(outcome))
        self.say(host, "started", task=task, attempt=0, pid=7)
        self.say(host, "exit", task=task, code=code, **EXIT)
        self.say(host, "swept", killed=[], survivors=[], gpus=[], logs={})


def ended(code: int) -> dict[str, Any]:
    status = "failed" if code else "succeeded"
    told = {"status": status, "exit_code": code, "seconds": 1.0, "exits": [], "first_failure": None}
    return {**told, "unverified": {}, "survivors": {}}
