"""Servers that do not answer, or speak something else."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paramiko
import paramiko.ssh_exception
import pytest

from tests.support.wires import MIB, Client, Line, asked, at, everything, read, serve
from tflaunch.hosts import Host


def test_dropped_before_the_banner_is_tried_again(client: Client) -> None:
    """MaxStartups 2: two connections that never log in hold both places until the sshd has turned some away."""
    sshd = client.network.add(options=["MaxStartups 2"])
    host = sshd.host()
    connector = client.connector([host], timeout_s=60)
    squatters = [socket.create_connection((sshd.address, sshd.port)) for _ in range(2)]
    for squatter in squatters:
        assert squatter.recv(100).startswith(b"SSH-")
    with ThreadPoolExecutor(12) as pool:
        opening = [pool.submit(connector.open, host, "cat", b"x") for _ in range(12)]
        while sshd.log().count("past MaxStartups") < 12:
            assert not any(one.done() for one in opening)
        for squatter in squatters:
            squatter.close()
        for one in opening:
            with contextlib.closing(Line(one.result())) as wire:
                assert read(wire, 1) == b"x"


def test_dropped_for_good_meets_the_deadline(client: Client) -> None:
    sshd = client.network.add(options=["MaxStartups 1"])
    with socket.create_connection((sshd.address, sshd.port)) as squatter:
        assert squatter.recv(100).startswith(b"SSH-")
        error = client.refusal(sshd.host(), timeout_s=5)
    assert re.fullmatch(r"sshd dropped the connection before its banner, \d+ times in 5 s", error.message)
    assert "MaxStartups" in error.hint


def test_nothing_listens(client: Client) -> None:
    sshd = client.network.add()
    sshd.kill()
    error = client.refusal(sshd.host())
    assert error.message == f"port {sshd.port} refuses the connection"


def test_a_listener_that_never_speaks_meets_the_deadline(client: Client, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    error = client.refusal(at(listener), timeout_s=3)
    assert error.message == f"connected, but no SSH banner on port {port} within 3 s"


def test_a_smaller_connect_timeout_wins(client: Client, listener: socket.socket) -> None:
    client.network.prepend("ConnectTimeout 1")
    assert "within 1 s" in client.refusal(at(listener), timeout_s=60).message


def test_a_frozen_sshd_meets_the_deadline(client: Client) -> None:
    sshd = client.network.add()
    sshd.freeze()
    assert "within 3 s" in client.refusal(sshd.host(), timeout_s=3).message
    sshd.thaw()


def test_a_full_backlog_meets_the_deadline(client: Client) -> None:
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        error = client.refusal(at(full), timeout_s=0.5)
        assert error.message == f"no answer on port {full.getsockname()[1]} within 0.5 s"


def test_a_name_server_that_hangs_meets_the_deadline(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    up = threading.Event()

    def hang(*_: Any) -> list[Any]:
        up.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    error = client.refusal(Host(name="gpu01", ssh_host="somewhere"), timeout_s=0.3)
    up.set()
    assert error.message == "the name look-up took longer than 0.3 s"


@pytest.mark.parametrize("name", ["no-such-host.invalid", "x" * 70 + ".invalid"])
def test_a_name_that_does_not_resolve(client: Client, name: str) -> None:
    error = client.refusal(Host(name="gpu01", ssh_host=name))
    assert error.message == "the name does not resolve"
    assert name in error.hint


BANNER = b"SSH-2.0-nobody\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
            "is not SSH: it said 'HTTP/1.1 400 Bad Request'",
        ),
        (b"\xff\x00\xfe garbage without an end", "is not SSH"),
        (b"SSH-1.5-ancient\r\n", "2.0"),
        (b"SSH-\r\n", "banner"),
        (BANNER, "closed the connection during the key exchange"),
        (BANNER + b"\xff" * 64, "the key exchange"),
        (BANNER + b"\0\0\0\x0c\x04\x01" + bytes(64), "the key exchange"),
    ],
)
def test_listeners_that_speak_something_else(
    client: Client, listener: socket.socket, answer: bytes, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve(listener, answer)
    assert said in client.refusal(at(listener)).message
    server.join()
    assert capfd.readouterr() == ("", "")  # paramiko's own complaints are for its log alone


@pytest.mark.parametrize(
    ("options", "what", "theirs", "wanted"),
    [
        (
            ["Ciphers chacha20-poly1305@openssh.com"],
            "no cipher that tflaunch has, though `ssh` may have one",
            "chacha20-poly1305@openssh.com",
            "have aes128-gcm@openssh.com added to Ciphers in its sshd_config",
        ),
        (
            ["Ciphers aes128-ctr,aes256-ctr", "MACs umac-128-etm@openssh.com,umac-64@openssh.com"],
            "no MAC for the ciphers in common that tflaunch has, though `ssh` may have one",
            "umac-128-etm@openssh.com, umac-64@openssh.com",
            "have hmac-sha2-256-etm@openssh.com added to MACs in its sshd_config",
        ),
        (
            ["KexAlgorithms diffie-hellman-group-exchange-sha256"],
            "no key exchange that tflaunch has, though `ssh` may have one",
            "diffie-hellman-group-exchange-sha256",
            "have curve25519-sha256@libssh.org added to KexAlgorithms in its sshd_config",
        ),
    ],
)
def test_what_this_side_lacks_is_said_where_ssh_gets_in(
    client: Client, options: list[str], what: str, theirs: str, wanted: str
) -> None:
    sshd = client.network.add(options=options)
    assert asked(client, sshd).stdout == "in\n"
    error = client.refusal(sshd.host())
    assert f"the server allows {what}: it offers {theirs};" in error.message
    assert f"tflaunch (by paramiko {paramiko.__version__}) has " in error.message
    assert wanted in error.hint
    # The hint is true: with it, tflaunch gets in.
    keyword, name = wanted.split()[4], wanted.split()[1]
    more = [f"{line},{name}" if line.startswith(f"{keyword} ") else line for line in options]
    mended = client.network.add(options=more)
    assert everything(client.open(mended.host(), "echo in")) == b"in\n"


@pytest.mark.parametrize(
    "options",
    [
        ["Ciphers aes128-gcm@openssh.com", "MACs umac-128-etm@openssh.com"],  # such a cipher needs no MAC
        ["KexAlgorithms curve25519-sha256"],  # paramiko knows but its other name
    ],
)
def test_what_ssh_has_in_common_with_a_server_tflaunch_has(client: Client, options: list[str]) -> None:
    sshd = client.network.add(options=options)
    assert asked(client, sshd).stdout == "in\n"
    wire = client.open(sshd.host(), "cat", b"x" * MIB)
    assert read(wire, MIB) == b"x" * MIB


def test_a_server_that_allows_no_session(client: Client) -> None:
    sshd = client.network.add(options=["MaxSessions 0"])
    error = client.refusal(sshd.host())
    assert "refused a session" in error.message
    assert "MaxSessions" in error.hint
