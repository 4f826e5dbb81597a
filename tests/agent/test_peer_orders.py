"""What a coordinator on another host, which an intruder may control, can have an agent do, and what it hears."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.agent_over_pipes import Host, shell
from tests.support.patience import until
from tflaunch.agent.net import peers
from tflaunch.protocol import wire


class Peer:
    """The coordinator's end of its connection to an agent."""

    def __init__(self, port: int, secret: bytes) -> None:
        handshake = peers.Handshake(
            socket.create_connection(("127.0.0.1", port), timeout=5.0), secret, answers=False
        )
        found: list[peers.SealedStream] = []

        def proved() -> bool:
            stream = handshake.step()
            found.extend([stream] if stream else [])
            return bool(found)

        until(proved, "the agent to let it in")
        self.stream = found[0]
        self.stream.setblocking(False)
        self._decoder = wire.Decoder()
        self.close = self.stream.close
        self._said: list[wire.Message] = []

    def send(self, type: str, **fields: Any) -> None:
        self.stream.send(wire.encode(type, **fields))

    def answer(self, type: str) -> wire.Message | None:
        """The next message of that type; None: it was hung up on."""
        ended = False

        def came() -> bool:
            nonlocal ended
            try:
                data = self.stream.recv(1 << 16)
            except BlockingIOError:
                data = b" "
            except OSError:
                data = b""
            ended = not data
            self._said += self._decoder.feed(data) if data.strip() else []
            return ended or any(each.type == type for each in self._said)

        until(came, f"an answer {type}")
        found = next((each for each in self._said if each.type == type), None)
        self._said = []
        return found


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A server that is no part of the run."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        yield server


def entrusted(host: Host, *tasks: dict[str, Any]) -> tuple[int, bytes]:
    """A run of these tasks on that host; the port of its agent's door, and the agent's secret."""
    channel, secret = host.start(), os.urandom(32)
    channel.send("probe", lease=False, ports=None, count=2)
    port = channel.wait("facts")["ports"][0]
    channel.ask(
        "stage", tasks=list(tasks), code=None, ports=[port], gpus=[], door=True, attempt=0, answer="staged"
    )
    door = channel.ask("entrust", secret=secret.hex(), address="127.0.0.1", answer="entrusted")["port"]
    channel.send("watch", after=0, logs=None, client="test")
    channel.send("release")
    channel.gather("started", len(tasks))
    return door, secret


def test_it_can_have_ports_of_the_cluster_dialled_and_no_others(host: Host, stranger: socket.socket) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        config = json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}"]}})
        door, secret = entrusted(host, shell("sleep 600", env={"TF_CONFIG": config}))
        other = stranger.getsockname()[1]

        def dials(*targets: list[Any]) -> wire.Message | None:
            with contextlib.closing(Peer(door, secret)) as peer:
                peer.send("dial", key="", targets=list(targets), patience_s=1.0, load=True)
                return peer.answer("dialled")

        said = dials(["127.0.0.1", port, "h1"])
        assert said is not None
        assert len(said["results"]) == 1
        own = ["127.0.0.1", port, "h1"]
        for targets in ([["127.0.0.1", other, "h1"]], [own, ["localhost", other, "x"]], [own, own]):
            assert dials(*targets) is None
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_it_hears_of_a_log_no_more_than_signs_of_trouble(host: Host) -> None:
    waits = "CreateSession still waiting for response from worker: /job:ps/replica:0/task:0"
    door, secret = entrusted(
        host,
        shell("echo 'step 1, loss: 0.25, password hunter2'; exec sleep 600"),
        shell(f"echo '{waits}'; exec sleep 600", id="worker/1"),
    )
    said: dict[str, Any] = {}
    with contextlib.closing(Peer(door, secret)) as peer:

        def seen() -> bool:
            peer.send("look")
            message = peer.answer("looked")
            assert message is not None
            said.update(message["tasks"])
            return "loss" in said["worker/0"]["signs"] and bool(said["worker/1"]["says"])

        until(seen, "both lines to be read")
    assert "hunter2" not in json.dumps(said)
    assert said["worker/1"]["says"] == waits
