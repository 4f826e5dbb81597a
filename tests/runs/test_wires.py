"""Wires against real sshds: what goes through them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S, until
from tests.support.sshd import public
from tests.support.wires import LOCAL, MIB, Client, Line, everything, read
from tflaunch.protocol.errors import WireClosed
from tflaunch.protocol.wire import encode
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.session import Ended

KINDS = ["ssh", "openssh", "local"]
REMOTE = ["ssh", "openssh"]


@pytest.mark.parametrize("kind", REMOTE)
def test_a_wire_is_a_plain_duplex_stream(client: Client, kind: str) -> None:
    wire = client.open(client.host(kind), "cat", b"first ")
    wire.send(b"second")
    assert read(wire, 12) == b"first second"


@pytest.mark.parametrize("kind", KINDS)
def test_a_mebibyte_of_every_byte_comes_back_unchanged(client: Client, kind: str) -> None:
    host = client.host(kind)
    data = bytes(range(256)) * (MIB // 256)
    wire = client.open(host, "cat", data[:100_000])
    sender = threading.Thread(target=wire.send, args=(data[100_000:],))
    sender.start()
    back = read(wire, MIB)
    sender.join()
    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_command_is_told_in_its_own_words(client: Client, kind: str) -> None:
    host = client.host(kind)
    wire = client.open(host, "echo out; echo 'no python3 here' >&2; exit 127")
    assert everything(wire) == b"out\n"
    assert wire.last_words() == "exit status 127; it said: no python3 here"
    with pytest.raises(WireClosed, match="exit status 127; it said: no python3 here"):
        for _ in range(100):  # a local socket takes what nobody will read until the reader is seen to be gone
            wire.send(b"x" * MIB)


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_never_reads_its_first_bytes_can_still_say_why(client: Client, kind: str) -> None:
    host = client.host(kind)
    wire = client.open(host, "exec no-such-python", b"x" * 8 * MIB)
    assert everything(wire) == b""
    assert re.match(r"exit status 127; it said: .*no-such-python.*not found", wire.last_words())


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_a_signal_ends_says_so(client: Client, kind: str) -> None:
    host = client.host(kind)
    wire = client.open(host, "kill -9 $$")
    assert everything(wire) == b""
    assert "signal" in wire.last_words()


@pytest.mark.parametrize("kind", KINDS)
def test_close_wakes_a_blocked_recv_and_may_be_repeated(client: Client, kind: str) -> None:
    host = client.host(kind)
    wire = client.open(host, "echo ready; exec cat")
    assert read(wire, 6) == b"ready\n"
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(wire.recv(1)))
    reader.start()
    wire.close()
    wire.close()
    reader.join(PATIENCE_S)
    assert got == [b""]
    assert wire.recv(1) == b""
    with pytest.raises(WireClosed):
        wire.send(b"x")


@pytest.mark.parametrize("kind", REMOTE)
def test_close_wakes_a_blocked_send(client: Client, kind: str) -> None:
    wire = client.open(client.host(kind), "echo ready; exec sleep 1000")
    assert read(wire, 6) == b"ready\n"
    failed = threading.Event()

    def flood() -> None:
        with contextlib.suppress(WireClosed):
            while True:
                wire.send(b"x" * MIB)
        failed.set()

    sender = threading.Thread(target=flood)
    sender.start()
    wire.close()
    sender.join(PATIENCE_S)
    assert failed.is_set()


@pytest.mark.parametrize("kind", REMOTE)
def test_a_noisy_login_shell_comes_first(client: Client, kind: str) -> None:
    host = client.host(kind, bashrc="echo 'Welcome!'; echo 'and to stderr' >&2")
    if not os.environ.get("SHELL", "/bin/bash").endswith("bash"):
        pytest.skip("only bash reads a .bashrc here")
    wire = client.open(host, "echo agent")
    assert everything(wire) == b"Welcome!\nagent\n"
    assert "and to stderr" in wire.last_words()


@pytest.mark.parametrize("kind", REMOTE)
def test_a_flood_of_stderr_does_not_stop_stdout(client: Client, kind: str) -> None:
    noise = "i=0; while [ $i -lt 800 ]; do head -c 8192 /dev/zero >&2; echo line; i=$((i+1)); done"
    wire = client.open(client.host(kind), noise)
    assert everything(wire) == b"line\n" * 800


def test_keys_are_exchanged_anew_in_a_flood(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramiko.packet.Packetizer.REKEY_BYTES", MIB)  # and sshd does it by itself, too
    sshd = client.network.add(options=["LogLevel DEBUG", f"RekeyLimit {3 * MIB}"])
    wire = client.open(sshd.host(), f"head -c {32 * MIB} /dev/zero; cat")
    assert read(wire, 32 * MIB) == bytes(32 * MIB)
    data = os.urandom(8 * MIB)
    sender = threading.Thread(target=wire.send, args=(data,))
    sender.start()
    assert read(wire, len(data)) == data
    sender.join()
    assert sshd.log().count("SSH2_MSG_NEWKEYS received") > 5


def test_what_would_have_to_wait_is_not_sent(client: Client) -> None:
    for kind in KINDS:
        wire = client.open(client.host(kind), "echo ready; exec sleep 1000")
        assert read(wire, 6) == b"ready\n"
        assert wire.send_now(b"x")
        assert not wire.send_now(b"x" * 8 * MIB)
        # Nobody reads it, and this never waits.
        assert any(not wire.send_now(b"x" * 8192) for _ in range(2048))
        wire.close()
        with contextlib.suppress(WireClosed):
            assert not wire.send_now(b"x")


@pytest.mark.parametrize("kind", REMOTE)
def test_what_came_before_anybody_listened_is_not_lost(client: Client, kind: str) -> None:
    host = client.host(kind)
    for command, expected in (("echo hello", b"hello\n"), ("exit 3", b"")):
        wire = client.connector([host]).open(host, command)
        until(lambda wire=wire: "exit status" in wire.last_words(), "the command has ended")
        line = Line(wire)
        assert everything(line) == expected
        line.close()


@pytest.mark.parametrize("kind", REMOTE)
def test_a_connection_is_let_go_of_when_its_agent_has_ended(client: Client, kind: str) -> None:
    host = client.host(kind)
    [sshd] = client.network.sshds
    sessions = Sessions(client.connector([host]), lambda *_: None)
    sessions.connect([host], "visit", "", lambda _: encode("bye"))
    while not isinstance(item := sessions.next(time.monotonic() + 60), Ended):
        assert item is not None
    until(lambda: not sshd.sessions(), "the connection is closed, too")  # before the host is dialled again
    sessions.close()


@pytest.mark.parametrize("kind", REMOTE)
def test_a_lost_connection_ends_the_stream(client: Client, kind: str) -> None:
    host = client.host(kind)
    [sshd] = client.network.sshds
    wire = client.open(host, "echo ready; exec cat")
    assert read(wire, 6) == b"ready\n"
    sshd.kill_sessions()
    assert wire.recv(1) == b""
    assert "the connection broke" in wire.last_words()
    with pytest.raises(WireClosed, match="the connection broke"):
        wire.send(b"x")


@pytest.mark.parametrize("kind", REMOTE)
def test_many_threads_open_at_once(client: Client, kind: str) -> None:
    hosts = [client.host(kind) for _ in range(4)]
    sshds = client.network.sshds
    connector = client.connector(hosts)
    with ThreadPoolExecutor(16) as pool:
        wires = list(pool.map(lambda n: Line(connector.open(hosts[n % 4], "cat", b"%d" % n)), range(32)))
    try:
        for n, wire in enumerate(wires):
            assert read(wire, len(str(n))) == b"%d" % n
    finally:
        for wire in wires:
            wire.close()
    for sshd, host in zip(sshds, hosts, strict=True):
        blob = base64.b64decode(public(sshd.host_key).split()[1])
        digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
        assert connector.host_key(host) == f"SHA256:{digest}"
        assert connector.dial_address(host) == sshd.address


def test_local_needs_no_ssh_and_has_no_address(client: Client) -> None:
    client.network.prepend("Match nonsense")  # not even read
    connector = client.connector([LOCAL])
    wire = Line(connector.open(LOCAL, "ps -o sid= -p $$; echo $$; pwd"))
    session, pid, home = everything(wire).split()
    wire.close()
    assert session == pid
    assert Path(home.decode()) == Path.home()
    assert connector.dial_address(LOCAL) == ""
    assert connector.host_key(LOCAL) == ""
