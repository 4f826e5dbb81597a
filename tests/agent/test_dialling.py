"""The dial check on the hosts' side: real sockets on real ports, and the agent as it is shipped."""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib.abc
import json
import os
import select
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import Host, descriptors, shell, task
from tests.support.dialling import KEY, Loop
from tests.support.patience import until
from tflaunch.agent.host import processes
from tflaunch.agent.net import ports
from tflaunch.agent.net.dial_answering import Answering
from tflaunch.agent.net.name_lookup import NameLookup
from tflaunch.protocol.dialling import (
    ANSWER_SHARE,
    FAILED,
    HELLO,
    HELLO_LOAD,
    LOAD_BYTES,
    NARROW,
    NO_NAME,
    REFUSED,
    SILENT,
    STRANGER,
    Dialling,
    proof,
)
from tflaunch.protocol.selector import Selector


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    assert not made.selector.get_map(), "something is still registered"
    made.selector.close()


@pytest.fixture
def held() -> Iterator[list[int]]:
    """Three held ports."""
    holder = ports.HeldPorts()
    yield holder.hold(3, None, os.getpid())
    holder.keep([])


@pytest.fixture
def answering(loop: Loop, held: list[int]) -> Iterator[Answering]:
    """The agent of gpu01, on the held ports."""
    made = Answering(loop.selector, KEY, "gpu01")
    made.listen(held)
    yield made
    made.close()


def refused(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) != 0


def test_the_right_agent_answers_on_every_port(loop: Loop, answering: Answering, held: list[int]) -> None:
    targets = [(address, port, "gpu01") for port in held for address in ("127.0.0.1", "::1")]
    results = loop.dial(*targets).results
    assert len(results) == 6
    assert all(isinstance(each, float) and each > 0 for each in results), results
    loaded = loop.dial(*targets, load=True)
    assert all(isinstance(each, float) and each > 0 for each in loaded.results), loaded.results
    assert all(way is not None and 0 < way[0] < 1000 for way in loaded.ways), loaded.ways


