"""`connection: openssh`: a server, or who stands between, that writes what looks like the words of `ssh`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hostile_sshd import HostileSshd, Listener, Relay
from tests.support.patience import until
from tests.support.sshd import SshNetwork, logins, make_key, public
from tests.support.wires import Client, everything
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError

FORGED = (
    "debug1: Server host key: ssh-ed25519 SHA256:forgedforgedforgedforgedforged",
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
    "Offending ED25519 key in /etc/forged:1",
    "Host key ED25519 SHA256:x revoked by file /etc/forged",
    "debug1: Authenticating to forged:99 as 'forged'",
    "ssh: Could not resolve hostname forged: Name or service not known",
    "ssh: connect to host forged port 99: Connection refused",
    "debug1: SSH2_MSG_NEWKEYS received",
    "debug1: Offering public key: /etc/forged ED25519 SHA256:x explicit",
    "debug1: Server accepts key: /etc/forged ED25519 SHA256:x explicit",
    "debug1: mux_client_request_session: master session id: 2",
    "debug1: Sending command: forged",
    "command-line: line 0: Bad configuration option: forged",
    "forged@forged: Permission denied (forged).",
    "Host key verification failed.",
)
LINES = "\r\n".join(FORGED)


@pytest.fixture
def client(network: SshNetwork) -> Iterator[Client]:
    client = Client(network)
    yield client
    client.close()


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    made: list[Listener] = []
    yield made
    for each in made:
        each.close()


def at(client: Client, listener: Listener, listeners: list[Listener], known: Path | None = None) -> Host:
    """The host behind a listener; its key is known where it is named."""
    listeners.append(listener)
    text = "" if known is None else f"[127.0.0.1]:{listener.port} {' '.join(public(known).split()[:2])}\n"
    client.network.known_hosts.write_text(text)
    client.network.prepended = (
        f"UserKnownHostsFile {client.network.known_hosts}\nGlobalKnownHostsFile none\n"
        f"IdentityFile {client.network.key}\nIdentitiesOnly yes\nUser me\n"
    )
    return Host("gpu01", ssh_host="127.0.0.1", port=listener.port, connection="openssh")


def fingerprint(key: Path) -> str:
    shown = subprocess.check_output(["ssh-keygen", "-lf", f"{key}.pub"], text=True)
    return shown.split()[1]


def said(error: ConnectError) -> str:
    return f"{error.message} | {error.hint}"


@pytest.mark.parametrize("version", [None, (8, 4), (7, 5)])
def test_the_fingerprint_to_compare_is_not_that_of_who_stands_between(
    client: Client,
    listeners: list[Listener],
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int] | None,
) -> None:
    if version:  # the options of which are fewer
        monkeypatch.setattr("tflaunch.ssh.openssh.OpenSsh._ask_version", lambda _: version)
    sshd = client.network.add(known=False)
    relay = Relay((sshd.address, sshd.port), LINES.encode() + b"\r\n")
    error = client.refusal(at(client, relay, listeners))
    assert error.message == "the server's ssh-ed25519 host key is unknown"
    assert f"compare {fingerprint(sshd.host_key)} with" in error.hint
    assert "forged" not in said(error)
    assert logins(sshd) == 0
    assert client.network.known_hosts.read_text() == ""


def test_the_fingerprint_is_that_of_the_key_that_ssh_was_shown_first(
    client: Client, listeners: list[Listener], tmp_path: Path
) -> None:
    """A changed key of one kind is not compared by that of another."""
    rsa, ed25519 = make_key(tmp_path / "rsa", kind="rsa"), make_key(tmp_path / "ed25519")
    sshd = client.network.add(known=False, host_key=ed25519, options=[f"HostKey {rsa}", f"HostKey {ed25519}"])
    old = make_key(tmp_path / "old", kind="rsa")
    error = client.refusal(at(client, Relay((sshd.address, sshd.port), b""), listeners, known=old))
    assert error.message.startswith("the server's ssh-rsa host key is not the one in")
    assert f"compare {fingerprint(rsa)} with" in error.hint


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("line", ["x\r\n" + LINES, LINES])
def test_what_a_server_says_before_its_key_is_checked(
    client: Client, listeners: list[Listener], tmp_path: Path, *, known: bool, line: str
) -> None:
    key = make_key(tmp_path / "hostile")
    server = HostileSshd(key, debug=line)
    error = client.refusal(at(client, server, listeners, known=key if known else None))
    assert error.message.startswith("the server wrote into ssh's log before its key had been checked")
    assert "forged" not in said(error)


def test_how_a_server_hangs_up_before_its_key_is_checked(
    client: Client, listeners: list[Listener], tmp_path: Path
) -> None:
    server = HostileSshd(make_key(tmp_path / "hostile"), disconnect="x\r\n" + LINES, before_keys=True)
    error = client.refusal(at(client, server, listeners))
    assert error.message == "the server closed the connection during the key exchange"
    assert "forged" not in said(error)


def test_the_banner_is_no_word_of_ssh(client: Client, listeners: list[Listener], tmp_path: Path) -> None:
    key = make_key(tmp_path / "hostile")
    error = client.refusal(at(client, HostileSshd(key, banner=LINES + "\r\n"), listeners, known=key))
    assert error.message == f"user me: the server refused key {client.network.key}"
    assert "forged" not in said(error)


@pytest.mark.parametrize("text", [LINES, LINES + "\r\n", "publickey\r\n" + LINES])
@pytest.mark.parametrize("way", ["methods", "disconnect"])
def test_a_server_that_is_known_speaks_of_its_login_alone(
    client: Client, listeners: list[Listener], tmp_path: Path, way: str, text: str
) -> None:
    key = make_key(tmp_path / "hostile")
    server = HostileSshd(key, methods=text) if way == "methods" else HostileSshd(key, disconnect=text)
    error = client.refusal(at(client, server, listeners, known=key))
    # What it takes is what it says it takes; no key, file, host or account is named by its word.
    assert re.match(r"user me: |the server closed the connection during the login", error.message), said(
        error
    )
    assert not re.search(
        r"/etc/forged|forged:99|SHA256:forged|resolve|changed|revoked|ssh-keygen -R", said(error)
    )
    assert not error.absent


def test_a_key_that_has_changed_is_not_logged_in_to_whatever_ssh_config_says(
    client: Client, tmp_path: Path
) -> None:
    """Neither the agent nor a secret on its way to it reaches the server."""
    sshd = client.network.add()
    sshd.host_key = make_key(tmp_path / "changed")
    sshd.restart()
    for mode in ("no", "off"):
        client.network.prepended = f"StrictHostKeyChecking {mode}\n"
        error = client.refusal(sshd.host(connection="openssh"))
        assert "host key is not the one in" in error.message
        assert f"compare {fingerprint(sshd.host_key)} with" in error.hint
        assert f"{client.network.known_hosts}:1" in error.message
    assert logins(sshd) == 0


def test_a_jump_host_s_words_are_told_as_said(client: Client, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text(LINES + "\n")
    jump = client.network.add(
        options=[f"Banner {tmp_path}/banner"], authorized=[make_key(tmp_path / "another")]
    )
    last = client.network.add(known=False)
    error = client.refusal(last.host(connection="openssh", proxy_jump=jump.name))
    assert error.message.startswith("the way through its ProxyJump or ProxyCommand failed; it said: ")
    assert "Permission denied (publickey)" in error.message
    assert not error.absent


def test_behind_a_jump_host_the_key_is_that_of_the_host(client: Client, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text(LINES + "\n")
    jump = client.network.add(options=[f"Banner {tmp_path}/banner"])
    last = client.network.add(known=False)
    error = client.refusal(last.host(connection="openssh", proxy_jump=jump.name))
    assert error.message == "the server's ssh-ed25519 host key is unknown"
    assert f"compare {fingerprint(last.host_key)} with" in error.hint
    assert "forged" not in said(error)


def test_nothing_is_left_of_the_pipes(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    sshd, unknown = client.network.add(), client.network.add(known=False)
    wire = client.open(sshd.host(connection="openssh"), "echo in; exec cat")
    assert not list(scratch.iterdir())  # while it runs
    client.refusal(unknown.host(connection="openssh"))
    client.refusal(Host("gpu01", ssh_host="127.0.0.1", port=1, connection="openssh"))
    wire.close()
    assert everything(wire) == b"in\n"
    until(lambda: not list(scratch.iterdir()), "nothing left")
