"""What ssh_config and known_hosts say, by tflaunch's own client and by `ssh` itself, against a real sshd.

tflaunch never connects where `ssh` refuses; where `ssh` connects, so does tflaunch, or it proposes
`connection: openssh`.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sshd import SshAgent, Sshd, SshNetwork, make_key, public
from tests.support.wires import Client, everything
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.ssh_config import SshConfig


@pytest.fixture
def client(network: SshNetwork) -> Iterator[Client]:
    client = Client(network)
    yield client
    client.close()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that $TFLAUNCH_LAB names; the current one is another, empty one."""
    directory = tmp_path / "lab"
    directory.mkdir()
    monkeypatch.setenv("TFLAUNCH_LAB", str(directory))
    monkeypatch.delenv("TFLAUNCH_NOT_SET", raising=False)
    current = tmp_path / "current"
    current.mkdir()
    monkeypatch.chdir(current)
    return directory


def asked(client: Client, sshd: Sshd, *options: str) -> tuple[bool, str]:
    """Whether `ssh` logs in, and its log."""
    argv = [
        "ssh",
        "-vv",
        "-F",
        str(client.network.config),
        "-o",
        "BatchMode=yes",
        *options,
        sshd.name,
        "echo in",
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
    )
    return done.stdout == "in\n", done.stderr


def tried(client: Client, sshd: Sshd, *, accept_new: bool = False) -> ConnectError | None:
    """Why tflaunch does not log in; None: it does."""
    try:
        assert everything(client.open(sshd.host(), "echo in", accept_new=accept_new)) == b"in\n"
    except ConnectError as error:
        return error
    return None


def agree(client: Client, sshd: Sshd, *, accept_new: bool = False) -> None:
    """Ask both."""
    mode = ("-o", "StrictHostKeyChecking=accept-new") if accept_new else ()
    files = [path for path in (client.network.known_hosts,) if path.exists()]
    before = [path.read_bytes() for path in files]
    connects, log = asked(client, sshd, *mode)
    for path, content in zip(files, before, strict=True):  # each of the two meets it as it was
        path.write_bytes(content)
    error = tried(client, sshd, accept_new=accept_new)
    for path, content in zip(files, before, strict=True):
        path.write_bytes(content)
    if connects:
        stricter = error is not None and (
            # Where a new key cannot be kept, ssh goes on without it.
            "could not be written" in error.message
            # One that is revoked for the name without the port it takes as a new one for the port, with a warning.
            or ("has revoked" in error.message and "REVOKED HOST KEY" in log)
        )
        assert error is None or "connection: openssh" in error.hint or stricter, (str(error), log)
    else:
        assert error is not None, log


# -- files that ssh_config names -----------------------------------------------------------------------------


NAMED = [
    "${TFLAUNCH_LAB}/key",
    "${TFLAUNCH_LAB}/%n-%h-%p-%r-%u-%i-%d-%L-%l-%k-%C-%%-$X-${TFLAUNCH_LAB}",
    "${TFLAUNCH_NOT_SET}/key",
    "${TFLAUNCH_LAB",
    "${}",
    "$TFLAUNCH_LAB/key",
    "%z",
    "%j",
    "%",
    "~nosuchuser/key",
    "'${TFLAUNCH_LAB}/a key'",
    "rel/key",
    "none",
    "NONE",
]


@pytest.mark.parametrize("name", [*NAMED, "~/.ssh/nothing"])
def test_the_name_of_a_key_file_is_the_one_of_ssh(client: Client, lab: Path, name: str) -> None:
    sshd = client.network.add()
    client.network.prepend(f"IdentityFile {name}")
    connects, log = asked(client, sshd)
    theirs = re.findall(r"debug1: identity file (.*) type -?\d", log)
    mine = client.network.config
    try:
        ours = SshConfig(mine).target(sshd.host()).identities
    except ConnectError as error:
        assert not connects, log
        assert f"{mine}:1: " in error.message
        return
    home = pwd.getpwuid(os.getuid()).pw_dir  # which is ssh's, whatever $HOME says
    named = [path.replace(home, str(Path.home())) for path in theirs if not path.endswith("-cert")]
    assert [str(path) for path in ours] == named
    agree(client, sshd)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    "keyword", ["UserKnownHostsFile", "GlobalKnownHostsFile", "CertificateFile", "IdentityAgent"]
)
def test_no_file_has_ssh_refuse_and_tflaunch_connect(
    client: Client, lab: Path, keyword: str, name: str
) -> None:
    sshd = client.network.add(known=False)
    (lab / "key").write_text(sshd.known_hosts_line())
    client.network.prepend(f"{keyword} {name}")
    if keyword == "IdentityAgent":
        client.network.known_hosts.write_text(sshd.known_hosts_line())
    agree(client, sshd)
    agree(client, sshd, accept_new=True)
    assert not [entry for entry in Path.cwd().iterdir() if entry.name.startswith("$")]


