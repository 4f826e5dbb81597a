"""Wires against real sshds: what goes through them, and the sentence for everything that can go wrong."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paramiko
import paramiko.ssh_exception
import pytest

from tests.launcher import until
from tests.sshd import SshAgent, Sshd, SshNetwork, logins, make_key, public
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError, WireClosed
from tflaunch.protocol.wire import encode
from tflaunch.remote import ConnectOptions, Connector
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.session import Ended
from tflaunch.sessions.wires import Wire
from tflaunch.ssh.config import SshConfig
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.failures import unreached
from tflaunch.ssh.login import explained
from tflaunch.ssh.target import Target
from tflaunch.ssh.transport import Stream, TunedTransport

LOCAL = Host(name="here", connection="local")
KINDS = ["ssh", "openssh", "local"]
REMOTE = ["ssh", "openssh"]
MIB = 1 << 20
SESAME = "open sesame"


class Client:
    """A connector over the test's network that is closed with its wires at the end."""

    def __init__(self, network: SshNetwork) -> None:
        self.network = network
        self._opened: list[Any] = []

    def connector(
        self,
        hosts: Sequence[Host],
        ask: Callable[[str], str] | None = None,
        *,
        timeout_s: float = 20,
        accept_new: bool = False,
    ) -> Connector:
        options = ConnectOptions(timeout_s, accept_new, self.network.config)
        connector = Connector(hosts, options, ask)
        self._opened.append(connector)
        return connector

    def host(self, kind: str, **options: Any) -> Host:
        """A new host that is reached in that way."""
        return LOCAL if kind == "local" else self.network.add(**options).host(connection=kind)

    def open(self, host: Host, command: str = "cat", first: bytes = b"", **options: Any) -> Line:
        wire = Line(self.connector([host], **options).open(host, command, first))
        self._opened.append(wire)
        return wire

    def refusal(self, host: Host, command: str = "cat", **options: Any) -> ConnectError:
        """The error that connecting ends with; every one has a message and a remedy, and names no host."""
        with pytest.raises(ConnectError) as caught:
            self.open(host, command, **options)
        assert caught.value.message
        assert caught.value.hint
        assert host.name not in caught.value.message
        return caught.value

    def close(self) -> None:
        for opened in reversed(self._opened):
            opened.close()


@pytest.fixture
def client(network: SshNetwork) -> Iterator[Client]:
    client = Client(network)
    yield client
    client.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def at(server: socket.socket, **changes: Any) -> Host:
    return Host(name="gpu01", ssh_host="127.0.0.1", port=server.getsockname()[1], **changes)


class Line:
    """A wire from which what comes can be read, as from a socket."""

    def __init__(self, wire: Wire) -> None:
        self.send, self.send_now = wire.send, wire.send_now
        self.close, self.last_words = wire.close, wire.last_words
        self._came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = b""
        self._over = False
        wire.listen(self._came.put)

    def recv(self, size: int) -> bytes:
        if not self._rest and not self._over:
            self._rest = self._came.get(timeout=60)
            self._over = not self._rest
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def read(wire: Line, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := wire.recv(65536)):
        data += more
    return data


def everything(wire: Line) -> bytes:
    return read(wire, sys.maxsize)


# -- what goes through -------------------------------------------------------------------------------------


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
    reader.join(60)
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
    sender.join(60)
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


# -- host keys ---------------------------------------------------------------------------------------------


def test_an_unknown_host_key_is_refused_with_its_fingerprint(client: Client) -> None:
    sshd = client.network.add(known=False)
    error = client.refusal(sshd.host())
    assert error.message == "the server's ssh-ed25519 host key is unknown"
    assert "SHA256:" in error.hint
    assert f"`ssh -F {client.network.config} {{host}}`" in error.hint
    assert "--accept-new" in error.hint
    assert client.network.known_hosts.read_text() == ""
    assert logins(sshd) == 0


