"""What the kernel says of connections: real sockets of this process, through netlink and through /proc."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping

import pytest

from tests.support.patience import until
from tflaunch.agent.host.processes import Process, read
from tflaunch.agent.net import connections, socket_owners
from tflaunch.agent.net.connections import Connection, Sockets, SocketTable
from tflaunch.agent.net.socket_owners import SocketOwners
from tflaunch.agent.tasks.look import CALLS, FLOWS, FLOWS_IN_ALL, PEERS, PEERS_IN_ALL, _of_connections
from tflaunch.protocol.wire import ANSWER_LIMIT, encode

LOCAL = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def sockets(owners: Mapping[int, str]) -> Sockets:
    return SocketTable().of(owners)


def inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture(params=["netlink", "proc"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "proc":
        monkeypatch.setattr(connections, "SOCK_DIAG", 31)  # the kernel refuses such a socket
    return str(request.param)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_own_connections_and_all_ports(stack: contextlib.ExitStack, source: str, family: int) -> None:
    server = stack.enter_context(socket.create_server((LOCAL[family], 0), family=family))
    port = server.getsockname()[1]
    client = stack.enter_context(socket.create_connection((LOCAL[family], port)))
    other_end = stack.enter_context(server.accept()[0])
    seen = sockets({inode(client): "worker/0"})
    assert (inode(server), port) in seen.listening
    [mine] = seen.connections  # the other end is not the task's
    assert (mine.address, mine.port, mine.own_port) == (LOCAL[family], port, client.getsockname()[1])
    assert not mine.calling
    assert mine.counted == seen.counted == (source == "netlink")
    [other] = sockets({inode(other_end): "ps/0"}).connections
    assert (other.port, other.own_port) == (client.getsockname()[1], port)


def test_an_ipv4_peer_of_an_ipv6_socket_is_shown_as_one(stack: contextlib.ExitStack, source: str) -> None:
    assert source
    server = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
    client = stack.enter_context(socket.create_connection(("127.0.0.1", server.getsockname()[1])))
    other_end = stack.enter_context(server.accept()[0])
    [seen] = sockets({inode(other_end): "ps/0"}).connections
    assert (seen.address, seen.port) == ("127.0.0.1", client.getsockname()[1])


def test_whether_a_call_waits_for_its_answer(stack: contextlib.ExitStack) -> None:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = stack.enter_context(socket.create_connection(server.getsockname()))
    other_end = stack.enter_context(server.accept()[0])
    owners = {inode(client): "worker/0"}

    def ages() -> tuple[int, int]:
        [flow] = sockets(owners).connections
        _, segments, sent_ago_ms, got_ago_ms = flow.pace
        assert segments
        return sent_ago_ms, got_ago_ms

    client.sendall(b"first")
    other_end.sendall(other_end.recv(5))
    client.recv(5)
    until(lambda: ages()[1] > 20, "time passes")
    client.sendall(b"second")
    sent, got = ages()
    assert sent < got
    until(lambda: ages()[0] > 20, "time passes")
    other_end.sendall(b"answer")
    until(lambda: ages()[1] < ages()[0], "the answer has come")


def test_bytes_are_counted_on_both_sides(stack: contextlib.ExitStack) -> None:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = stack.enter_context(socket.create_connection(server.getsockname()))
    other_end = stack.enter_context(server.accept()[0])
    owners = {inode(client): "worker/0", inode(other_end): "ps/0"}

    def flow(one: socket.socket) -> Connection:
        return next(each for each in sockets(owners).connections if each.inode == inode(one))

    before = flow(client)
    client.sendall(b"x" * 70_000)
    received = b""
    while len(received) < 70_000:
        received += other_end.recv(70_000)
    until(lambda: flow(client).acked - before.acked == 70_000, "the kernel to count what was acknowledged")
    assert flow(other_end).received == 70_000
    assert flow(client).queued == 0
    seen = flow(client)
    assert 0 < seen.least_rtt_ms <= seen.rtt_ms + 0.01  # which is rounded
    # A peer that reads nothing: what does not fit into its window stays in the send queue.
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(b"x" * 65536)
    assert flow(client).queued > 0
    assert flow(client).retransmits == 0


def test_a_call_without_an_answer_repeats_itself(stack: contextlib.ExitStack) -> None:
    deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(4):  # then the kernel drops what comes, as a firewall does
        caller = stack.enter_context(socket.socket())
        caller.setblocking(False)
        caller.connect_ex(deaf.getsockname())

    def seen() -> Connection:
        [found] = sockets({inode(caller): "worker/0"}).connections
        return found

    assert seen().calling
    until(lambda: seen().retransmits >= 1, "the kernel to call again")


def test_who_asks_a_name_server_is_seen(stack: contextlib.ExitStack) -> None:
    asker = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    asker.connect(("127.0.0.1", 53))
    other = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    other.connect(("127.0.0.1", 54))
    [seen] = sockets({inode(asker): "worker/0", inode(other): "worker/0"}).connections
    assert (seen.address, seen.port, seen.calling, seen.counted) == ("127.0.0.1", 53, True, False)


@pytest.mark.parametrize("tasks", [1, 4, 16])
def test_what_is_shown_of_many_connections_fits_into_a_message(tasks: int) -> None:
    address = "fd00:1234:5678:9abc:def0:1234:5678:9abc"
    there, own = Sockets(True), []
    for number in range(8000):
        one = Connection(number, number % 5 == 0, 1024 + number, address, 60_000)
        one.port = 10_000 + number
        one.acked = one.received = 10**13
        one.queued, one.retransmits, one.rtt_ms = 10**7, number % 16, 12345.67
        one.sent_again = one.segments = one.sent_ago_ms = one.got_ago_ms = 2**32 - 1
        own.append(one)
    shown = {f"worker/{number}": _of_connections(own, 1, there, tasks) for number in range(tasks)}
    assert len(encode("looked", b"", tasks=shown)) < ANSWER_LIMIT * 0.6
    one_task = shown["worker/0"]
    assert len(one_task["connected"]) == min(PEERS, PEERS_IN_ALL // tasks)
    assert len(one_task["flows"]) == min(FLOWS, FLOWS_IN_ALL // tasks)
    assert len(one_task["calling"]) == CALLS
    assert {flow[6] for flow in one_task["flows"][:100]} == {15}, "those in trouble come first"


def test_descriptors_are_read_again_where_a_socket_or_a_process_is_new(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    own = read(os.getpid())
    assert own is not None
    asked: list[int] = []
    inodes_of = connections.inodes_of
    monkeypatch.setattr(socket_owners, "inodes_of", lambda pid: asked.append(pid) or inodes_of(pid))
    owners = SocketOwners()

    def find(*, whole: bool = False) -> int:
        before = len(asked)
        owners.find({"worker/0": [own]}, {inode(server), *new, 1}, whole)
        return len(asked) - before

    new: list[int] = []
    assert find() == 1
    assert owners.tasks[inode(server)] == "worker/0"
    assert find() == 0  # socket 1 is known to be another's
    new.append(inode(stack.enter_context(socket.socket())))
    assert find() == 1
    assert owners.tasks[new[0]] == "worker/0"
    assert find() == 0
    assert find(whole=True) == 1
    again = Process(own.pid, own.parent, own.state, own.start + 1, own.name)
    owners.find({"worker/0": [again]}, [], False)
    assert len(asked) == 4
