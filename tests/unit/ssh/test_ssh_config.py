"""ssh_config as read here against what OpenSSH itself makes of it (`ssh -G`)."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh.known_hosts import KnownHosts
from tflaunch.ssh.ssh_config import SshConfig
from tflaunch.ssh.target import Target

CASES = {
    "empty": "",
    "first value wins": "Host gpu*\n  User a\nHost gpu01\n  User b\n  Port 2200\nHost *\n  Port 1\n",
    "negation": "Host * !gpu01\n  User a\nHost gpu01\n  User b\n",
    "equals signs and cases": "host=gpu01\n  hOsTnAmE = 10.0.0.1\n  PORT=22\n",
    "comments behind values": 'Port 2222 # the other one\nUser "a b" # quoted\nHostName %h.lab#not\n',
    "hostname tokens": "Host gpu01\n  HostName %h.lab.example\n",
    "several keys": "IdentityFile ~/.ssh/one\nHost gpu01\n  IdentityFile ~/.ssh/two\n  IdentitiesOnly yes\n",
    "key tokens": "IdentityFile %d/keys/%h-%r\nUser ann\nHostName 10.0.0.9\n",
    "known hosts": "UserKnownHostsFile ~/.ssh/a ~/.ssh/b\nGlobalKnownHostsFile /etc/x\nHashKnownHosts yes\n",
    "known hosts tokens": "UserKnownHostsFile %d/known/%n-%h\nHostName 10.0.0.9\n",
    "alias": "HostKeyAlias Cluster\nStrictHostKeyChecking accept-new\n",
    "strict off": "StrictHostKeyChecking no\n",
    "timeout": "ConnectTimeout 1m30s\n",
    "family": "AddressFamily inet6\n",
    "bind address": "BindAddress 127.0.0.2\n",
    "proxy command": "ProxyCommand nc -x socks:1080 %h %p\nPort 23\nHostName 10.0.0.9\n",
    "proxy command before jump": "ProxyCommand nc %h %p\nProxyJump bastion\n",
    "proxy command none": "Host gpu01\n  ProxyCommand none\nHost *\n  ProxyCommand nc %h %p\n",
    "match host": "Match host gpu*\n  User a\nMatch originalhost other\n  User b\nMatch all\n  Port 9\n",
    "match user": "User ann\nMatch user ann\n  Port 9\nMatch !user ann\n  Port 10\n",
    "match exec": "Match exec true\n  User yes\nMatch exec false\n  Port 9\n",
    "match final": "Host gpu01\n  HostName a.lab\nMatch final host *.lab\n  User late\n",
    "include": "Include included\nUser after\n",
    "include in a block": "Host other\n  Include plain\nHost *\n  Port 9\n",
    "include in the right block": "Host gpu01\n  Include plain\n  Port 5\nHost *\n  Port 9\n",
    "include by pattern": "Include conf.d/*\nPort 9\n",
    "include nothing": "Include missing\nPort 9\n",
    "include of nobody": "Include ~nosuchuser/x\nPort 9\n",
    "include a directory": "Include conf.d\nPort 9\n",
    "include what is not hidden": "Include hidden.d/*\nPort 9\n",
    "brackets are no class": "Host gpu[0]1\n  Port 8\nMatch host gpu[0-9]1\n  Port 7\n",
    "the first proxy command holds": "ProxyCommand nc %h %p\nProxyCommand none\n",
    "proxy command before the name": "ProxyCommand nc %h %% %n\nHostName %h.lab\n",
    "a value with a token in it": "ProxyCommand nc %h\nHostName a%%nb\n",
    "proxy command in quotes": 'ProxyCommand "nc" %h "%p"\n',
    "match host sees the whole name": "HostName %h.lab\nMatch host *.lab\n  User late\n",
    "a name with a percent sign": "HostName a%%b\nMatch final host a?b\n  User late\n",
    "match final all": "Match final all\n  User late\n",
    "match not": "Match !host other !final\n  User early\nMatch !originalhost gpu*\n  Port 5\n",
    "include in a match": "Match user nobody\n  Include plain\n  Port 5\nMatch host gpu01\n  Include plain\n  Port 6\n",
    "blocks in a file that a block includes": "Host gpu*\n  Include included\n  User own\nHost *\n  Port 9\n",
    "blocks in a file that no block includes": "Host other\n  Include included\n  User own\nHost *\n  Port 9\n",
    "a Match in a file in a Match": "Match host gpu01\n  Include matching\nMatch user late\n  Port 9\n",
    "match host by an equals sign": "Match host=gpu01 user = *\n  User a\n",
    "the name of a service": "Port ssh\n",
    "variables": "UserKnownHostsFile ${TFLAUNCH_LAB}/a%h ${TFLAUNCH_LAB}${TFLAUNCH_LAB}\nHostName 10.0.0.9\n",
    "no variable": "UserKnownHostsFile $TFLAUNCH_LAB/a $/b\nGlobalKnownHostsFile ${TFLAUNCH_LAB}/c\n",
    "match host before its name": "Match host 10.0.0.9\n  User late\nHost gpu01\n  HostName 10.0.0.9\n",
    "host in the final pass": "Host 10.0.0.9\n  User late\nHost gpu01\n  HostName 10.0.0.9\nMatch final\n  Port 5\n",
    "capital letters": "HostName GPU.Lab\nMatch final host gpu.*\n  User late\n",
    "unknown to be ignored": "IgnoreUnknown UseKeychain,Fancy*\nUseKeychain yes\nFancyThing a b\nPort 5\n",
    "other spellings": "IdentityFile2 /k/a\nKeepAlive yes\nDSAAuthentication yes\n",
    "small letters and quotes": "match HOST gpu01 user *\n  'port' 5\n".replace("'", '"'),
}
INCLUDED = {
    "included": "Host other\n  Port 1\nHost gpu01\n  Port 7\n",
    "plain": "User plain\n",
    "matching": "User late\nMatch originalhost gpu*\n  IdentityFile /k/a\nMatch originalhost x\n  IdentityFile /k/b\n",
    "conf.d/10": "Host gpu01\n  Port 10\n",
    "conf.d/20": "Port 20\nUser twenty\n",
    "hidden.d/.one": "Port 20\n",
}


@dataclass
class OpenSsh:
    """What `ssh -G` prints."""

    values: dict[str, list[str]]

    @classmethod
    def ask(cls, config: Path, *argv: str) -> OpenSsh:
        listing = subprocess.run(
            ["ssh", "-G", "-F", str(config), *argv], check=True, capture_output=True, text=True
        ).stdout
        values: dict[str, list[str]] = {}
        for line in listing.splitlines():
            key, _, value = line.partition(" ")
            values.setdefault(key, []).append(value)
        return cls(values)

    def one(self, key: str, default: str = "") -> str:
        return self.values.get(key, [default])[0]


@pytest.fixture
def ssh_dir(tmp_path: Path) -> Path:
    directory = tmp_path / ".ssh"
    directory.mkdir()
    for name, text in INCLUDED.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory


def target(config: Path, **settings: object) -> Target:
    return SshConfig(config).target(Host(name="gpu01", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_openssh_s(ssh_dir: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setenv("TFLAUNCH_LAB", "/lab")
    # Relative Includes are looked for in ~/.ssh.
    text = CASES[case].replace("Include ", f"Include {ssh_dir}/")
    config = ssh_dir / "config"
    config.write_text(text)
    ours, theirs = target(config), OpenSsh.ask(config, "gpu01")
    home = str(Path.home())

    def expanded(text: str) -> Path:
        known = {"%d": home, "%h": ours.hostname, "%r": ours.user, "%n": "gpu01"}
        for token, value in known.items():
            text = text.replace(token, value)
        return Path(text).expanduser()

    assert ours.hostname == theirs.one("hostname")
    assert ours.port == int(theirs.one("port"))
    assert ours.user == theirs.one("user")
    assert ours.identities_only == (theirs.one("identitiesonly") == "yes")
    assert ours.hash_known_hosts == (theirs.one("hashknownhosts") == "yes")
    assert ours.timeout_s == (
        None if theirs.one("connecttimeout") == "none" else int(theirs.one("connecttimeout"))
    )
    assert ours.family == theirs.one("addressfamily")
    assert ours.bind_address == theirs.one("bindaddress")
    assert (
        ours.strict
        == {"ask": "check", "accept-new": "accept-new", "false": "off"}[theirs.one("stricthostkeychecking")]
    )
    assert ours.known_hosts == tuple(expanded(file) for file in theirs.one("userknownhostsfile").split())
    assert ours.global_known_hosts == tuple(Path(file) for file in theirs.one("globalknownhostsfile").split())
    if ours.identities_named:
        assert ours.identities == tuple(expanded(file) for file in theirs.values["identityfile"])
    else:
        assert {str(path) for path in ours.identities} <= {
            str(expanded(f)) for f in theirs.values["identityfile"]
        }
    known = {"%": "%", "h": ours.hostname, "p": str(ours.port), "n": "gpu01", "r": ours.user}
    command = re.sub("%(.)", lambda token: known[token[1]], theirs.one("proxycommand"))
    assert ours.proxy_command == command
    if "hostkeyalias" in theirs.values:
        assert ours.host_key_name == theirs.one("hostkeyalias").lower()


def test_relative_includes_are_looked_for_in_the_user_s_directory(
    ssh_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "plain").write_text("User wrong\n")
    (elsewhere / "config").write_text("Include plain\n")
    assert target(elsewhere / "config").user == "plain"


def test_the_system_s_file_includes_from_its_own_directory(
    ssh_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    system = tmp_path / "etc/ssh_config"
    system.parent.mkdir()
    monkeypatch.setattr("tflaunch.ssh.ssh_config.SYSTEM_CONFIG", system)
    (system.parent / "plain").write_text("User system\n")
    system.write_text("Include plain\n")
    assert SshConfig().target(Host(name="gpu01")).user == "system"
    system.write_text("Include ~/plain\n")
    with pytest.raises(ConnectError, match=r"ssh_config:1: bad include path '~/plain'"):
        SshConfig()


def test_the_hostfile_wins_as_a_command_line_does(ssh_dir: Path) -> None:
    config = ssh_dir / "config"
    config.write_text(
        "User a\nPort 1\nIdentityFile ~/.ssh/a\nProxyCommand nc %h %p %r\nMatch user ann\n  HostName x\n"
    )
    ours = target(config, user="ann", port=2222, identity_file="~/.ssh/b")
    theirs = OpenSsh.ask(config, "-l", "ann", "-p", "2222", "-i", "~/.ssh/b", "gpu01")
    assert (ours.user, ours.port, ours.hostname) == ("ann", 2222, theirs.one("hostname"))
    assert ours.identities == (Path("~/.ssh/b").expanduser(), Path("~/.ssh/a").expanduser())
    assert ours.proxy_command == "nc x 2222 ann"
    assert ours.ssh == f"ssh -F {config} -l ann -p 2222 -i '~/.ssh/b' {{host}}"


def test_a_variable_in_the_hostfile_s_key_file_is_filled_in_too(
    ssh_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ssh_dir / "config"
    config.write_text("")
    monkeypatch.setenv("TFLAUNCH_LAB", "/lab")
    assert target(config, identity_file="${TFLAUNCH_LAB}/%n").identities == (Path("/lab/gpu01"),)
    with pytest.raises(
        ConnectError, match=r"hostfile: '\$\{TFLAUNCH_NOT\}/x' names the variable TFLAUNCH_NOT"
    ):
        target(config, identity_file="${TFLAUNCH_NOT}/x")


@pytest.mark.parametrize(
    ("config", "hops"),
    [
        ("ProxyJump none\n", []),
        ("Host gpu01\n  ProxyJump a,b:2022,ann@c\n", ["a:22", "b:2022", "ann@c:22"]),
        ("Host gpu01\n  ProxyJump ssh://ann@a:2022\n", ["ann@a:2022"]),
        ("Host gpu01\n  ProxyJump [fe80::1]:2022\n", ["fe80::1:2022"]),
        ("Host a\n  HostName 10.0.0.1\n  Port 2200\nHost gpu01\n  ProxyJump a\n", ["10.0.0.1:2200"]),
        # The first hop takes its own way; a later one is reached from the hop before it.
        (
            "Host a\n  ProxyJump x\nHost b\n  ProxyJump y\nHost gpu01\n  ProxyJump a,b\n",
            ["x:22", "a:22", "b:22"],
        ),
        ("Host *\n  ProxyJump a\n", ["a:22"]),
        ("Host gpu01\n  ProxyJump a\nHost *\n  ProxyCommand nc\n", ["a:22"]),
    ],
)
def test_jump_hosts_in_the_order_of_their_passing(ssh_dir: Path, config: str, hops: list[str]) -> None:
    file = ssh_dir / "config"
    file.write_text(config)
    ours = target(file)
    login = OpenSsh.ask(file, "nobody-special").one("user")
    said = [f"{'' if hop.user == login else hop.user + '@'}{hop.hostname}:{hop.port}" for hop in ours.jumps]
    assert said == hops
    assert not any(hop.jumps for hop in ours.jumps)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("Include loop\n", "loop: Too many recursive configuration includes"),
        (
            "Match localnetwork 10.0.0.0/8\n  Port 1\n",
            "config:1: tflaunch does not know Match 'localnetwork'",
        ),
        # What follows ended in a traceback.
        ("Match host\n", "config:1: Missing Match criteria for host"),
        ("User a\n\nMatch exec\n", "config:3: Missing Match criteria for exec"),
        ('Match host "x\n  User a\n', """config:1: invalid quotes: 'host "x'"""),
        ('Match exec "\n  User a\n', "config:1: invalid quotes"),
        ('Host "x\n', "config:1: invalid quotes"),
        ('UserKnownHostsFile "x\n', "config:1: invalid quotes"),
        ('Include "x\n', "config:1: invalid quotes"),
        ("Include " + "x" * 5000 + "\n", "config:1: bad include path"),
        ("Include folder*/fifo\n", "fifo: is not a regular file"),
        ("Include folder/large\n", "large: is larger than 4 MiB; is it an ssh_config?"),
        ("Include folder/binary\n", "binary:2: a binary file; is it an ssh_config?"),
        ("HostName %z\n", "unknown key %z in '%z'"),
        ("Port 0x16\n", "config:1: port '0x16': ssh takes no such value"),
        ("Port nosuch\n", "config:1: port 'nosuch': ssh takes no such value"),
        ("IdentitiesOnly perhaps\n", "config:1: identitiesonly 'perhaps': ssh takes no such value"),
        (
            "StrictHostKeyChecking perhaps\n",
            "config:1: stricthostkeychecking 'perhaps': ssh takes no such value",
        ),
        ("Nonsense yes\n", "config:1: Bad configuration option: 'nonsense'"),
        ("IgnoreUnknown other\nNonsense yes\n", "config:2: Bad configuration option: 'nonsense'"),
        ("Host other\n  Nonsense yes\n", "config:2: Bad configuration option: 'nonsense'"),
        ("User a\nCheckHostIP yes\n", "config:2: ssh_config sets checkhostip, which tflaunch cannot obey"),
        ("KnownHostsCommand /bin/true\n", "config:1: ssh_config sets knownhostscommand"),
        ("PubkeyAuthentication no\n", "config:1: ssh_config sets pubkeyauthentication"),
        ("BindInterface lo\n", "config:1: ssh_config sets bindinterface"),
        (
            "User ${USER}\n",
            "config:1: User '${USER}' is another account to one version of ssh than to another",
        ),
        ("Host other\nHost *\n  User %u\n", "config:3: User '%u' is another account to one version of ssh"),
        (
            "UserKnownHostsFile ${TFLAUNCH_NOT_SET}/kh\n",
            "config:1: '${TFLAUNCH_NOT_SET}/kh' names the variable TFLAUNCH_NO",
        ),
        (
            "User a\nIdentityFile ${TFLAUNCH_NOT_SET}/id\n",
            "config:2: '${TFLAUNCH_NOT_SET}/id' names the variable",
        ),
        ("CertificateFile ${TFLAUNCH_NOT_SET}/id\n", "config:1: '${TFLAUNCH_NOT_SET}/id' names the variable"),
        (
            "Host other\n  IdentityAgent ${TFLAUNCH_NOT_SET}/s\n",
            "config:2: '${TFLAUNCH_NOT_SET}/s' names the variable",
        ),
        ("IdentityAgent $a-b\n", "config:1: '$a-b' is no name of a variable"),
        ("IdentityFile ${HOME\n", "config:1: '${HOME' holds a `${` without a name or its `}`"),
        ("UserKnownHostsFile %z\n", "config:1: unknown key %z in '%z'"),
        ("UserKnownHostsFile ~nosuchuser/x\n", "config:1: no such user 'nosuchuser' in '~nosuchuser/x'"),
        ("ProxyCommand nc %d\n", "config:1: unknown key %d in 'nc %d'"),
        (
            "RevokedHostKeys ~/revoked\n",
            "config:1: RevokedHostKeys '~/revoked' is another file to one version of ssh",
        ),
        ("RevokedHostKeys ${HOME}/revoked\n", "config:1: RevokedHostKeys '${HOME}/revoked' is another file"),
        (
            "RevokedHostKeys /nowhere/x\n",
            "config:1: RevokedHostKeys /nowhere/x: No such file or directory; `ssh` refuses",
        ),
        ("Match user\n", "config:1: Missing Match criteria for user"),
        ("Match tagged x\n", "config:1: tflaunch does not know Match 'tagged'"),
        ('Host ""\n', "config:1: keyword host empty argument"),
        ("User a b\n", "config:1: keyword user extra arguments at end of line"),
        ("ProxyUseFdpass yes\n", "sets proxyusefdpass"),
        ("Port\n", "config:1: 'Port' is not a keyword and a value"),
    ],
)
def test_what_cannot_be_obeyed_is_said(ssh_dir: Path, config: str, said: str) -> None:
    file = ssh_dir / "config"
    file.write_text(config.replace("Include ", f"Include {ssh_dir}/"))
    (ssh_dir / "loop").write_text(f"Include {ssh_dir}/loop\n")
    (ssh_dir / "folder").mkdir()
    os.mkfifo(ssh_dir / "folder/fifo", 0o600)
    (ssh_dir / "folder/large").write_bytes(b"# " + bytes(5 << 20))
    (ssh_dir / "folder/binary").write_bytes(b"User a\nUser \0\n")
    with pytest.raises(ConnectError) as caught:
        target(file)
    assert said in caught.value.message
    assert caught.value.hint


def test_a_configuration_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert SshConfig().target(Host(name="gpu01")).hostname == "gpu01"
    with pytest.raises(ConnectError, match="No such file"):
        SshConfig(tmp_path / "missing")


def test_hashed_names_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHEEYQdoGBgzkfHBQ0vV9oEZkO5nUQ7Tg2vF0pC1F9xv"
    known.write_text(f"gpu01,10.0.0.1 {key}\n[gpu02]:2222 {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "gpu" not in known.read_text()
    hosts = KnownHosts([known])
    assert [line.line for line in hosts.lookup("gpu01")] == [1]
    assert len(hosts.lookup("10.0.0.1")) == len(hosts.lookup("[gpu02]:2222")) == 1
    assert hosts.lookup("gpu02") == []
    hosts.add("gpu03", "ssh-ed25519", b"blob", hashed=True)
    found = subprocess.run(
        ["ssh-keygen", "-F", "gpu03", "-f", str(known)], check=True, capture_output=True, text=True
    ).stdout
    assert f"found: line {hosts.lookup('gpu03')[0].line}" in found


@pytest.mark.parametrize("form", ["included", "home"])
@pytest.mark.parametrize(
    ("mode", "owner", "said"),
    [
        (0o666, None, "may be written by everybody (mode 0666)"),
        (0o602, None, "may be written by everybody (mode 0602)"),
        (0o664, 65534, "may be written by the group"),
        (0o644, 65534, "belongs to the user"),
        (0o644, None, ""),
        (0o400, None, ""),
    ],
)
def test_a_configuration_that_others_may_write_is_refused_as_by_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, form: str, mode: int, owner: int | None, said: str
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    config = home / ".ssh/config"
    config.write_text("User ann\n")
    if owner is not None:
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(config, 0 if mode == 0o664 else owner, owner)
    config.chmod(mode)
    named = None
    if form == "included":
        named = tmp_path / "named"
        named.write_text(f"Include {config}\n")
        named.chmod(0o666)  # what the user has named counts, to ssh too
        asked = subprocess.run(
            ["ssh", "-G", "-F", named, "gpu01"], capture_output=True, text=True, check=False
        )
        assert ("Bad owner or permissions" in asked.stderr) == bool(said)
    if not said:
        assert SshConfig(named).target(Host(name="gpu01")).user == "ann"
        return
    with pytest.raises(ConnectError) as caught:
        SshConfig(named)
    assert f"Bad owner or permissions on {config}: it {said}" in caught.value.message
    assert f"chmod go-w {config}" in caught.value.hint


def test_the_file_of_the_system_counts_whoever_may_write_it_as_to_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, included = tmp_path / "ssh_config", tmp_path / "included"
    system.write_text("User ann\n")
    system.chmod(0o666)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tflaunch.ssh.ssh_config.SYSTEM_CONFIG", system)
    assert SshConfig().target(Host(name="gpu01")).user == "ann"
    included.touch(0o644)
    included.chmod(0o666)
    system.write_text(f"Include {included}\nUser ann\n")
    with pytest.raises(ConnectError, match="Bad owner or permissions"):
        SshConfig()