@pytest.mark.parametrize("hashed", ["no", "yes"])
def test_accept_new_writes_the_key_and_then_it_is_known(client: Client, hashed: str) -> None:
    sshd = client.network.add(known=False)
    client.network.prepend(f"HashKnownHosts {hashed}")
    client.network.known_hosts.write_text("# a last line without its newline")
    client.open(sshd.host(), accept_new=True).close()
    lines = client.network.known_hosts.read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("|1|") == (hashed == "yes")
    client.open(sshd.host()).close()


def test_strict_host_key_checking_accept_new_and_no_do_the_same(client: Client) -> None:
    for mode, notes in (("accept-new", 0), ("no", 1)):
        sshd = client.network.add(known=False)
        client.network.prepend(f"Match originalhost {sshd.name}\n  StrictHostKeyChecking {mode}\nHost *")
        connector = client.connector([sshd.host()])
        connector.open(sshd.host(), "true").close()
        assert len(connector.notes) == notes
        assert sshd.known_hosts_line() in client.network.known_hosts.read_text()


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key_is_always_refused(client: Client, accept_new: bool, tmp_path: Path) -> None:
    sshd = client.network.add(known=False)
    kind, blob = public(make_key(tmp_path / "other")).split()[:2]
    client.network.known_hosts.write_text(f"# comment\n[{sshd.address}]:{sshd.port} {kind} {blob}\n")
    error = client.refusal(sshd.host(), accept_new=accept_new)
    assert f"is not the one in {client.network.known_hosts}:2" in error.message
    assert f"ssh-keygen -R '[{sshd.address}]:{sshd.port}' -f {client.network.known_hosts}" in error.hint
    assert logins(sshd) == 0


