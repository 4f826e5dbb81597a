"""Who decides for a detached run: over real sockets, with the agents' end of them in the test's hands."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tflaunch import wire
from tflaunch.agent.entrusted import Entrusted
from tflaunch.agent.peers import Door, SealedStream
from tflaunch.agent.rundir import RunDirectory
from tflaunch.agent.selector import Selector
from tflaunch.coordinator import Coordinator
from tflaunch.job import TaskId
from tflaunch.oversight import Oversight
from tflaunch.supervise import State, state_data

SECRET = os.urandom(32)
TASKS = {TaskId("worker", 0): "a", TaskId("worker", 1): "b"}


@dataclass
class Agent:
    """The agent's end of a coordinator's connection."""

    stream: socket.socket | SealedStream
    decoder: wire.Decoder = field(default_factory=wire.Decoder)

    def say(self, type: str, **fields: Any) -> None:
        self.stream.send(wire.encode(type, **fields))

    def heard(self) -> list[str]:
        """The types of what has come."""
        try:
            return [message.type for message in self.decoder.feed(self.stream.recv(1 << 20))]
        except BlockingIOError:
            return []


class Bench:
    """A coordinator on host `a`, of a run with one worker there and one on `b`."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(str(path), "run-1", "a")
        self.directory.create()
        self.own = socket.socket(fileno=self.directory.listen().detach())
        self.own.setblocking(False)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.door = Door("127.0.0.1", port, SECRET)
        plan = {
            "members": {"a": ["127.0.0.1", 1], "b": ["127.0.0.1", port]},
            "lease_s": 60.0,
            "started": time.time(),
            "state": state_data(State(TASKS)),
            "oversight": Oversight({}, {}, {}).data(),
        }
        self.agents: list[Agent] = []
        self.coordinator = Coordinator(self.directory, SECRET, plan)

    def turn(self) -> None:
        """Let it do what there is to do."""
        now = time.monotonic()
        self.coordinator._drive.tick(now)
        self.coordinator._turn(now + 0.01)

    def let_in(self) -> Agent:
        """The other host's agent, once the coordinator has proved itself there."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.door.listener, selectors.EVENT_READ)
            accepted = None
            while accepted is None:
                self.turn()
                if selector.select(0):
                    accepted = self.door.listener.accept()[0]
                    assert self.door.welcome(accepted)
        while True:
            self.turn()
            try:
                stream = self.door.proved(accepted)
            except BlockingIOError:
                continue
            if stream is not None:
                self.agents.append(Agent(stream))
                return self.agents[-1]

    def own_agent(self) -> Agent:
        while True:
            self.turn()
            try:
                connection = self.own.accept()[0]
            except BlockingIOError:
                continue
            connection.setblocking(False)
            self.agents.append(Agent(connection))
            return self.agents[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for host in ("a", "b"):
        bench.coordinator.hang_up(host)
    for agent in bench.agents:
        agent.stream.close()
    bench.own.close()
    bench.door.listener.close()


def test_no_order_goes_out_before_its_agent_has_what_it_follows_from(bench: Bench) -> None:
    other, own = bench.let_in(), bench.own_agent()
    other.say("hello", run="run-1", host="b", pid=1, directory="/")
    heard: list[str] = []
    while "watch" not in heard:
        bench.turn()
        heard = other.heard()
    failure = {"code": 3, "signal": None, "signal_name": "", "seconds": 1.0, "stopped": False}
    other.say("exit", n=1, time=time.time(), task="worker/1", attempt=0, **failure)
    while bench.coordinator._drive.state.phase == "running":
        bench.turn()
    for _ in range(20):  # its own agent has not said a word yet
        bench.turn()
        assert "end" not in other.heard()
    own.say("hello", run="run-1", host="a", pid=1, directory="/")
    heard = []
    while "end" not in heard:
        bench.turn()
        heard = other.heard()
    said = own.heard()
    assert said.index("memory") < said.index("end")


def test_what_it_knows_may_be_more_than_a_message_holds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "BODY_LIMIT", 100)
    own = bench.own_agent()
    bench.coordinator._changed = True
    own.say("hello", run="run-1", host="a", pid=1, directory="/")
    pieces: list[wire.Message] = []
    while not (pieces and pieces[-1]["last"]):
        bench.turn()
        with contextlib.suppress(BlockingIOError):
            heard = own.decoder.feed(own.stream.recv(1 << 20))
            pieces += [message for message in heard if message.type == "memory"]
    assert len(pieces) > 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = wire.Message("entrust", {"secret": SECRET.hex(), "address": "127.0.0.1"})
    entrusted = Entrusted(bench.directory, Selector(), message, port, lambda _: None)
    for piece in [*pieces[:2], *pieces]:  # the first time, the connection was lost
        entrusted.remember(piece.body, piece["offset"], piece["last"])
    assert entrusted._memory == pickle.dumps(bench.coordinator._drive.memory())
    entrusted._door.listener.close()
