"""Who decides for a detached run: over real sockets, with the agents' end of them in the test's hands."""

from __future__ import annotations

import contextlib
import json
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

from tflaunch.agent import peer_connections
from tflaunch.agent.coordinator import Coordinator
from tflaunch.agent.entrusted import MEMORY_LIMIT, Entrusted
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.net.peers import Door, Handshake, PeerError, SealedStream
from tflaunch.lifecycle.states import State, state_data, state_from
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol import dialling, wire
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.selector import Selector

SECRET = os.urandom(32)
TASKS = {TaskId("worker", 0): "a", TaskId("worker", 1): "b"}
PLACES = {"worker/0": ("a", "127.0.0.1", 2222), "worker/1": ("b", "127.0.0.1", 2223)}


@dataclass
class Agent:
    """The agent's end of a coordinator's connection."""

    stream: socket.socket | SealedStream
    decoder: wire.Decoder = field(default_factory=wire.Decoder)

    def say(self, type: str, **fields: Any) -> None:
        self.stream.send(wire.encode(type, **fields))

    def messages(self) -> list[wire.Message]:
        """What has come."""
        try:
            return self.decoder.feed(self.stream.recv(1 << 20))
        except BlockingIOError:
            return []

    def heard(self) -> list[str]:
        """The types of what has come."""
        return [message.type for message in self.messages()]


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
        plan: dict[str, Any] = {
            "members": {"a": ["127.0.0.1", 1, os.urandom(32).hex()], "b": ["127.0.0.1", port, SECRET.hex()]},
            "lease_s": 60.0,
            "started": time.time(),
            "state": state_data(State(TASKS)),
            "watchdog": Watchdog(PLACES, {}, {}, {}).data(),
        }
        self.agents: list[Agent] = []
        self.plan = plan
        self.coordinator = Coordinator(self.directory, plan)

    def replace(self, memory: bytes) -> None:
        """It has died, and another one goes on by what it has left."""
        for host in ("a", "b"):
            self.coordinator.hang_up(host)
        self.coordinator = Coordinator(self.directory, self.plan, memory)

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
    assert entrusted._memory == bench.coordinator._memory()
    assert entrusted._memory
    before = entrusted._memory
    entrusted.remember(b"x", len(before) + 1, True)  # what it follows never came
    entrusted.remember(b"x" * 100, MEMORY_LIMIT, True)
    assert entrusted._memory == before
    entrusted._door.listener.close()