def test_a_revoked_key_in_a_file_that_a_variable_names_is_refused(client: Client, lab: Path) -> None:
    sshd = client.network.add(known=False)
    (lab / "kh").write_text("@revoked * " + " ".join(public(sshd.host_key).split()[:2]) + "\n")
    client.network.prepend("UserKnownHostsFile ${TFLAUNCH_LAB}/kh")
    assert not asked(client, sshd, "-o", "StrictHostKeyChecking=accept-new")[0]
    error = client.refusal(sshd.host(), accept_new=True)
    assert f"host key that {lab}/kh:1 has revoked" in error.message
    assert not list(Path.cwd().iterdir())


def test_a_new_key_goes_where_a_variable_leads(client: Client, lab: Path) -> None:
    sshd = client.network.add(known=False)
    client.network.prepend("UserKnownHostsFile ${TFLAUNCH_LAB}/%n")
    client.open(sshd.host(), "true", accept_new=True).close()
    assert (lab / sshd.name).read_text() == sshd.known_hosts_line()
    assert not list(Path.cwd().iterdir())


def test_a_directory_that_is_not_there_is_not_made(client: Client, lab: Path) -> None:
    sshd = client.network.add(known=False)
    client.network.prepend("UserKnownHostsFile ${TFLAUNCH_LAB}/new/known $TFLAUNCH_LAB/known")
    error = client.refusal(sshd.host(), accept_new=True)
    assert (
        f"the new host key could not be written to {lab}/new/known: No such file or directory"
        in error.message
    )
    assert not list(lab.iterdir())
    assert not list(Path.cwd().iterdir())


# -- known_hosts, revoked keys -------------------------------------------------------------------------------


