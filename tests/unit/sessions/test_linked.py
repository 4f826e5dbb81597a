"""The loop of every command that stays with its hosts: what it makes of what comes, and of a sleep of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.attached import EXIT, Attached, ended
from tests.support.pipes import Opener, Pipe
from tflaunch.hosts import Host
from tflaunch.lifecycle.links import SILENCE_S
from tflaunch.protocol import wire
from tflaunch.protocol.errors import Breach, ConnectError, Gone
from tflaunch.protocol.events import Interrupted
from tflaunch.protocol.wire import Message
from tflaunch.runs.fetch_pipeline import STALLED_S, FetchRequest, Pipeline
from tflaunch.sessions.dialler import Connected
from tflaunch.sessions.group import Sessions, Stopped
from tflaunch.sessions.linked import Linked
from tflaunch.sessions.session import Ended


class Shown:
    """A watcher that writes down what it is shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **_: self.lines.append(f"{name}: {' '.join(map(str, told))}")


class Two(Linked):
    """Two hosts; writes down what happens."""

    def __init__(self) -> None:
        self.sessions = Sessions(Opener(), lambda *_: None)
        self.shown = Shown()
        super().__init__(self.sessions, self.shown)  # type: ignore[arg-type]
        self.pipes = {name: self.connect(name) for name in ("one", "two")}
        self.did: list[str] = []

    def connect(self, host: str) -> Pipe:
        pipe = Pipe()
        self.sessions.put(Connected(Host(host), pipe))  # type: ignore[arg-type]
        self.sessions.next(0.0)
        pipe.feed(wire.MAGIC)
        return pipe

    def said(self, host: str, message: Message) -> None:
        self.did.append(f"{host} said {message.type}")

    def dead(self, host: str, error: ConnectError) -> None:
        self.did.append(f"{host} is dead: {error.message}")

    def disconnected(self, host: str) -> None:
        self.did.append(f"{host} disconnected")

    def dial(self, host: str) -> None:
        self.did.append(f"dial {host}")

    def watch(self, host: str, after: int) -> None:
        self.did.append(f"watch {host} {after}")


@pytest.fixture
def two() -> Two:
    two = Two()
    two.link(["one", "two"])
    return two


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock on, as while this process is stopped."""
    clock, slept = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + slept[0])

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    return sleep


def test_a_connection_that_ends_is_made_again_and_what_was_missed_is_asked_for(two: Two) -> None:
    two.pipes["one"].feed(b"")
    two.turn()
    assert two.did == ["one disconnected"]
    assert two.shown.lines[0].startswith("unreachable: one lost the agent")
    while len(two.did) < 2:
        two.turn()
    assert two.did[1:] == ["dial one"]
    pipe = two.connect("one")
    for run in ("", "run-1"):  # the first hello is the visit's
        pipe.feed(wire.encode("hello", run=run, host="one", pid=7, directory="/tmp/run"))
        two.turn()
    assert two.did[2:] == ["watch one 0"]
    assert two.shown.lines[1].startswith("back: one")


def test_a_slot_that_its_engine_says_is_over_is_not_dialled_any_more(two: Two) -> None:
    two.sessions.put(Ended("one", Gone("NotFound", swept=True), two.sessions.by_host["one"].number))
    until = two.awake_s + 1.0
    while two.awake_s < until:
        two.turn(until)
    assert two.did == ["one is dead: NotFound"]
    assert not two.shown.lines


def test_a_host_that_breaks_the_protocol_or_has_no_such_run_is_not_dialled_any_more(two: Two) -> None:
    two.sessions.put(Ended("one", Breach("nonsense"), two.sessions.by_host["one"].number))
    two.pipes["two"].feed(wire.encode("failed", reason="no such run"))
    until = two.awake_s + 1.0
    while two.awake_s < until:
        two.turn(until)
    assert two.did == [f"one is dead: {Breach('nonsense').message}", "two is dead: no such run"]
    assert not two.shown.lines


def test_hosts_that_were_lost_before_are_dialled_or_done_without() -> None:
    two = Two()
    two.pipes["one"].feed(b"")
    two.sessions.next(time.monotonic() + 1)
    two.sessions.put(Ended("two", Breach("nonsense"), two.sessions.by_host["two"].number))
    two.sessions.next(time.monotonic() + 1)
    two.link(["one", "two"])
    assert two.did == [f"two is dead: {Breach('nonsense').message}"]
    while len(two.did) < 2:
        two.turn()
    assert two.did[1:] == ["dial one"]


def test_ctrl_c_ends_it_unless_the_command_says_otherwise(two: Two) -> None:
    two.sessions.put(Interrupted(2))
    with pytest.raises(Stopped):
        two.turn()


def test_after_a_sleep_nobody_is_silent_and_no_deadline_is_nearer(
    two: Two, sleep: Callable[[float], None]
) -> None:
    deadline = two.awake_s + 0.5
    two.turn(two.awake_s)
    threading.Timer(0.1, sleep, [10 * SILENCE_S]).start()
    begun = time.perf_counter()
    while two.awake_s < deadline:
        two.turn(deadline)
    assert 0.4 < time.perf_counter() - begun < 60.0
    assert not two.did
    assert not two.shown.lines


def test_who_is_awake_hangs_up_on_a_silent_host(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tflaunch.lifecycle.links.SILENCE_S", 0.3)
    pipe = two.pipes["one"]
    while not two.did:
        two.turn()
    assert pipe.closed
    assert "unreachable: one no sign of life for 0.3 s" in two.shown.lines


def test_a_follower_that_slept_while_the_outcome_was_due_shows_it(sleep: Callable[[float], None]) -> None:
    attached = Attached(1)
    attached.say("host1", "started", task="worker/0", attempt=0, pid=7)
    attached.say("host1", "exit", task="worker/0", code=9, **EXIT)
    attached.say("host1", "swept", killed=[], survivors=[], gpus=[], logs={})
    threading.Timer(0.3, sleep, [100.0]).start()
    threading.Timer(2.0, lambda: attached.say("host1", "outcome", outcome=ended(9))).start()
    outcome = attached.follower.follow()
    assert outcome is not None and outcome.exit_code == 9
    assert not [line for line in attached.watcher.shown if line.startswith("unreachable")]


def test_a_fetch_that_slept_gives_no_host_up(sleep: Callable[[float], None]) -> None:
    two = Two()
    found: list[str] = []

    def steps(name: str) -> Any:
        yield FetchRequest("find", {"patterns": [name]}, lambda _: not found.append(name))  # type: ignore[func-returns-value]

    pipeline = Pipeline(two.sessions, ["one", "two"], two.dial, two.shown)  # type: ignore[arg-type]

    def answer() -> None:
        for pipe in two.pipes.values():
            pipe.feed(wire.encode("found", files=[], left=[], there=[], last=True))

    threading.Timer(0.1, sleep, [STALLED_S + SILENCE_S]).start()
    threading.Timer(1.5, answer).start()
    pipeline.work({name: [steps(name)] for name in two.pipes})
    assert sorted(found) == ["one", "two"]
    assert not pipeline.unreached
    assert not two.shown.lines