def test_known_hosts_in_every_form(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add(known=False)
    kind, blob = public(sshd.host_key).split()[:2]
    other = public(make_key(tmp_path / "other")).split()[1]
    name = f"[{sshd.address}]:{sshd.port}"
    known = client.network.known_hosts
    good = {
        "pattern": f"[127.0.0.?]:*,!10.* {kind} {blob} a comment",
        "two keys": f"{name} {kind} {other}\n{name} {kind} {blob}",
        "no port": f"{sshd.address} {kind} {blob}",
        "rubbish around": f"\n# x\nnonsense\n{name} {kind} !!!\n@foo {name} x y\n{name} {kind} {blob}",
        "authority too": f"@cert-authority * {kind} {other}\n{name} {kind} {blob}",
    }
    for case, text in good.items():
        known.write_text(text + "\n")
        client.open(sshd.host()).close()
        assert case
    known.write_text(f"{name} {kind} {blob}\n@revoked * {kind} {blob}\n")
    assert "has revoked" in client.refusal(sshd.host(), accept_new=True).message
    known.write_text(f"@cert-authority * {kind} {other}\n")
    assert "@cert-authority" in client.refusal(sshd.host()).message
    known.write_text(f"[127.0.0.?]:*,!{name} {kind} {blob}\n")
    assert "is unknown" in client.refusal(sshd.host()).message


def test_the_kind_of_key_that_is_known_is_asked_for(client: Client, tmp_path: Path) -> None:
    rsa = make_key(tmp_path / "rsa", kind="rsa")
    ed25519 = make_key(tmp_path / "ed25519")
    sshd = client.network.add(options=[f"HostKey {rsa}", f"HostKey {ed25519}"], host_key=rsa)
    client.open(sshd.host()).close()
    # Known by another kind only, it must not come in as new.
    client.network.known_hosts.write_text(sshd.known_hosts_line())
    sshd.close()
    only = client.network.add(host_key=ed25519, known=False)
    line = f"[{only.address}]:{only.port} " + " ".join(public(rsa).split()[:2])
    client.network.known_hosts.write_text(line)
    assert "is not the one" in client.refusal(only.host(), accept_new=True).message


def test_host_key_alias_and_several_known_hosts_files(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add(known=False)
    second = tmp_path / "second"
    second.write_text("cluster " + " ".join(public(sshd.host_key).split()[:2]) + "\n")
    client.network.prepend(
        f"Match originalhost {sshd.name}\n  HostKeyAlias cluster\n"
        f"  UserKnownHostsFile {tmp_path}/missing {second}\nHost *"
    )
    client.open(sshd.host()).close()


# -- keys --------------------------------------------------------------------------------------------------


def test_a_refused_key_is_named(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add(authorized=[make_key(tmp_path / "other")])
    error = client.refusal(sshd.host())
    assert error.message == f"user {sshd.user}: the server refused key {client.network.key}"
    assert "authorized_keys" in error.hint


def test_a_missing_key_is_named(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add()
    client.network.key = tmp_path / "nowhere"
    error = client.refusal(sshd.host())
    assert f"there is no key to offer; skipped {tmp_path}/nowhere: No such file" in error.message


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_an_encrypted_key_asks_once_for_all_hosts(client: Client, tmp_path: Path, kind: str) -> None:
    key = client.network.key = make_key(tmp_path / "locked", passphrase=SESAME, kind=kind)
    hosts = [client.network.add().host() for _ in range(2)]
    asked: list[str] = []
    answers = iter(["wrong", SESAME])

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return next(answers)

    connector = client.connector(hosts, ask)
    assert asked == [f"Passphrase for {key}: "] * 2  # before anything is dialled
    for host in hosts:
        connector.open(host, "true").close()


def test_an_encrypted_key_without_a_terminal_is_an_error_and_no_prompt(
    client: Client, tmp_path: Path
) -> None:
    client.network.key = make_key(tmp_path / "locked", passphrase=SESAME)
    error = client.refusal(client.network.add().host())
    assert "there is no terminal to ask for its passphrase" in error.message


@pytest.mark.parametrize("answer", [lambda _: "", lambda _: "no", lambda _: next(iter([]))])
def test_an_encrypted_key_that_stays_locked(client: Client, tmp_path: Path, answer: Any) -> None:
    client.network.key = make_key(tmp_path / "locked", passphrase=SESAME)

    def ask(prompt: str) -> str:
        try:
            said: str = answer(prompt)
        except StopIteration:
            raise EOFError from None
        return said

    error = client.refusal(client.network.add().host(), ask=ask)
    assert "encrypted, and" in error.message
    assert "passphrase" in error.message


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[SshAgent]:
    agent = SshAgent(tmp_path)
    yield agent
    agent.close()


def test_an_encrypted_key_that_an_agent_holds_asks_nothing(
    client: Client, agent: SshAgent, tmp_path: Path
) -> None:
    key = client.network.key = make_key(tmp_path / "locked", passphrase=SESAME)
    agent.add(key, passphrase=SESAME)
    client.network.prepend(f"IdentityAgent {agent.socket}")
    host = client.network.add().host()

    def ask(prompt: str) -> str:
        raise AssertionError(prompt)

    connector = client.connector([host], ask)
    with ThreadPoolExecutor(8) as pool:  # they share one agent
        for wire in pool.map(lambda _: connector.open(host, "true"), range(8)):
            wire.close()


def test_the_right_key_comes_before_an_agent_full_of_others(
    client: Client, agent: SshAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [make_key(tmp_path / f"wrong{n}") for n in range(7)]
    agent.add(*wrong)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
    sshd = client.network.add(options=["MaxAuthTries 3"])
    client.open(sshd.host()).close()  # IdentitiesOnly yes
    client.network.prepend("IdentitiesOnly no")
    client.open(sshd.host()).close()
    assert "Failed publickey" not in sshd.log()

    sshd.authorize(make_key(tmp_path / "another"))
    error = client.refusal(sshd.host())
    assert "the server hung up after 3 keys" in error.message
    assert "too many authentication failures" in error.message
    assert "IdentitiesOnly" in error.hint


def test_only_the_agent_knows_the_key(
    client: Client, agent: SshAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent.add(client.network.key)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
    sshd = client.network.add()
    chosen = tmp_path / "chosen.pub"  # a public key names the agent's private one
    chosen.write_text(public(client.network.key))
    client.network.key = chosen
    client.open(sshd.host()).close()


def test_a_frozen_agent_cannot_hang_the_launcher(
    client: Client, agent: SshAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tflaunch.ssh.key_files.AGENT_ANSWERS_S", 0.2)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
    sshd = client.network.add()
    agent.freeze()
    client.open(sshd.host()).close()  # the key file is good without it


def test_an_agent_that_freezes_later_meets_the_deadline(
    client: Client, agent: SshAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = client.network.key = make_key(tmp_path / "locked", passphrase=SESAME)
    agent.add(key, passphrase=SESAME)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
    host = client.network.add().host()
    connector = client.connector([host], timeout_s=2)
    agent.freeze()
    with pytest.raises(ConnectError, match=r"no answer to key .*locked .* within 2 s"):
        connector.open(host, "true")


def test_a_dead_agent_is_a_reason_and_no_more(client: Client, tmp_path: Path) -> None:
    client.network.prepend(f"IdentityAgent {tmp_path}/gone.sock")
    sshd = client.network.add()
    client.open(sshd.host()).close()
    sshd.authorize(make_key(tmp_path / "other"))
    assert f"skipped ssh-agent {tmp_path}/gone.sock: No such file" in client.refusal(sshd.host()).message


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("PubkeyAuthentication no", "the server takes no keys, only"),
        ("AuthenticationMethods publickey,password", "the server wants more than a key (password)"),
    ],
)
def test_servers_that_want_a_password(client: Client, option: str, said: str) -> None:
    sshd = client.network.add(options=[option, "PasswordAuthentication yes"])
    assert said in client.refusal(sshd.host()).message


# -- ways there --------------------------------------------------------------------------------------------


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
        ("Port twenty", "'twenty' is not a number"),
        ("ConnectTimeout soon", "'soon' is not a time"),
        ("nonsense", "'nonsense' is not a keyword and a value"),
        ("RevokedHostKeys /etc/revoked", "sets revokedhostkeys"),
        ("ProxyJump user@host:port", "is not [user@]host[:port]"),
    ):
        client.network.prepended = text + "\n"
        assert said in client.refusal(host).message


# -- what does not answer ----------------------------------------------------------------------------------


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
        error = client.refusal(sshd.host(), timeout_s=1)
    assert re.fullmatch(r"sshd dropped the connection before its banner, \d+ times in 1 s", error.message)
    assert "MaxStartups" in error.hint


def test_nothing_listens(client: Client) -> None:
    sshd = client.network.add()
    sshd.kill()
    error = client.refusal(sshd.host())
    assert error.message == f"port {sshd.port} refuses the connection"


def test_a_listener_that_never_speaks_meets_the_deadline(client: Client, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    error = client.refusal(at(listener), timeout_s=0.5)
    assert error.message == f"connected, but no SSH banner on port {port} within 0.5 s"


def test_a_smaller_connect_timeout_wins(client: Client, listener: socket.socket) -> None:
    client.network.prepend("ConnectTimeout 1")
    assert "within 1 s" in client.refusal(at(listener), timeout_s=60).message


def test_a_frozen_sshd_meets_the_deadline(client: Client) -> None:
    sshd = client.network.add()
    sshd.freeze()
    assert "within 0.5 s" in client.refusal(sshd.host(), timeout_s=0.5).message
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


def serve(listener: socket.socket, *answers: bytes) -> threading.Thread:
    """Say one answer to each caller in turn, and hang up."""

    def loop() -> None:
        for answer in answers:
            caller, _ = listener.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(answer)
                caller.shutdown(socket.SHUT_WR)
                while caller.recv(65536):
                    pass

    thread = threading.Thread(target=loop)
    thread.start()
    return thread


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
    assert said in client.refusal(at(listener), timeout_s=5).message
    server.join()
    assert capfd.readouterr() == ("", "")  # paramiko's own complaints are for its log alone


def asked(client: Client, sshd: Sshd) -> subprocess.CompletedProcess[str]:
    """What ssh itself makes of that host."""
    argv = ["ssh", "-F", client.network.config, "-o", "BatchMode=yes", sshd.name, "echo in"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


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


@pytest.mark.parametrize("mode", [0o666, 0o640, 0o604])
def test_a_key_that_others_may_read_is_ignored_as_by_ssh(client: Client, tmp_path: Path, mode: int) -> None:
    sshd = client.network.add()
    key = tmp_path / "key"
    shutil.copy(client.network.key, key)
    shutil.copy(f"{client.network.key}.pub", f"{key}.pub")
    key.chmod(mode)
    client.network.key = key
    said = asked(client, sshd)
    assert said.returncode == 255
    assert f"Permissions {mode:04o} for '{key}' are too open." in said.stderr
    error = client.refusal(sshd.host())
    assert f"there is no key to offer; skipped {key}: Permissions {mode:04o} are too open" in error.message
    assert error.hint == f"chmod 600 {key}"
    [note] = client.connector([sshd.host()]).notes
    assert note.startswith(f"{key}: Permissions {mode:04o} are too open")
    key.chmod(0o600)
    assert everything(client.open(sshd.host(), "echo in")) == b"in\n"


def test_a_key_of_another_user_and_one_that_an_agent_holds_may_be_read_by_others(
    client: Client, tmp_path: Path
) -> None:
    sshd = client.network.add()
    key = tmp_path / "key"
    shutil.copy(client.network.key, key)
    shutil.copy(f"{client.network.key}.pub", f"{key}.pub")
    agent = SshAgent(tmp_path, [client.network.key])
    try:
        key.chmod(0o644)
        client.network.key = key
        client.network.prepend(f"IdentityAgent {agent.socket}")
        assert everything(client.open(sshd.host(), "echo in")) == b"in\n"
    finally:
        agent.close()
    if os.geteuid() == 0:  # ssh looks at the mode of the user's own files alone
        os.chown(key, 65534, 65534)
        assert asked(client, sshd).stdout == "in\n"
        assert everything(client.open(sshd.host(), "echo in")) == b"in\n"


def test_a_server_that_allows_no_session(client: Client) -> None:
    sshd = client.network.add(options=["MaxSessions 0"])
    error = client.refusal(sshd.host())
    assert "refused a session" in error.message
    assert "MaxSessions" in error.hint


ERRORS = [
    error
    for error in vars(paramiko.ssh_exception).values()
    if isinstance(error, type)
    and issubclass(error, Exception)
    and error.__module__ == "paramiko.ssh_exception"
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_exception_of_paramiko_becomes_a_sentence(kind: type[Exception], tmp_path: Path) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "BadAuthenticationType": ("why", ["password"]),
        "PartialAuthentication": (["password"],),
        "ChannelException": (2, "why"),
        "BadHostKeyException": ("gpu01", paramiko.RSAKey.generate(1024), paramiko.RSAKey.generate(1024)),
        "ProxyCommandFailure": ("nc", "why"),
        "NoValidConnectionsError": ({("10.0.0.1", 22): OSError(111, "refused")},),
    }
    target = simple_target(tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = Stream(ours)
        error = kind(*arguments.get(kind.__name__, ("why",)))
        found = explained(error, TunedTransport(stream), target, stream, Deadline(9))
    assert isinstance(found, ConnectError)
    assert found.message
    assert found.hint


@pytest.mark.parametrize("number", [e for e in range(1, 134) if not os.strerror(e).startswith("Unknown")])
def test_every_error_of_the_system_becomes_a_sentence(number: int, tmp_path: Path) -> None:
    found = unreached(OSError(number, os.strerror(number)), simple_target(tmp_path), Deadline(9))
    assert found.message
    assert found.hint


def simple_target(directory: Path) -> Target:
    config = directory / "config"
    config.write_text("")
    return SshConfig(config).target(Host(name="gpu01"))