def test_known_hosts_say_to_tflaunch_what_they_say_to_ssh(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add(known=False)
    kind, key = public(sshd.host_key).split()[:2]
    other = public(make_key(tmp_path / "other")).split()[1]
    rsa = " ".join(public(make_key(tmp_path / "rsa", kind="rsa")).split()[:2])
    own, address = f"[{sshd.address}]:{sshd.port}", sshd.address
    good = f"{kind} {key}"
    wrong = f"{kind} {other}"
    files = [
        f"{own} {good}",
        f"{own} {wrong}",
        f"{own} {rsa}",
        f"{address} {good}",
        f"{own} {wrong}\n{address} {good}",
        f"{own} {rsa}\n{address} {good}",
        f"{own} {good}\n@revoked {address} {good}",
        f"{address} {good}\n@revoked {address} {good}",
        f"{own} {wrong}\n{own} {good}",
        f"@revoked * {good}",
        f"@revoked {own} {good}\n{own} {good}",
        f"@revoked {own} {wrong}\n{own} {good}",
        f"@revoked {own} {rsa}\n{own} {good}",
        f"@revoked other {good}\n{own} {good}",
        f"@revoked @revoked {own} {good}\n{own} {good}",
        f"@REVOKED {own} {good}\n{own} {good}",
        f"@foo {own} {good}",
        f"@cert-authority {own} {good}",
        f"{own} {rsa}\n@cert-authority * {wrong}",
        f"{address}:22 {good}",
        f"[{address}]:22 {good}",
        f"  {own}\t\t {good}  a comment",
        f"[127.0.0.*]:*,!{own} {good}",
        f"{own},!{own} {good}",
        f"!{own},{own} {good}",
        f"!other,[127.0.0.?]:* {good}",
        f"[127.0.0.[0-9]]:* {good}",
        f"{own},, {good}",
        f"{own} ssh-rsa {key}",
        f"{own} {good}==",
        f"{own} {kind} {key[:-4]}",
        f"{own}\x0b {good}",
        f"{own}\u00a0 {good}",
        f"{own},x y {good}",
        f"{own} {good}\r",
        f"{own}\n {good}",
        f"#{own} {good}",
        f"{own} 2048 35 1234 x\n{own} {good}",
        f"|1|AAAA|AAAA {good}\n{own} {good}",
        f"|1|!!|== {good}",
    ]
    for text in files:
        client.network.known_hosts.write_text(text + "\n")
        for accept_new in (False, True):
            agree(client, sshd, accept_new=accept_new)


def test_hashed_names_say_to_tflaunch_what_they_say_to_ssh(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add(known=False)
    known = client.network.known_hosts
    good = " ".join(public(sshd.host_key).split()[:2])
    wrong = " ".join(public(make_key(tmp_path / "other")).split()[:2])
    own = f"[{sshd.address}]:{sshd.port}"
    lines = (f"{own} {good}", f"{own} {wrong}", f"{sshd.address} {good}", f"x {wrong}\n{own} {good}")
    for text in (*lines, f"cluster {good}", f"{own} {wrong}\ncluster {good}"):
        known.write_text(text + "\n")
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
        assert sshd.address not in known.read_text()
        known.write_text(known.read_text() + f"@revoked elsewhere {good}\n")
        for alias in ("", "HostKeyAlias cluster", "HostKeyAlias Cluster"):
            client.network.prepended = alias + "\n"
            agree(client, sshd)
    known.write_text(f"@revoked {own} {good}\n{own} {good}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    client.network.prepended = ""
    agree(client, sshd)


def test_an_alias_stands_for_itself(client: Client, tmp_path: Path) -> None:
    """Neither the port nor the address counts beside it."""
    sshd = client.network.add(known=False)
    good = " ".join(public(sshd.host_key).split()[:2])
    wrong = " ".join(public(make_key(tmp_path / "other")).split()[:2])
    client.network.prepend("HostKeyAlias cluster")
    for name in (
        "cluster",
        "[cluster]:22",
        f"[cluster]:{sshd.port}",
        sshd.address,
        f"[{sshd.address}]:{sshd.port}",
        "CLUSTER",
        "c*",
    ):
        for key in (good, wrong):
            client.network.known_hosts.write_text(f"{name} {key}\n")
            agree(client, sshd)
            agree(client, sshd, accept_new=True)


def test_revoked_host_keys_are_read_or_proposed_to_ssh(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add()
    good = " ".join(public(sshd.host_key).split()[:2])
    wrong = " ".join(public(make_key(tmp_path / "other")).split()[:2])
    revoked = tmp_path / "revoked"
    client.network.prepend(f"RevokedHostKeys {revoked}")
    agree(client, sshd)  # no such file: every host is refused
    for text in (
        "",
        f"{wrong}\n",
        f"# x\n\n {wrong} a comment\n{good}\n",
        f"nonsense\n{wrong}\n",
        f"{good}\nnonsense\n",
        f"* {good}\n",
    ):
        revoked.write_text(text)
        agree(client, sshd)
    revoked.write_text(f"{wrong}\n")
    assert tried(client, sshd) is None
    revoked.write_text(f"{good}\n")
    assert f"host key that {revoked} has revoked" in client.refusal(sshd.host(), accept_new=True).message
    for key in (tmp_path / "other", sshd.host_key):
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(revoked), f"{key}.pub"], check=True)
        agree(client, sshd)
        error = client.refusal(sshd.host())
        assert f"RevokedHostKeys {revoked} is a key revocation list" in error.message
        assert f"{client.network.config}:1: " in error.message


@pytest.mark.parametrize("name", ["~/revoked", "%d/revoked", "${TFLAUNCH_LAB}/revoked"])
def test_a_file_of_revoked_keys_whose_name_depends_on_the_version_is_left_to_ssh(
    client: Client, lab: Path, name: str
) -> None:
    sshd = client.network.add()
    client.network.prepend(f"RevokedHostKeys {name}")
    error = client.refusal(sshd.host())
    assert "is another file to one version of ssh than to another" in error.message
    agree(client, sshd)


# -- keys of an ssh-agent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["lab", "lab.pub"])
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_a_key_whose_private_half_may_be_in_the_agent_alone(
    client: Client, tmp_path: Path, *, named: str, private: bool, held: bool
) -> None:
    key = make_key(tmp_path / "keys/lab")
    sshd = client.network.add(authorized=[key])
    agent = SshAgent(tmp_path, [key] if held else [])
    try:
        if not private:
            key.unlink()
        client.network.key = key.with_name(named)
        client.network.prepend(f"IdentityAgent {agent.socket}")
        agree(client, sshd)
        if held:
            assert tried(client, sshd) is None
    finally:
        agent.close()


# -- algorithms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "Ciphers aes256-ctr",
        "Ciphers chacha20-poly1305@openssh.com",
        "Ciphers -aes*",
        "Ciphers -*ctr,*gcm*",
        "MACs hmac-sha2-256\nCiphers aes128-ctr",
        "MACs umac-128@openssh.com\nCiphers aes128-ctr",
        "KexAlgorithms curve25519-sha256@libssh.org",
        "KexAlgorithms sntrup761x25519-sha512@openssh.com",
        "HostKeyAlgorithms ssh-ed25519",
        "HostKeyAlgorithms rsa-sha2-512",
        "HostKeyAlgorithms -ssh-ed25519*",
        "HostKeyAlgorithms +ssh-rsa",
        "PubkeyAcceptedAlgorithms ssh-ed25519",
        "PubkeyAcceptedAlgorithms rsa-sha2-512",
        "PubkeyAcceptedKeyTypes -ssh-ed25519*",
        "PreferredAuthentications password",
        "PubkeyAuthentication no",
    ],
)
def test_algorithms_that_ssh_config_forbids_are_not_used(client: Client, line: str) -> None:
    sshd = client.network.add()
    client.network.prepend(line)
    agree(client, sshd)


def test_an_rsa_host_key_that_is_too_short_is_refused(client: Client, tmp_path: Path) -> None:
    sshd = client.network.add(host_key=make_key(tmp_path / "rsa", kind="rsa"))
    client.network.prepend("RequiredRSASize 8192")
    agree(client, sshd)
    assert "RequiredRSASize asks for 8192" in client.refusal(sshd.host()).message
    client.network.prepended = "RequiredRSASize 2048\n"
    assert tried(client, sshd) is None


def test_the_account_is_the_system_s(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sshd = client.network.add()
    monkeypatch.setenv("LOGNAME", "somebody")
    config = client.network.config.read_text().replace(f"  User {sshd.user}\n", "")
    path = client.network.config.with_name("without_user")
    path.write_text(config)
    assert SshConfig(path).target(sshd.host()).user == sshd.user
