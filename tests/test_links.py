"""Links that do not come up, and the door of a detached run."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.launcher import until
from tflaunch.agent.entrusted import Entrusted
from tflaunch.agent.files import journal
from tflaunch.agent.files.rundir import RunDirectory
from tflaunch.agent.net import peers
from tflaunch.lifecycle import links
from tflaunch.lifecycle.links import Links
from tflaunch.protocol import wire
from tflaunch.protocol.selector import Selector


class Transport:
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def dial(self, host: str) -> None:  # noqa: ARG002 - there is only one
        self.did.append("dial")

    def hang_up(self, host: str) -> None:  # noqa: ARG002
        self.did.append("hang up")

    def watch(self, host: str, after: int) -> None:  # noqa: ARG002
        self.did.append(f"watch {after}")

    def unreachable(self, host: str, reason: str) -> None:  # noqa: ARG002
        self.did.append(reason)

    def back(self, host: str, away_s: float) -> None:  # noqa: ARG002
        self.did.append("back")


def test_a_dial_that_is_never_answered_is_made_anew() -> None:
    transport = Transport()
    link = Links(["gpu01"], transport, 0.0)
    link.ended("gpu01", "cut", 0.0)
    for second in range(int(links.ANSWER_S) + 1):
        link.tick(1.0 + second)
    assert transport.did == ["cut", "dial"]
    link.tick(1.1 + links.ANSWER_S)
    assert transport.did[2:] == ["hang up"]
    link.tick(2.0 + links.ANSWER_S)
    assert transport.did[3:] == ["dial"]
    link.attached("gpu01", 3.0 + links.ANSWER_S)
    assert transport.did[4:] == ["watch 0", "back"]


def test_a_connection_that_ended_while_nobody_was_awake_is_lost_since_just_now() -> None:
    transport = Transport()
    each = Links(["a"], transport, 0.0)
    for second in range(5):
        each.heard("a", float(second))
        each.tick(float(second))
    each.ended("a", "its server had enough of it", 3604.0)
    each.tick(3604.0)
    assert each.away_s("a", 3604.0) < 1.0
    each.tick(3606.0)
    assert transport.did[-1] == "dial", "and it is dialled again"
    assert 2.0 <= each.away_s("a", 3606.0) < 3.0


def test_what_was_taken_is_known_also_of_hosts_that_are_done() -> None:
    link = Links(["gpu01", "gpu02"], Transport(), 0.0)
    assert link.takes("gpu01", 1)
    assert link.takes("gpu02", 1)
    assert link.takes("gpu02", 2)
    link.forget("gpu02")
    other = Links(["gpu01", "gpu02"], Transport(), 0.0)
    other.resume(link.after)
    assert other.after == {"gpu01": 1, "gpu02": 2}
    assert not other.takes("gpu02", 2)


def test_connections_that_say_nothing_do_not_keep_an_agent_out(tmp_path: Path) -> None:
    secret = os.urandom(32)
    selector = Selector()
    came: list[Any] = []
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        directory = RunDirectory(str(tmp_path), "run-1", "gpu01")
        message = wire.Message("entrust", {"secret": secret.hex(), "address": "127.0.0.1"})
        entrusted = Entrusted(directory, selector, message, port, came.append)
        mute = []
        for _ in range(2 * peers.WAITING_LIMIT):
            mute.append(socket.create_connection(("127.0.0.1", port), timeout=5.0))
            for key, _ in selector.select(1.0):
                key.data()
        ours = socket.create_connection(("127.0.0.1", port), timeout=5.0)
        handshake = peers.Handshake(ours, secret, answers=False)
        found = None

        def proved() -> bool:
            nonlocal found
            for key, _ in selector.select(0.01):
                key.data()
            found = found or handshake.step()
            return bool(came and found)

        until(proved, "the agent to be let in")
        entrusted.tick(0.0)
        assert (
            len(selector.get_map()) <= 1 + peers.WAITING_LIMIT
        )  # the listener, and those that may still speak
        for each in mute:
            each.close()
        ours.close()
        came[0].close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()


@pytest.mark.parametrize("last_plan", [False, True])
def test_the_journal_of_a_run_that_was_planned_anew(tmp_path: Path, last_plan: bool) -> None:
    directory = RunDirectory(str(tmp_path), "run-1", "gpu01")
    directory.create()
    for types in (("started", "swept"), ("started",)):
        agent = journal.Journal(directory)
        for type in types:
            agent.add(type)
    read = journal.read(directory, last_plan)
    assert read.has("swept") is not last_plan
    assert [event["n"] for event in read.events] == ([1] if last_plan else [1, 2, 3])
