"""Ports that the agent holds for its tasks."""

from __future__ import annotations

import errno
import os
import pwd
import socket
from pathlib import Path

from tests.support.agent_over_pipes import (
    IS_ROOT,
    Host,
    bind,
    shell,
    swept,
)
from tflaunch.agent.net.ports import HeldPorts


def test_a_held_port_is_only_for_who_joins_it(host: Host) -> None:
    channel = host.start()
    ports = channel.ask("probe", lease=False, ports=None, count=3, answer="facts")["ports"]
    assert len(set(ports)) == 3
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for port in ports:
        assert not first <= port <= last
        for family in (socket.AF_INET, socket.AF_INET6):
            assert bind(port, family=family) == errno.EADDRINUSE
            assert bind(port, socket.SO_REUSEADDR, family=family) == errno.EADDRINUSE
            assert bind(port, socket.SO_REUSEPORT, family=family) == 0
        with socket.socket() as dial:
            assert dial.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    if IS_ROOT:
        nobody = pwd.getpwnam("nobody").pw_uid
        assert bind(ports[0], socket.SO_REUSEPORT, uid=nobody) == errno.EADDRINUSE
    kept = ports[1]
    channel.ask(
        "stage",
        tasks=[shell("sleep 600")],
        code=None,
        ports=[kept],
        gpus=[],
        door=False,
        attempt=0,
        answer="staged",
    )
    assert [bind(port) for port in ports] == [0, errno.EADDRINUSE, 0]
    swept(channel)
    assert channel.next() is None
    assert bind(kept) == 0


def test_two_agents_in_one_range_share_no_port(host: Host) -> None:
    free = 21300
    channels = [host.open("start", host=name) for name in ("h1", "h2", "h3")]
    taken: list[int] = []
    for channel in channels:
        host.watch(channel.wait("hello")["pid"])
        channel.send("probe", lease=False, ports=[free, free + 9], count=4)
    counts = []
    for channel in channels:
        ports = channel.wait("facts")["ports"]
        counts.append(len(ports))
        taken += ports
    assert len(set(taken)) == len(taken), "a port is held twice"
    assert set(taken) <= set(range(free, free + 10))
    assert sum(counts) <= 10
    assert all(counts)


def test_a_port_that_anyone_listens_on_is_not_taken(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        channel = host.start()
        found = channel.ask("probe", lease=False, ports=[port, port], count=1, answer="facts")
        assert found["ports"] == []
        assert found["ports_taken"][0].startswith(f"{port}: pid {os.getpid()} (")


def test_who_has_the_ports_of_another_run_is_told(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    first, second = host.start(run="first-aaaaaa"), host.start(run="second-bbbbbb")
    assert first.ask("probe", lease=False, ports=[free, free], count=1, answer="facts")["ports"] == [free]
    found = second.ask("probe", lease=False, ports=[free, free], count=1, answer="facts")
    assert found["ports"] == []
    assert "run first-aaaaaa" in found["ports_taken"]
    assert "run second-bbbbbb" not in found["ports_taken"]


def test_a_port_that_is_shared_can_be_had_by_who_says_so_and_by_nobody_else() -> None:
    held = HeldPorts()
    [port] = held.hold(1, None, os.getpid())
    try:
        assert bind(port, socket.SO_REUSEADDR) == errno.EADDRINUSE
        held.share(port)
        for family in (socket.AF_INET, socket.AF_INET6):
            assert bind(port, family=family) == errno.EADDRINUSE
            assert bind(port, socket.SO_REUSEADDR, family=family) == 0
        assert bind(port, socket.SO_REUSEPORT) == 0  # JAX, and TensorFlow
        with socket.socket() as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("", port))
            store.listen()
            assert bind(port, socket.SO_REUSEADDR) == errno.EADDRINUSE  # from now on it has it alone
            with socket.create_connection(("127.0.0.1", port)) as caller:
                accepted, _ = store.accept()
                with accepted:
                    caller.sendall(b"!")
                    assert accepted.recv(1) == b"!"
        held.share(port + 1)  # not held: nothing
        assert held.held == [port]
    finally:
        held.keep([])
