"""The parsers of what SSH reads, given anything: no exception but the documented one; what is valid as ssh takes it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tflaunch.hosts import Host
from tflaunch.inputs import hostnames
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.ssh.config_lines import split
from tflaunch.ssh.keys import Keys
from tflaunch.ssh.known_hosts import KnownHosts
from tflaunch.ssh.ssh_config import SshConfig
from tflaunch.ssh.target import Target

WORDS = [
    *("Host", "Match", "Include", "User", "Port", "HostName", "ProxyCommand", "ProxyJump", "IdentityFile"),
    *("UserKnownHostsFile", "ConnectTimeout", "CanonicalizeHostname", "CanonicalizeMaxDots", "IdentityAgent"),
    *(
        "StrictHostKeyChecking",
        "SendEnv",
        "host",
        "originalhost",
        "user",
        "localuser",
        "all",
        "final",
        "canonical",
    ),
    *(
        "!host",
        "gpu01",
        "gpu*",
        "!gpu?",
        "[a-",
        "[z-a]",
        "yes",
        "no",
        "none",
        "~/x",
        "~nosuchuser/x",
        "22",
        "-1",
    ),
    *("1m30s", "%h", "%%", "%", "%z", "%n.lab", "#", '"', "'", "\\", "=", ",", "\0", "\r", "\t"),
]
LINES = st.lists(
    st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), max_size=6).map(" ".join), max_size=8
).map("\n".join)


@contextlib.contextmanager
def file(content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config"
        path.write_bytes(content)
        yield path


@given(LINES)
@settings(max_examples=400)
@example('Match host "x')
@example('Match exec "')
@example("Match host")
@example("Include ~nosuchuser/x")
@example("Include " + "/a" * 5000)
@example("Include /" + "a" * 300)
@example("Include **x")
@example("Include /")
@example("Include [")
@example("CanonicalizeHostname yes\nCanonicalizeMaxDots x")
@example("CanonicalizeHostname yes")
@example("Host [z-a]*\n Port 1")
@example("User a\0b")
@example("HostName %")
@example("ProxyJump @")
@example("ProxyJump a:99999999999999999999")
@example("Port 99999999999999999999999")
@example("ConnectTimeout \u0663")
@example("Port \u00b2")
@example("UserKnownHostsFile 'a")
@example("IdentityAgent $\0")
@example("Include " + "/a*" * 1500)
@example("Port " + "9" * 5000)
@example("ProxyJump a:" + "9" * 5000)
@example("ConnectTimeout " + "9" * 400)
def test_any_ssh_config_is_read_or_refused_with_a_sentence(text: str) -> None:
    with file(text.encode("utf-8", "surrogatepass")) as path:
        try:
            target = SshConfig(path).target(Host(name="gpu01"))
        except ConnectError as error:
            assert error.message
            assert error.hint
        else:
            assert 0 < target.port < 65536


@given(st.binary(max_size=200))
def test_any_bytes_are_no_more_than_a_broken_ssh_config(content: bytes) -> None:
    with file(content) as path, contextlib.suppress(ConnectError):
        SshConfig(path).target(Host(name="gpu01"))


PLAIN = st.text(st.sampled_from("abcXY019._-"), min_size=1, max_size=6).map(
    "h{}".format
)  # no number: an address
QUOTED = st.one_of(PLAIN, PLAIN.map('"{}"'.format), PLAIN.map("'{}'".format))
PATTERN = st.one_of(QUOTED, st.sampled_from(["*", "gpu*", "gpu0?", "!gpu*", "g[p]u01", "gpu01", '"gpu01"']))
SETTING = st.one_of(
    st.tuples(st.just("User"), QUOTED),
    st.tuples(st.just("Port"), st.integers(1, 65535).map(str)),
    st.tuples(st.just("HostName"), st.one_of(QUOTED, st.sampled_from(["%h.lab", "a%%b", "%h-%h"]))),
    st.tuples(st.just("ProxyCommand"), st.sampled_from(["nc %h %p", "nc %%h '%r'", 'x "a b" # c', "none"])),
)
BLOCK = st.one_of(
    st.tuples(st.just("Host"), st.lists(PATTERN, min_size=1, max_size=3).map(" ".join)),
    st.tuples(
        st.sampled_from(["Match host", "Match originalhost", "Match user"]),
        st.sampled_from(["gpu*", "*", "x"]),
    ),
    st.just(("Match", "all")),
)
LINE = st.tuples(
    st.one_of(SETTING, SETTING, BLOCK),
    st.sampled_from([" ", "  ", "\t", " = ", "="]),
    st.sampled_from(["", " ", " # c"]),
)


def is_command(key: str) -> bool:
    return key == "ProxyCommand"


@given(st.lists(LINE, max_size=8))
@settings(max_examples=80)
def test_a_valid_ssh_config_means_what_it_means_to_ssh(lines: list[tuple[tuple[str, str], str, str]]) -> None:
    text = "".join(
        f"{key}{' ' if key.startswith('Match') else gap}{value}{'' if is_command(key) else end}\n"
        for (key, value), gap, end in lines
    )
    with file(text.encode()) as path:
        asked = subprocess.run(
            ["ssh", "-G", "-F", path, "gpu01"], capture_output=True, text=True, check=False
        )
        assert asked.returncode == 0, (text, asked.stderr)
        theirs = dict(line.split(" ", 1) for line in reversed(asked.stdout.splitlines()))
        ours = SshConfig(path).target(Host(name="gpu01"))
    # ssh writes names in small letters.
    assert (ours.user, str(ours.port)) == (theirs["user"], theirs["port"]), text
    assert ours.hostname.lower() == theirs["hostname"].lower(), text
    said = theirs.get("proxycommand", "")
    tokens = {"%%": "%", "%h": ours.hostname, "%p": str(ours.port), "%r": ours.user}
    expected = "".join(tokens.get(part, part) for part in _tokens(said))
    assert ours.proxy_command == expected, text


def _tokens(text: str) -> list[str]:
    parts = []
    while text:
        size = 2 if text[0] == "%" else 1
        parts.append(text[:size])
        text = text[size:]
    return parts


@given(st.text(st.sampled_from("ab \t\"'\\#"), max_size=12))
@settings(max_examples=150)
def test_a_line_is_cut_into_words_where_ssh_cuts_it(text: str) -> None:
    with file(f"HostName a{text}\n".encode()) as path:
        asked = subprocess.run(
            ["ssh", "-G", "-F", path, "gpu01"], capture_output=True, text=True, check=False
        )
    try:
        words = split(f"a{text}".rstrip())
    except ValueError:
        assert "invalid quotes" in asked.stderr
        return
    if len(words) > 1:
        assert "extra arguments" in asked.stderr
    else:
        assert f"\nhostname {words[0].lower()}\n" in asked.stdout


@given(st.binary(max_size=300))
@example(b"gpu01 ssh-ed25519 \xff\n")
@example(b"|1|a|b|c ssh-ed25519 AAAA\n|1|!!|== ssh-rsa AAAA\n")
@example(b"@cert-authority\n@revoked a\n* ssh-rsa AAAA\n![[]*,a[b ssh-rsa AAAA\n")
def test_any_known_hosts_is_read(content: bytes) -> None:
    with file(content) as path:
        known = KnownHosts([path])
        for name in ("gpu01", "[gpu01]:2222", "a[b"):
            known.lookup(name)


def target_with(path: Path) -> Target:
    return SshConfig(Path(os.devnull)).target(Host(name="gpu01", identity_file=str(path)))


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda data: KEY_HEAD + data)))
@settings(max_examples=200)
@example(b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----\n")
@example(b"-----BEGIN RSA PRIVATE KEY-----\n\n-----END RSA PRIVATE KEY-----\n")
@example(b"ssh-ed25519\n")
def test_any_file_as_a_key_is_a_key_or_a_reason(content: bytes) -> None:
    with file(content) as path:
        path.chmod(0o600)
        target = target_with(path)
        offers = Keys([target], None).offers(target)
        assert not offers.keys
        assert str(path) in offers.skipped[0]


KEY_HEAD = b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA"


@given(st.text(max_size=30))
@example("[" * 1000)
@example("a[1-")
@example("a[٣-٤]")
@example("a[1-999999999999999999]" * 3)
def test_any_text_as_host_names_is_names_or_a_sentence(text: str) -> None:
    for read in (hostnames.expand, hostnames.check_machine, hostnames.check_user):
        with contextlib.suppress(UsageError, ValueError):
            read(text)
    hostnames.fold(hostnames.split(text)[0][1:2])


ASCII = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=8)


@pytest.mark.parametrize("what", ["user", "host"])
@given(text=ASCII)
@settings(max_examples=150)
@example(text="-oProxyCommand=id")
@example(text="a\\")
@example(text="a\\b")
@example(text="a -b")
@example(text="a b")
@example(text="x$IFS-o")
def test_what_ssh_refuses_on_its_command_line_is_refused(what: str, text: str) -> None:
    if what == "host" and ("@" in text or text.startswith("ssh://")):
        return  # more than a host
    words = ["-l", text, "--", "gpu01"] if what == "user" else ["--", text]
    asked = subprocess.run(
        ["ssh", "-G", "-F", os.devnull, *words], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    refused = b"contains invalid characters" in asked.stderr
    check = hostnames.check_user if what == "user" else hostnames.check_machine
    try:
        check(text)
    except ValueError as error:
        words_of_ssh = asked.stderr.decode().strip().splitlines()[-1:] if refused else []
        assert all(each in str(error) for each in words_of_ssh)
        assert refused or (
            what == "user" and "$" in text
        )  # `x$IFS-oProxyCommand=...` is two words of a shell
    else:
        assert not refused