class Marker:
    """What a pickle would run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def left(bench: Bench) -> dict[str, Any]:
    """What a coordinator leaves in the middle of a run."""
    other, own = bench.let_in(), bench.own_agent()
    for agent, host in ((own, "a"), (other, "b")):
        agent.say("hello", run="run-1", host=host, pid=1, directory="/")
    other.say("started", n=1, time=time.time(), task="worker/1", attempt=2, pid=4711)
    while not bench.coordinator._drive.state.attempts:
        bench.turn()
    return dict(json.loads(bench.coordinator._memory()))


def test_one_that_takes_over_has_all_of_it_from_json(bench: Bench) -> None:
    memory = left(bench)
    bench.replace(json.dumps(memory).encode())
    assert bench.coordinator._drive.state.attempts == {TaskId("worker", 1): 2}
    assert bench.coordinator._drive.links.after == {"a": 0, "b": 1}
    assert not bench.coordinator._unsaid


def test_one_that_takes_over_asks_no_name_service(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be away by then, and keep whoever asks for half a minute, while no lease is renewed."""
    memory = left(bench)

    def away(*_: object, **__: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(dialling.socket, "getaddrinfo", away)
    bench.replace(json.dumps(memory).encode())
    bench.let_in()


def test_a_name_is_looked_up_and_kept(bench: Bench) -> None:
    bench.plan["members"]["b"][0] = "localhost"
    bench.replace(b"")
    other, own = bench.let_in(), bench.own_agent()
    for agent, host in ((own, "a"), (other, "b")):
        agent.say("hello", run="run-1", host=host, pid=1, directory="/")
    kept: list[Any] = []
    while {"b"} not in kept:
        bench.turn()
        kept += [set(json.loads(each.body)["addresses"]) for each in own.messages() if each.type == "memory"]


def test_a_name_service_that_is_away_keeps_no_lease_from_the_other_hosts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, this = dialling.socket.getaddrinfo, os.getpid()

    def away(*asked: Any, **how: Any) -> Any:
        if os.getpid() != this:  # in a child process it may wait
            time.sleep(600)
        assert how.get("flags") == socket.AI_NUMERICHOST, "here it may not wait"
        return known(*asked, **how)

    monkeypatch.setattr(dialling.socket, "getaddrinfo", away)
    monkeypatch.setattr(peer_connections, "LOOKUP_S", 1.0)
    bench.plan["members"]["b"][0] = "away.example"
    bench.replace(b"")
    own = bench.own_agent()
    own.say("hello", run="run-1", host="a", pid=1, directory="/")
    heard: list[str] = []
    while not (why := bench.coordinator._drive.links.down["b"]):
        bench.turn()
        heard += own.heard()
    assert why == "no answer within 1 s"
    assert "renew" in heard


def test_its_agent_has_the_addresses_before_anything_happens(bench: Bench) -> None:
    bench.let_in()
    own = bench.own_agent()
    own.say("hello", run="run-1", host="a", pid=1, directory="/")
    kept: list[wire.Message] = []
    while not kept:
        bench.turn()
        kept = [message for message in own.messages() if message.type == "memory"]
    assert json.loads(kept[-1].body)["addresses"] == {"b": [2, ["127.0.0.1", bench.plan["members"]["b"][1]]]}


def test_the_memory_of_a_launcher_has_no_addresses(bench: Bench) -> None:
    memory = left(bench)
    del memory["addresses"]
    bench.replace(json.dumps(memory).encode())
    assert bench.coordinator._drive.links.after == {"a": 0, "b": 1}
    bench.let_in()


@pytest.mark.parametrize("what", ["a pickle", "cut", "of another run", "of another host", "deep", "nothing"])
def test_what_is_no_memory_of_the_run_is_told_and_never_run(bench: Bench, tmp_path: Path, what: str) -> None:
    memory = left(bench)
    whole = json.dumps(memory).encode()
    bench.replace(
        {
            "a pickle": pickle.dumps(Marker(tmp_path / "it ran")),
            "cut": whole[:-1],
            "of another run": json.dumps({**memory, "run": "run-2"}).encode(),
            "of another host": whole.replace(b'"b"', b'"c"'),
            "deep": b"[" * 100_000,
            "nothing": b"\0",
        }[what]
    )
    assert not (tmp_path / "it ran").exists()
    drive = bench.coordinator._drive
    assert drive.links.after == {"a": 0, "b": 0}, "every host is asked for all that happened"
    assert drive.state == state_from(bench.plan["state"])
    own = bench.own_agent()
    own.say("hello", run="run-1", host="a", pid=1, directory="/")
    said: list[wire.Message] = []
    while not said:
        bench.turn()
        said = [message for message in own.messages() if message.type == "said"]
    assert "cannot use its memory" in said[0]["text"]
    assert "asks all hosts again" in said[0]["text"]


# ---- hosts that have been broken into


def lost(bench: Bench, host: str) -> str:
    """Why that host is lost, once it is."""
    while host not in bench.coordinator._drive.state.lost:
        bench.turn()
    return bench.coordinator._drive.state.lost[host]


def greeted(bench: Bench) -> Agent:
    """The other host's agent, attached."""
    other = bench.let_in()
    other.say("hello", run="run-1", host="b", pid=1, directory="/")
    while "watch" not in other.heard():
        bench.turn()
    return other


def test_a_host_speaks_of_its_own_tasks_only(bench: Bench) -> None:
    other = greeted(bench)
    forged = {"code": 42, "signal": None, "signal_name": "", "seconds": 1.0, "stopped": False}
    other.say("exit", n=1, time=time.time(), task="worker/0", attempt=0, **forged)
    assert "is about worker/0, which is not on that host" in lost(bench, "b")
    assert not bench.coordinator._drive.state.exits


def test_a_host_that_says_hello_again_and_again_is_lost(bench: Bench) -> None:
    """Each would be answered, and the answers kept for who never reads them."""
    other = greeted(bench)
    other.say("hello", run="run-1", host="b", pid=1, directory="/")
    assert "it says hello once more" in lost(bench, "b")


def test_a_host_that_does_not_read_is_let_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connections, "UNREAD_BYTES", 100_000)
    greeted(bench)
    own = bench.own_agent()
    own.say("hello", run="run-1", host="a", pid=1, directory="/")
    peer = bench.coordinator._peers.by_host["b"]
    while bench.coordinator._peers.by_host.get("b") is peer:
        assert len(peer.out) + len(peer.held) < 10_000_000
        bench.coordinator.send("b", "stop", tasks=["worker/1"] * 10_000, grace_s=1.0)
        bench.turn()
        own.messages()
    assert bench.coordinator._drive.links.down["b"] == "its agent does not read its orders"


def test_attempts_that_a_host_makes_up_cost_nothing(bench: Bench) -> None:
    other = greeted(bench)
    other.say("started", n=1, time=time.time(), task="worker/1", attempt=999_999, pid=1)
    while not bench.coordinator._drive.state.attempts:
        bench.turn()
    assert len(bench.coordinator._memory()) < 2000


def test_the_secret_of_one_host_opens_no_other(bench: Bench) -> None:
    """Who breaks into `a` has its secret; the door of `b` is another one's."""
    thief = socket.create_connection(bench.door.listener.getsockname())
    secret = bytes.fromhex(bench.plan["members"]["a"][2])
    handshake = Handshake(thief, secret, answers=False)
    with selectors.DefaultSelector() as selector:
        selector.register(bench.door.listener, selectors.EVENT_READ)
        accepted = None
        while accepted is None:
            if selector.select(0.01):
                accepted = bench.door.listener.accept()[0]
                assert bench.door.welcome(accepted)
    with thief, pytest.raises(PeerError, match="does not know the secret"):
        while True:
            handshake.step()
            with contextlib.suppress(BlockingIOError):
                bench.door.proved(accepted)
    bench.let_in()  # while who decides has that of each


def test_while_its_own_agent_hangs_it_renews_no_lease_and_goes_on_once_that_is_back(bench: Bench) -> None:
    other, own = bench.let_in(), bench.own_agent()
    for agent, host in ((other, "b"), (own, "a")):
        agent.say("hello", run="run-1", host=host, pid=1, directory="/")
        heard: list[str] = []
        while "watch" not in heard:
            bench.turn()
            heard += agent.heard()
    bench.coordinator._own_heard -= 60.0
    for _ in range(5):  # what is on its way comes through
        bench.turn()
        other.heard()
    for _ in range(20):
        bench.coordinator._renew_at = 0.0
        bench.turn()
        assert "renew" not in other.heard()
    own.say("beat")
    heard = []
    while "renew" not in heard:
        bench.turn()
        heard += other.heard()


def test_once_its_own_agent_is_lost_orders_wait_for_its_memory_no_more(bench: Bench) -> None:
    other = bench.let_in()
    other.say("hello", run="run-1", host="b", pid=1, directory="/")
    bench.coordinator._drive.dead("a", "it hangs", time.monotonic())
    heard: list[str] = []
    while "end" not in heard:
        bench.turn()
        heard += other.heard()