@pytest.mark.parametrize(
    ("hangs_up", "result"), [(False, [NARROW, ""]), (True, [FAILED, "it hangs up in the middle"])]
)
def test_a_load_that_does_not_arrive_is_told_from_no_answer(
    loop: Loop, hangs_up: bool, result: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        port = server.getsockname()[1]

        def accept() -> None:
            caller = stack.enter_context(server.accept()[0])
            loop.selector.register(caller, selectors.EVENT_READ, lambda: answer(caller))

        def answer(caller: socket.socket) -> None:
            loop.selector.unregister(caller)
            hello = caller.recv(100)
            assert hello.startswith(HELLO_LOAD)
            caller.sendall(proof(KEY, hello[len(HELLO_LOAD) :], "gpu01", port) + b" gpu01\n" + b"." * 1000)
            if hangs_up:
                caller.shutdown(socket.SHUT_WR)

        loop.selector.register(server, selectors.EVENT_READ, accept)
        results = loop.dial(("127.0.0.1", port, "gpu01"), patience_s=0.4, load=True).results
        loop.selector.unregister(server)
    assert results == [result]


def test_only_the_calls_that_are_named_bring_a_load(loop: Loop) -> None:
    hellos: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        port = server.getsockname()[1]

        def accept() -> None:
            caller = stack.enter_context(server.accept()[0])
            caller.settimeout(60.0)
            hello = caller.recv(100)
            hellos.append(hello[: len(HELLO)])
            load = b"." * LOAD_BYTES if hello.startswith(HELLO_LOAD) else b""
            caller.sendall(proof(KEY, hello[len(HELLO) :], "gpu01", port) + b" gpu01\n" + load)

        loop.selector.register(server, selectors.EVENT_READ, accept)
        results = loop.dial(*[("127.0.0.1", port, "gpu01")] * 3, load=[1]).results
        loop.selector.unregister(server)
    assert all(isinstance(each, float) for each in results)
    assert sorted(hellos) == [HELLO, HELLO, HELLO_LOAD]


NARROW_WAY = f"""
ip link set lo up mtu 65536
nft 'add table ip t; add chain ip t out {{ type filter hook output priority 0; }}
     add rule ip t out tcp sport 20001 meta length > 1350 drop'
ip link set lo gso_max_segs 1
exec {sys.executable} -c "if True:
    from tests.support.dialling import KEY, Loop
    from tflaunch.agent.net.dial_answering import Answering
    from tflaunch.agent.net import ports

    loop, held = Loop(), ports.HeldPorts().hold(1, (20001, 20001), 1)
    answering = Answering(loop.selector, KEY, 'gpu01')
    answering.listen(held)
    print(loop.dial(*[('127.0.0.1', 20001, 'gpu01')] * 6, patience_s=2.0, load=True).results)"
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("nft"), reason="needs root, iproute2 and nftables")
def test_where_large_packets_are_lost_the_largest_that_arrives_is_found() -> None:
    script = ["unshare", "--net", "sh", "-e", "-c", NARROW_WAY]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    # Of a few; the others are told without a size.
    assert sorted(ast.literal_eval(done.stdout)) == [[NARROW, ""]] * 2 + [[NARROW, "1340"]] * 4


def test_a_load_is_pushed_where_no_agent_answers(loop: Loop) -> None:
    """As to TensorFlow in mid-run: one that reads nothing, one that speaks HTTP/2, one that hangs up."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        met: list[socket.socket] = []

        def accept(server: socket.socket, number: int) -> None:
            caller = stack.enter_context(server.accept()[0])
            met.append(caller)
            if number == 1:
                caller.sendall(b"\0\0\x12\4\0\0\0\0\0")
            elif number == 2:
                caller.close()

        for number, server in enumerate(servers):
            act = lambda server=server, number=number: accept(server, number)  # noqa: E731
            loop.selector.register(server, selectors.EVENT_READ, act)
        targets = [("127.0.0.1", server.getsockname()[1], "gpu01") for server in servers]
        results = loop.dial(*targets, key="", load=True).results
        for server in servers:
            loop.selector.unregister(server)
    assert len(met) == 3
    assert all(isinstance(each, float) for each in results), results


PUSHED_AWAY = f"""
ip link set lo up mtu 65536
nft 'add table ip t; add chain ip t out {{ type filter hook output priority 0; }}
     add rule ip t out tcp dport 20001 meta length > 1450 drop'
ip link set lo gso_max_segs 1
exec {sys.executable} -c "if True:
    import socket
    from tests.support.dialling import Loop
    with socket.create_server(('127.0.0.1', 20001)):
        print(Loop().dial(('127.0.0.1', 20001, 'gpu01'), key='', patience_s=2.0, load=True).results)"
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("nft"), reason="needs root, iproute2 and nftables")
def test_where_a_pushed_load_is_lost_the_largest_size_that_arrives_is_found() -> None:
    script = ["unshare", "--net", "sh", "-e", "-c", PUSHED_AWAY]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == [[NARROW, "1450"]]


def test_a_port_is_held_throughout_and_refuses_again_afterwards(loop: Loop, held: list[int]) -> None:
    def can_bind(port: int) -> bool:
        with socket.socket(socket.AF_INET6) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("::", port))
            except OSError:
                return False
            return True

    for _ in range(3):  # more than one check on the same ports
        assert all(map(refused, held))
        answering = Answering(loop.selector, KEY, "gpu01")
        answering.listen(held)
        assert not any(map(can_bind, held))
        assert isinstance(loop.dial(("127.0.0.1", held[0], "gpu01")).results[0], float)
        answering.close()
        assert all(map(refused, held))
        assert not any(map(can_bind, held))
    # As TensorFlow does: another socket joins the held port and is the only one that is called.
    with socket.socket(fileno=ports.bind(held[0], socket.SO_REUSEPORT).detach()) as server:
        server.listen()
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", held[0])):
                server.accept()[0].close()


def test_no_connection_waits_in_the_kernel_behind_a_check(
    loop: Loop, answering: Answering, held: list[int]
) -> None:
    loop.dial(*[("127.0.0.1", port, "gpu01") for port in held])
    answering.close()
    tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert not [line for line in tables.splitlines() if any(f":{port:04X} " in line for port in held)]


def test_a_caller_that_is_frozen_does_not_keep_the_port(loop: Loop) -> None:
    holder = ports.HeldPorts()
    [port] = holder.hold(1, None, os.getpid())
    answering = Answering(loop.selector, KEY, "gpu01")
    answering.listen([port])
    with socket.create_connection(("127.0.0.1", port)) as frozen:
        frozen.sendall(HELLO + bytes(16))
        until(lambda: loop.turn() or select.select([frozen], [], [], 0)[0], "the answer")
        answering.close()
        holder.keep([])
        other = ports.HeldPorts()
        until(lambda: other.hold(1, (port, port), 0), "the port to be free")
        other.keep([])


def test_one_key_of_the_wrong_check_is_a_stranger(loop: Loop, answering: Answering, held: list[int]) -> None:
    assert loop.dial(("127.0.0.1", held[0], "gpu01"), key="of another run").results == [[STRANGER, ""]]


def test_another_host_of_the_run_is_told_by_name(loop: Loop, answering: Answering, held: list[int]) -> None:
    results = loop.dial(("127.0.0.1", held[0], "gpu02")).results
    assert results == [[STRANGER, "it is gpu01 of this run"]]


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (b"", "it hangs up"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ""),
        (b"x" * 4096, ""),
        (b"\0\0\x12\4\0\0\0\0\0", "it accepts and says nothing"),  # HTTP/2, as TensorFlow begins
    ],
)
def test_a_stale_server_is_a_stranger(loop: Loop, words: bytes, detail: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        met: list[socket.socket] = []

        def accept() -> None:
            caller, _ = server.accept()
            caller.sendall(words)
            met.append(caller)
            if not detail.startswith("it accepts"):
                caller.shutdown(socket.SHUT_WR)

        loop.selector.register(server, selectors.EVENT_READ, accept)
        results = loop.dial(("127.0.0.1", server.getsockname()[1], "gpu01"), patience_s=0.4).results
        loop.selector.unregister(server)
        for each in met:
            each.close()
    assert results == [[STRANGER, detail]]


def test_hosts_that_answer_late_because_they_are_busy_are_waited_for(loop: Loop, held: list[int]) -> None:
    """The second answers later than the patience with one call, but soon after the first."""
    patience_s, late_s = 2.0 / ANSWER_SHARE, (1.2, 2.3)
    busy = [Selector(), Selector()]
    answering = [Answering(each, KEY, "gpu01") for each in busy]
    for each, port in zip(answering, held, strict=False):
        each.listen([port])
    targets = [["127.0.0.1", port, "gpu01"] for port in held[:2]]
    began = time.monotonic()
    dialling = Dialling(loop.selector, KEY, targets, patience_s, look_up=NameLookup)

    def done() -> bool:
        loop.turn()
        for selector, delay_s in zip(busy, late_s, strict=True):
            if time.monotonic() - began > delay_s:
                for key, _ in selector.select(0):
                    key.data()
        return dialling.step(time.monotonic())

    until(done, "the results")
    assert all(isinstance(result, float) for result in dialling.results)
    for each, selector in zip(answering, busy, strict=True):
        each.close()
        selector.close()


def test_what_is_refused_and_what_is_dropped(loop: Loop, held: list[int]) -> None:
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        # A full backlog: the kernel drops what comes then, as a firewall does.
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        until(lambda: refused_or_late(deaf.getsockname()[1]) == "late", "the backlog to be full")
        results = loop.dial(
            ("127.0.0.1", held[0], "gpu01"), ("127.0.0.1", deaf.getsockname()[1], "gpu01"), patience_s=2.0
        ).results
    assert results == [[REFUSED, ""], [SILENT, ""]]


def refused_or_late(port: int) -> str:
    with socket.socket() as caller:
        caller.settimeout(0.3)
        try:
            caller.connect(("127.0.0.1", port))
        except TimeoutError:
            return "late"
        except OSError:
            return "refused"
        return "connected"


def test_names_are_looked_up_by_a_child_that_ends(loop: Loop, answering: Answering, held: list[int]) -> None:
    others = children()
    dialling = loop.dial(
        ("localhost", held[0], "gpu01"), ("no-such-host.invalid", held[1], "gpu01"), ("localhost", 1, "gpu01")
    )
    good, nameless, closed = dialling.results
    assert isinstance(good, float)
    assert isinstance(nameless, list)
    assert nameless[0] == NO_NAME
    assert nameless[1]
    assert closed == [REFUSED, ""]
    assert set(dialling.addresses) == {"localhost"}
    assert set(dialling.addresses["localhost"]) <= {"127.0.0.1", "::1"}
    until(lambda: children() <= others, "the child to end")  # it has answered before


def children() -> set[int]:
    """Those of this process; some of them are of other tests."""
    processes.reap()
    return {each.pid for each in processes.descendants(os.getpid(), processes.every())}


def test_a_name_server_that_is_silent_holds_nothing_up(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a resolver does whose server never answers; it runs in the child.
    monkeypatch.setattr("tflaunch.agent.net.name_lookup.addresses_of", lambda *_: "a name")
    monkeypatch.setattr("tflaunch.agent.net.name_lookup._resolve", lambda *_: time.sleep(600))
    results = loop.dial(("node7.cluster", 2222, "node7"), patience_s=0.5).results
    assert results == [[NO_NAME, "no answer within 1.5 s"]]
    until(processes.reap, "the child to be killed")


def test_a_slow_name_and_one_that_fails_hold_up_no_other(
    loop: Loop, answering: Answering, held: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def resolve(name: str, *_: object) -> list[tuple[int, Any]]:  # in the child, the last of the names first
        if name == "odd.cluster":
            raise LookupError("no such codec")
        if name == "slow.cluster":
            until((tmp_path / "other").exists, "the other name")
        (tmp_path / "other").touch()
        return [(socket.AF_INET, ("127.0.0.1", 0))]

    monkeypatch.setattr("tflaunch.agent.net.name_lookup.addresses_of", resolve)
    targets = [
        (f"{name}.cluster", port, "gpu01") for name, port in zip(("quick", "slow", "odd"), held, strict=True)
    ]
    *good, odd = loop.dial(*targets, patience_s=10.0).results
    assert [type(each) for each in good] == [float, float]
    assert isinstance(odd, list)
    assert odd[0] == NO_NAME


def test_where_there_is_no_room_for_a_process_names_are_not_looked_up(
    loop: Loop, answering: Answering, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise OSError(errno.EAGAIN, "no room")

    before = len(descriptors(os.getpid()))
    monkeypatch.setattr(os, "fork", full)
    good, nameless = loop.dial(("127.0.0.1", held[0], "gpu01"), ("no.invalid", held[1], "gpu01")).results
    assert isinstance(good, float)
    assert nameless == [FAILED, "no room"]
    until(lambda: loop.turn() or len(descriptors(os.getpid())) <= before, "the pipe to be closed")


class Looked(importlib.abc.MetaPathFinder):
    """Every module that is looked for, because it is not loaded."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, *_: object) -> None:
        self.names.append(name)


def test_a_call_looks_for_no_module(
    loop: Loop, answering: Answering, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.dial(("127.0.0.1", held[0], "gpu01"))
    looked = Looked()
    monkeypatch.setattr(sys, "meta_path", [looked, *sys.meta_path])
    loop.dial(("127.0.0.1", held[0], "gpu01"))
    assert looked.names == []


PACKETS = f"""
ip link set lo up
exec {sys.executable} -c "if True:
    from tests.support.dialling import KEY, Loop
    from tflaunch.agent.net.dial_answering import Answering
    from tflaunch.agent.net import ports

    def sent():
        with open('/proc/net/snmp') as file:
            names, counts = (line.split() for line in file if line.startswith('Tcp:'))
        return int(counts[names.index('OutSegs')])

    loop, (port,) = Loop(), ports.HeldPorts().hold(1, None, 1)
    answering = Answering(loop.selector, KEY, 'gpu01')
    answering.listen([port])
    before = sent()
    for _ in range(20):
        loop.dial(('127.0.0.1', port, 'gpu01'))
    print(sent() - before)"
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_a_call_is_five_packets() -> None:
    script = ["unshare", "--net", "sh", "-e", "-c", PACKETS]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 100 <= int(done.stdout) < 140  # some acknowledge twice, where the machine takes its time


def test_many_targets_a_few_at_a_time(loop: Loop, answering: Answering, held: list[int]) -> None:
    targets = [("127.0.0.1", held[number % 3], "gpu01") for number in range(1000)]
    before = len(descriptors(os.getpid()))
    results = loop.dial(*targets).results
    assert sum(isinstance(each, float) for each in results) == 1000
    loop.turn()
    until(lambda: loop.turn() or len(descriptors(os.getpid())) <= before, "the connections to be closed")


def test_a_caller_that_does_not_speak_is_left_to_itself(
    loop: Loop, answering: Answering, held: list[int]
) -> None:
    with socket.create_connection(("127.0.0.1", held[0])) as slow:
        slow.sendall(HELLO[:5])
        assert isinstance(loop.dial(("127.0.0.1", held[0], "gpu01")).results[0], float)
        with socket.create_connection(("127.0.0.1", held[0])) as rude:
            rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
            rude.settimeout(0.01)

            def hung_up() -> bool:
                loop.turn()
                with contextlib.suppress(TimeoutError):
                    return rude.recv(100) == b""
                return False

            with contextlib.suppress(ConnectionResetError):
                until(hung_up, "the end of a caller that says something else")


# ---- as it is shipped


def stage(channel: Any, count: int, dial_key: str, *tasks: dict[str, Any]) -> list[int]:
    """Stage with `count` held ports; returns them."""
    facts = channel.ask("probe", lease=False, ports=None, count=count, answer="facts")
    channel.send(
        "stage",
        tasks=list(tasks),
        code=None,
        ports=facts["ports"],
        gpus=[],
        door=False,
        attempt=0,
        dial_key=dial_key,
    )
    channel.wait("staged")
    return list(facts["ports"])


def test_an_agent_answers_from_stage_to_release(any_host: Host) -> None:
    channel = any_host.start()
    [port] = stage(channel, 1, KEY, shell("sleep 600"))
    targets = [["127.0.0.1", port, "h1"], ["localhost", port, "h1"], ["127.0.0.1", 1, "h1"]]
    channel.send("dial", key=KEY, targets=targets, patience_s=20.0)
    said = channel.wait("dialled")
    literal, name, closed = said["results"]
    assert isinstance(literal, float)
    assert isinstance(name, float)
    assert closed == [REFUSED, ""]
    assert list(said["addresses"]) == ["localhost"]
    agent = json.loads((any_host.directory / "agent.json").read_text())
    assert "unicodedata" not in Path(f"/proc/{agent['pid']}/maps").read_text(), "what only other scripts need"
    assert refused_or_late(port) == "connected"
    channel.send("release")
    channel.wait("started")
    assert refused_or_late(port) == "refused"
    channel.ask("end", grace_s=0.0, answer="swept")


def test_without_a_key_nothing_listens(host: Host) -> None:
    channel = host.start()
    [port] = stage(channel, 1, "", shell("sleep 600"))
    assert refused_or_late(port) == "refused"
    channel.ask("end", grace_s=0.0, answer="swept")


def test_a_run_that_ends_during_the_check_listens_no_more(host: Host) -> None:
    channel = host.start()
    [port] = stage(channel, 1, KEY, task("sleep", "600"))
    channel.send("dial", key=KEY, targets=[["203.0.113.1", 9, "h2"]], patience_s=60.0)
    assert channel.ask("end", grace_s=0.0, answer="swept")["survivors"] == []
    assert refused_or_late(port) == "refused"
