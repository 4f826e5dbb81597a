"""Host keys and keys of users, against real sshds: the sentence for everything that can go wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.sshd import SshAgent, logins, make_key, public
from tests.support.wires import SESAME, Client, asked, everything
from tflaunch.protocol.errors import ConnectError

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
    assert error.hint.startswith(f"`ssh-add {client.network.key}` asks for its passphrase once"), (
        "it has a key"
    )


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
    connector = client.connector([host], timeout_s=10)
    agent.freeze()
    with pytest.raises(ConnectError, match=r"no answer to key .*locked .* within 10 s"):
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


# ---- files of keys


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
