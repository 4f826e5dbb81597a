"""Ways to a host, against real sshds: jump hosts, ProxyCommand, and what cannot be obeyed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.sshd import Sshd, logins, make_key
from tests.support.wires import MIB, Client, Line, read


def test_two_jump_hosts_in_the_order_of_openssh(client: Client) -> None:
    """launcher -> host1 -> host2 -> host3: each is called by the one before it, and shared by all behind it."""
    first, second, last, other = (client.network.add(options=["LogLevel DEBUG"]) for _ in range(4))
    client.network.prepend(f"Host {last.name} {other.name}\n  ProxyJump {first.name},{second.name}\nHost *")
    hosts = [last.host(), other.host()]
    connector = client.connector(hosts)
    wires = []
    with ThreadPoolExecutor(6) as pool:
        wires = list(pool.map(lambda host: Line(connector.open(host, "cat", b"hi")), hosts * 3))
    for wire in wires:
        assert read(wire, 2) == b"hi"
        wire.close()
    assert [logins(sshd) for sshd in (first, second, last, other)] == [1, 1, 3, 3]
    assert connections_made_by(first) == {(second.address, second.port)}
    assert connections_made_by(second) == {(last.address, last.port), (other.address, other.port)}


def connections_made_by(sshd: Sshd) -> set[tuple[str, int]]:
    """Where a jump host was asked to connect to, by its own log."""
    found = re.findall(r"originator \S+ port \d+, target (\S+) port (\d+)", sshd.log())
    return {(address, int(port)) for address, port in found}


def test_the_hostfile_may_name_the_jump_hosts(client: Client) -> None:
    first, second, last = (client.network.add(options=["LogLevel DEBUG"]) for _ in range(3))
    client.network.prepend(f"Host {last.name}\n  ProxyCommand false\nHost *")  # the hostfile wins
    jump = f"{first.user}@{first.name}:{first.port},{second.name}"
    wire = client.open(last.host(proxy_jump=jump), "cat", b"hi")
    assert read(wire, 2) == b"hi"
    assert connections_made_by(first) == {(second.address, second.port)}
    assert connections_made_by(second) == {(last.address, last.port)}


def test_a_jump_host_s_own_way_is_taken_and_none_ends_it(client: Client) -> None:
    first, second, last = (client.network.add(options=["LogLevel DEBUG"]) for _ in range(3))
    client.network.prepend(
        f"Host {first.name}\n  ProxyJump none\n"
        f"Host {last.name}\n  ProxyJump {second.name}\n"
        f"Host *\n  ProxyJump {first.name}"  # matches the jump hosts too
    )
    wire = client.open(last.host(), "cat", b"hi")
    assert read(wire, 2) == b"hi"
    assert connections_made_by(first) == {(second.address, second.port)}
    assert connections_made_by(second) == {(last.address, last.port)}


def test_a_failing_jump_host_is_named(client: Client, tmp_path: Path) -> None:
    first, second, last = (client.network.add() for _ in range(3))
    host = last.host(proxy_jump=f"{first.name},{second.name}")
    second.authorize(make_key(tmp_path / "other"))
    assert client.refusal(host).message.startswith(
        f"jump host {second.name}: user {second.user}: the server refused"
    )
    second.kill()
    assert (
        client.refusal(host).message
        == f"jump host {second.name}: jump host {first.name} could not reach port {second.port} behind it"
    )
    first.kill()
    assert client.refusal(host).message == f"jump host {first.name}: port {first.port} refuses the connection"


def test_a_jump_host_that_forbids_forwarding(client: Client) -> None:
    jump = client.network.add(options=["AllowTcpForwarding no"])
    last = client.network.add()
    error = client.refusal(last.host(proxy_jump=jump.name))
    assert error.message == f"jump host {jump.name} forbids forwarding to port {last.port}"


def test_a_jump_host_that_comes_back_is_used_again(client: Client) -> None:
    jump, last = client.network.add(), client.network.add()
    host = last.host(proxy_jump=jump.name)
    connector = client.connector([host])
    wire = Line(connector.open(host, "echo ready; exec cat"))
    assert read(wire, 6) == b"ready\n"
    jump.restart()
    assert wire.recv(1) == b""
    wire.close()
    with contextlib.closing(Line(connector.open(host, "cat", b"again"))) as again:
        assert read(again, 5) == b"again"


RELAY = """
import os, socket, sys, threading
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        there.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := there.recv(65536):
    os.write(1, data)
"""


def test_proxy_command(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add()
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY)
    # The port is the hostfile's, which %p must know.
    client.network.prepend(
        f"Match originalhost {sshd.name}\n  Port 1\n  ProxyCommand {sys.executable} {relay} %h %p"
    )
    data = os.urandom(MIB)
    wire = client.open(sshd.host(port=sshd.port))
    sender = threading.Thread(target=wire.send, args=(data,))
    sender.start()
    assert read(wire, MIB) == data
    sender.join()


ONE_AT_A_TIME = """
import os, select, socket, sys
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
ways = {0: there.fileno(), there.fileno(): 1}
while True:
    for one in select.select(list(ways), [], [])[0]:
        data = os.read(one, 65536)
        if not data:
            sys.exit()
        while data:
            data = data[os.write(ways[one], data):]
"""


def test_a_proxy_command_that_takes_nothing_before_it_is_read(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add()
    relay = tmp_path / "relay.py"
    relay.write_text(ONE_AT_A_TIME)
    client.network.prepend(f"Match originalhost {sshd.name}\n  ProxyCommand {sys.executable} {relay} %h %p")
    wire = client.open(sshd.host(), f"head -c {8 * MIB} /dev/zero & exec cat >/dev/null")
    sender = threading.Thread(target=wire.send, args=(bytes(8 * MIB),))
    sender.start()
    assert read(wire, 8 * MIB) == bytes(8 * MIB)
    sender.join()


def test_a_proxy_command_that_fails_is_quoted(client: Client) -> None:
    sshd = client.network.add()
    client.network.prepend("ProxyCommand sh -c 'echo no way through >&2; exit 7'")
    error = client.refusal(sshd.host())
    assert error.message == "ProxyCommand failed: exit status 7; it said: no way through"


def test_ssh_config_that_cannot_be_obeyed_is_an_error(client: Client) -> None:
    host = client.network.add().host()
    for text, said in (
        ("Match tagged x", "tflaunch does not know Match 'tagged'"),
        ("Port twenty", "port 'twenty': ssh takes no such value"),
        ("ConnectTimeout soon", "connecttimeout 'soon': ssh takes no such value"),
        ("nonsense", "'nonsense' is not a keyword and a value"),
        ("RevokedHostKeys /etc/revoked", "RevokedHostKeys /etc/revoked: No such file"),
        ("ProxyJump user@host:port", "proxyjump 'user@host:port': ssh takes no such value"),
    ):
        client.network.prepended = text + "\n"
        assert said in client.refusal(host).message
