"""fabric and paramiko as they are used: nothing stands in for a part of them, and what they share stays as it is."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fabric
import pytest

from tests.support.sshd import SshNetwork
from tflaunch.hosts import Host
from tflaunch.ssh.client import SshClient
from tflaunch.ssh.connection import _CONFIG, HostConnection
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.host_key import HostKeyCheck
from tflaunch.ssh.key_files import connect_agent, read_key
from tflaunch.ssh.known_hosts import KnownHosts
from tflaunch.ssh.login import LoginClient
from tflaunch.ssh.ssh_config import SshConfig

UNTOUCHED = """
import invoke.context, invoke.util, paramiko.config, unittest.mock
import tflaunch.ssh.command_wire
assert invoke.context.Mock is unittest.mock.Mock
assert invoke.util.yaml.__name__ == "invoke.vendor.yaml"
assert paramiko.config.invoke is invoke
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_no_module_is_replaced_or_changed(order: str) -> None:
    code = UNTOUCHED if order == "before" else f"import tflaunch.ssh.command_wire\n{UNTOUCHED}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_connections_share_settings_that_none_of_them_changes(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n  User ann\n  Port 2200\n")
    target = SshConfig(tmp_path / "config").target(Host(name="gpu01"))
    check = HostKeyCheck(KnownHosts([]), target, accept_new=False)
    before = dict(_CONFIG)

    def describe(_: int) -> HostConnection:
        deadline = Deadline(1)
        client = LoginClient(target, check, lambda _: pytest.fail("no login"), deadline)
        return HostConnection(client, target, deadline)

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(describe, range(200)))
    assert {(each.host, each.user, each.port, each.gateway) for each in made} == {
        ("gpu01", "ann", 2200, False)
    }
    assert isinstance(made[0], fabric.Connection)
    assert dict(_CONFIG) == before
    assert _CONFIG._modifications == {}


def test_the_jump_host_is_the_gateway_of_the_connection(network: SshNetwork) -> None:
    jump, last = network.add(), network.add()
    network.prepend(f"Host {last.name}\n  ProxyJump {jump.name}\nHost *")
    client = SshClient([last.host()], network.config, None, accept_new=False, timeout_s=60.0)
    target = client._target(last.host())
    connection = client._connect(target, Deadline(60))
    try:
        assert connection.is_connected
        assert (connection.gateway.host, connection.gateway.port) == (jump.address, jump.port)
        assert connection.gateway is client._gateway_to(target, Deadline(60))  # shared by all behind it
    finally:
        connection.close()
        client.close()
    assert not connection.is_connected
    assert not connection.gateway.is_connected


def test_what_this_machine_does_meanwhile_is_not_the_host_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    deadline = Deadline(20.0)
    with deadline.paused():
        now += 30
        assert deadline.passed
    assert not deadline.passed
    now += 30
    assert deadline.passed


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "agent"))
        made.listen()
        yield made


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "it has closed the connection"),
        (b"\0\0\0\5\x0c\0", "it has closed the connection"),
        (b"\xff\xff\xff\xff", "it does not answer as an ssh-agent does"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it does not answer as an ssh-agent does"),
        (b"\0\0\0\1\5", "it does not list its keys"),
        (b"\0\0\0\5\x0c\0\0\0\1", "it is cut short"),
        (b"\0\0\0\5\x0c\xff\xff\xff\xff", "it is cut short"),
    ],
)
def test_whatever_speaks_at_the_agent_s_socket_is_an_agent_or_a_reason(
    listener: socket.socket, answer: bytes, why: str
) -> None:
    def speak() -> None:
        connected, _ = listener.accept()
        with connected:
            connected.recv(5)
            connected.sendall(answer)

    thread = threading.Thread(target=speak)
    thread.start()
    path = listener.getsockname()
    assert connect_agent(path) == f"ssh-agent {path}: {why}"
    thread.join()


@pytest.mark.parametrize(
    ("kind", "form", "encrypted"),
    [
        ("ed25519", "RFC4716", True),
        ("ed25519", "RFC4716", False),
        ("rsa", "PEM", True),
        ("rsa", "PEM", False),
        ("ecdsa", "PKCS8", True),
        ("ecdsa", "PKCS8", False),
    ],
)
def test_an_encrypted_key_is_known_as_one_without_paramiko(
    tmp_path: Path, kind: str, form: str, encrypted: bool
) -> None:
    path = tmp_path / "key"
    words = ["ssh-keygen", "-q", "-t", kind, "-m", form, "-N", "sesame" if encrypted else "", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    file = read_key(path)
    assert (file.encrypted, file.problem) == (encrypted, "")
    assert file.public[4:].startswith(
        {"ed25519": b"ssh-ed25519", "rsa": b"ssh-rsa", "ecdsa": b"ecdsa-"}[kind]
    )
