"""What is done for each connection, which a launch of a thousand hosts pays a thousand times."""

from __future__ import annotations

import queue
import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import fabric
import pytest

from tests.support.patience import until
from tflaunch.sessions.socket_tools import has_room
from tflaunch.ssh import resolver
from tflaunch.ssh.connection import HostConnection


def test_a_connection_is_made_without_a_look_through_all_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def counted(*of: object) -> list[str]:
        looks.extend(of)
        return dir(*of)

    monkeypatch.setattr("invoke.config.dir", counted, raising=False)
    target = cast("Any", SimpleNamespace(hostname="gpu01.lab", user="alice", port=2222))
    fabric.Connection("gpu01.lab", user="alice")
    assert looks, "invoke looks elsewhere now: this test sees nothing"
    looks.clear()
    connection = HostConnection(cast("Any", None), target, cast("Any", None))
    assert (connection.host, connection.user, connection.port) == ("gpu01.lab", "alice", 2222)
    assert looks == []


def test_what_a_socket_has_room_for_is_sent_without_a_thread_that_waits() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        largest = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
        assert has_room(ours, 10) and has_room(ours, largest)
        assert not has_room(ours, largest + 1)
        assert ours.send(bytes(largest)) == largest
        assert not has_room(ours, largest)
        theirs.recv(largest, socket.MSG_WAITALL)
        until(lambda: has_room(ours, largest), "the room")


def _ask(resolvers: resolver._Resolvers, name: str) -> Any:
    answers: resolver._Answers = queue.SimpleQueue()
    resolvers.ask((name, 22), answers)
    return answers.get(timeout=60)


def test_one_thread_resolves_one_name_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    by: list[int] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *query: [by.append(threading.get_ident()), query])
    resolvers = resolver._Resolvers()
    for number in range(20):
        assert _ask(resolvers, f"gpu{number}")[1] == (f"gpu{number}", 22)
        until(lambda: resolvers._free == 1, "the thread to wait")
    assert len(by) == 20 and len(set(by)) == 1


def test_a_resolver_that_hangs_keeps_no_other_name_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def getaddrinfo(name: str, _: int) -> list[Any]:
        if name == "slow":
            answer.wait()
        if name == "unknown":
            raise socket.gaierror(-2, "no such name")
        return [name]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    resolvers = resolver._Resolvers()
    slow: resolver._Answers = queue.SimpleQueue()
    for _ in range(3):
        resolvers.ask(("slow", 22), slow)
    assert [_ask(resolvers, name) for name in ("a", "b")] == [["a"], ["b"]]
    assert isinstance(_ask(resolvers, "unknown"), socket.gaierror)
    assert slow.empty()
    answer.set()
    assert [slow.get(timeout=60) for _ in range(3)] == [["slow"]] * 3


def test_threads_that_resolve_end_when_idle_and_miss_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver._Resolvers, "IDLE_S", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, _: [name])
    resolvers = resolver._Resolvers()
    for number in range(500):
        assert _ask(resolvers, str(number)) == [str(number)]
    until(lambda: not any(each.name == "resolve" for each in threading.enumerate()), "the threads to end")
