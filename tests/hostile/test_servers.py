"""Servers, and who stands between, that flood, drip, lie about sizes or never end: a sentence in time, and no more."""

from __future__ import annotations

import itertools
import re
import socket
import struct
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from paramiko import Channel, Message, Transport

from tests.support.evil import harmless
from tests.support.hostile_sshd import HostileSshd, Listener, Talker, WelcomingSshd
from tests.support.sshd import SshNetwork, make_key, public
from tests.support.wires import Client
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.transport import PACKET_BYTES

EVIL = "\x1b]0;pwned\x07\x1b[2J\u202eforged\r\n"
LONGEST = 2000  # characters of a sentence, with its advice
MOST_BYTES = 32 << 20
BANNER = b"SSH-2.0-OpenSSH_9.2\r\n"


def drip(caller: socket.socket) -> None:
    while True:
        caller.sendall(b"x")
        time.sleep(0.1)


def flood(caller: socket.socket) -> None:
    while True:
        caller.sendall(b"x" * 65536)


def endless_version(caller: socket.socket) -> None:
    caller.sendall(b"SSH-2.0-")
    flood(caller)


def strange_version(caller: socket.socket) -> None:
    caller.sendall(b"SSH-" + EVIL.encode().replace(b"\r\n", b"") * 1000 + b"-x\r\n")
    caller.recv(1)


def endless_packet(caller: socket.socket) -> None:
    caller.sendall(BANNER + struct.pack(">IBB", 0xFFFFFFF4, 4, 20))
    flood(caller)


def banners(transport: Transport) -> None:
    for _ in itertools.repeat(None):
        message = Message()
        message.add_byte(b"\x35")  # SSH_MSG_USERAUTH_BANNER
        message.add_string(EVIL * 50)
        message.add_string("")
        transport._send_message(message)  # type: ignore[attr-defined]


def questions(transport: Transport) -> None:
    """Unasked: to who offers a key, the same number means that the key would do."""
    for _ in itertools.repeat(None):
        message = Message()
        message.add_byte(b"\x3c")  # SSH_MSG_USERAUTH_INFO_REQUEST
        for text in (EVIL * 50, EVIL, ""):
            message.add_string(text)
        message.add_int(1)
        message.add_string("Password: " + EVIL)
        message.add_boolean(True)
        transport._send_message(message)  # type: ignore[attr-defined]


def never(_: Transport, channel: Channel) -> None:
    channel.recv(1)
    time.sleep(60)


TALKS = (drip, flood, endless_version, strange_version, endless_packet)
SERVERS: dict[str, Callable[[Path], Listener]] = {
    **{talk.__name__: lambda _, talk=talk: Talker(talk) for talk in TALKS},  # type: ignore[misc]
    "methods": lambda key: HostileSshd(key, methods=EVIL * 3000),
    "asks": lambda key: HostileSshd(key, methods="keyboard-interactive", banner=EVIL),
    "questions": lambda key: WelcomingSshd(key, never, before=questions),
    "banner": lambda key: HostileSshd(key, banner=EVIL * 1000),
    "banners": lambda key: WelcomingSshd(key, never, before=banners),
    "disconnect": lambda key: HostileSshd(key, disconnect=EVIL * 1000),
    "no channel": lambda key: WelcomingSshd(key, never, opens=1),
}


@pytest.fixture
def client(network: SshNetwork) -> Iterator[Client]:
    client = Client(network)
    yield client
    client.close()


@pytest.fixture
def reach(client: Client, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """The host behind a server, whose key is known."""
    key = make_key(tmp_path / "hostile")
    made: list[Listener] = []

    def at(make: Callable[[Path], Listener], connection: Literal["ssh", "openssh"]) -> Host:
        server = make(key)
        made.append(server)
        network = client.network
        network.known_hosts.write_text(f"[127.0.0.1]:{server.port} {' '.join(public(key).split()[:2])}\n")
        network.prepended = (
            f"UserKnownHostsFile {network.known_hosts}\nGlobalKnownHostsFile none\n"
            f"IdentityFile {network.key}\nIdentitiesOnly yes\nUser me\n"
        )
        return Host("gpu01", ssh_host="127.0.0.1", port=server.port, connection=connection)

    yield at
    for each in made:
        each.close()


@pytest.mark.parametrize("connection", ["ssh", "openssh"])
@pytest.mark.parametrize("name", SERVERS)
def test_whatever_a_server_does_ends_in_time_with_a_sentence(
    client: Client, reach: Callable[..., Host], name: str, connection: str
) -> None:
    host = reach(SERVERS[name], connection)
    tracemalloc.start()
    try:
        error = client.refusal(host, timeout_s=2)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert len(error.message + error.hint) < LONGEST
    harmless("".join(traceback.format_exception(error)))  # as a notebook shows it


def test_a_packet_is_no_longer_than_openssh_takes(client: Client, reach: Callable[..., Host]) -> None:
    error = client.refusal(reach(lambda _: Talker(endless_packet), "ssh"), timeout_s=60)
    assert re.search(rf"sends a packet of \d{{10}} bytes, and {PACKET_BYTES} are the most", error.message)


def test_a_banner_without_an_end_is_not_read_to_the_deadline(
    client: Client, reach: Callable[..., Host]
) -> None:
    error = client.refusal(reach(lambda _: Talker(endless_version), "ssh"), timeout_s=60)
    assert "it is longer than" in error.message


@pytest.mark.parametrize("connection", ["ssh", "openssh"])
def test_a_key_that_changes_between_two_connections_of_one_run(
    client: Client, reach: Callable[..., Host], tmp_path: Path, connection: str
) -> None:
    """The first was unknown, and taken by --accept-new; who comes in between then is refused."""
    server = WelcomingSshd(make_key(tmp_path / "first"), never)
    host = reach(lambda _: server, connection)
    client.network.known_hosts.write_text("")
    connector = client.connector([host], accept_new=True)
    connector.open(host, "cat").close()
    server.key = make_key(tmp_path / "other")
    with pytest.raises(ConnectError, match="host key is not the one in"):
        connector.open(host, "cat")
