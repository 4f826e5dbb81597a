"""`connection: openssh`: what its log says, and who says how hosts are reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tflaunch.hosts import load
from tflaunch.protocol.errors import HostfileError, UsageError
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.openssh_failures import why_not
from tflaunch.ssh.openssh_log import SshLog
from tflaunch.ssh.ssh_config import Target

# -- the hostfile --------------------------------------------------------------------------------------------


def test_who_says_how_hosts_are_reached(tmp_path: Path) -> None:
    def ways(source: str, said: str = "", environ: str = "") -> list[str]:
        return [
            host.connection
            for host in load(source, environ={"TFLAUNCH_CONNECTION": environ}, connection=said).hosts
        ]

    assert ways("a,localhost") == ["ssh", "local"]
    assert ways("a,localhost", "openssh") == ["openssh", "local"]
    assert ways("a,localhost", environ="openssh") == ["openssh", "local"]
    assert ways("a,localhost", "ssh", "openssh") == ["ssh", "local"]
    path = tmp_path / "hosts.yaml"
    path.write_text("defaults: {connection: openssh}\nhosts: [a, {name: b, connection: ssh}]\n")
    assert ways(str(path)) == ["openssh", "ssh"]
    path.write_text("hosts: [a, {name: b, connection: ssh}, {name: c, connection: local}]\n")
    assert ways(str(path), environ="openssh") == ["openssh", "ssh", "local"]
    with pytest.raises(UsageError, match="--connection 'telnet' is not ssh or openssh"):
        ways("a", "telnet")
    with pytest.raises(UsageError, match="TFLAUNCH_CONNECTION 'local' is not ssh or openssh"):
        ways("a", environ="local")
    path.write_text("hosts: [{name: a, connection: ssh2}]\n")
    with pytest.raises(HostfileError, match="connection: 'ssh2' is not ssh, openssh or local"):
        load(str(path))


# -- its log -------------------------------------------------------------------------------------------------


TARGET = Target(
    "gpu01",
    "gpu01",
    22,
    "me",
    (),
    False,
    False,
    "",
    (),
    (),
    "",
    "check",
    False,
    "any",
    None,
    ssh="ssh {host}",
)
BEFORE = "debug1: Connecting to gpu01 [10.0.0.1] port 22.\r\ndebug1: Connection established.\r\n"
BANNER = "debug1: Remote protocol version 2.0, remote software version OpenSSH_9.6\r\n"
KEYS = "debug1: Authenticating to gpu01:22 as 'me'\r\ndebug1: SSH2_MSG_NEWKEYS received\r\n"


def nothing_shown() -> tuple[str, str]:
    return "", ""


def why(text: str, code: int | None = 255, stderr: str = "") -> tuple[str, bool]:
    log = SshLog()
    log.hear(stderr.encode())
    for at_once in (text[:20], text[20:]):  # however it comes
        log.feed(at_once.encode())
    log.end()
    error = why_not(log, code, log.known(TARGET), Deadline(5), nothing_shown)
    return getattr(error, "message", type(error).__name__), getattr(error, "absent", False)


@pytest.mark.parametrize(
    ("text", "code", "said", "absent"),
    [
        ("ssh: connect to host gpu01 port 22: No route to host\r\n", 255, "there is no route to it", True),
        (
            "ssh: connect to host gpu01 port 22: Network is unreachable\r\n",
            255,
            "no route to its network",
            True,
        ),
        ("ssh: connect to host gpu01 port 22: Connection timed out\r\n", 255, "no answer on port 22", True),
        ("ssh: connect to host gpu01 port 22: Host is down\r\n", 255, "there is no route to it", True),
        ("ssh: connect to host gpu01 port 22: Permission denied\r\n", 255, "this machine forbids", False),
        ("", None, "ssh did not begin to connect within 5 s", False),
        (BEFORE.partition("debug1: Connection")[0], None, "no answer on port 22 within 5 s", True),
        (BEFORE, None, "connected, but no SSH banner on port 22 within 5 s", False),
        (BEFORE + BANNER, None, "the key exchange did not end within 5 s", False),
        (BEFORE + BANNER + KEYS, None, "the login did not end within 5 s", False),
        ("debug1: Executing proxy command: exec nc\r\n", None, "nothing came through its ProxyJump", False),
        (BEFORE + "kex_exchange_identification: Connection closed by remote host\r\n", 255, "Dropped", False),
        (BEFORE + "ssh_exchange_identification: Connection closed by remote host\r\n", 255, "Dropped", False),
        (
            BEFORE
            + BANNER
            + KEYS
            + "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\r\n",
            255,
            "too many authentication failures",
            False,
        ),
        (
            BEFORE
            + BANNER
            + KEYS
            + "debug1: Offering public key: /etc/passwd ED25519 SHA256:x\r\n"
            + "debug1: Server accepts key: /etc/passwd ED25519 SHA256:x\r\n"
            + "me@gpu01: Permission denied (publickey).\r\n",
            255,
            "the server would take key /etc/passwd, but ssh could not sign with it",
            False,
        ),
        (
            BEFORE + BANNER + KEYS + "me@gpu01: Permission denied (publickey,gssapi-with-mic).\r\n",
            255,
            "user me: ssh had no key to offer; the server takes publickey, gssapi-with-mic",
            False,
        ),
        (
            BEFORE + BANNER + "Connection closed by 10.0.0.1 port 22\r\n",
            255,
            "during the key exchange",
            False,
        ),
        (BEFORE + BANNER + KEYS + "Connection reset by 10.0.0.1 port 22\r\n", 255, "during the login", False),
        ("", -9, "SIGKILL has ended ssh before the login", False),
        ("something new\r\n", 255, "ssh ended with exit status 255: something new", False),
    ],
)
def test_why_there_is_no_login(text: str, code: int | None, said: str, absent: bool) -> None:
    message, was_absent = why(text, code)
    assert said in message
    assert was_absent is absent


def test_a_master_whose_host_is_gone_is_ended_by_what_is_told() -> None:
    target = replace(TARGET, ssh="ssh -F cfg {host}")
    error = why_not(SshLog(), None, target, Deadline(5), nothing_shown)
    assert "`ssh -O exit -F cfg {host}` ends a ControlMaster" in error.hint  # type: ignore[attr-defined]


def test_what_the_far_side_says_is_told_apart_from_what_ssh_says() -> None:
    def words(text: str, code: int | None, stderr: str = "") -> str:
        log = SshLog("x")
        log.feed((KEYS + "debug1: Sending command: x\r\n").encode())
        log.hear(stderr.encode())
        log.feed(text.encode())
        log.end()
        return log.last_words(code, closed=False)

    status = "debug1: client_input_channel_req: channel 0 rtype exit-status reply 0\r\n"
    assert words(status, 255, "no newlin") == "exit status 255; it said: no newlin"
    assert words("Timeout, server gpu01 not responding.\r\n", 255) == (
        "the connection broke (Timeout, server gpu01 not responding)"
    )
    assert words("client_loop: send disconnect: Broken pipe\r\n", 255, "theirs\n") == (
        "the connection broke (client_loop: send disconnect: Broken pipe); it said: theirs"
    )
    assert words("", None, "theirs\n") == "theirs"
    assert len(words("", 1, "x" * 100_000)) < 5000


def test_a_finger_on_a_token_is_asked_for_in_the_words_that_came() -> None:
    message, _ = why(BEFORE + BANNER + KEYS, None, "Confirm user presence for key ED25519-SK SHA256:abc\n")
    assert message.endswith(
        "within 5 s; the last words were 'Confirm user presence for key ED25519-SK SHA256:abc'"
    )


# -- what a server writes into it ----------------------------------------------------------------------------

FORGED = (
    "debug1: Server host key: ssh-ed25519 SHA256:forged\r\n"
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
    "Offending ED25519 key in /home/me/.ssh/known_hosts:1\r\n"
    "debug1: Authenticating to forged:99 as 'forged'\r\n"
    "Host key /x revoked by file /forged\r\n"
    "ssh: Could not resolve hostname forged: Name or service not known\r\n"
    "debug1: SSH2_MSG_NEWKEYS received\r\n"
    "debug1: mux_client_request_session: master session id: 2\r\n"
    "debug1: Sending command: forged\r\n"
    "me@gpu01: Permission denied (forged).\r\n"
)
UNKNOWN = "debug1: Authenticating to gpu01:22 as 'me'\r\nHost key verification failed.\r\n"


def log_of(text: str, command: str = "tflaunch-agent 1 2") -> SshLog:
    log = SshLog(command)
    log.feed(text.encode())
    log.end()
    return log


@pytest.mark.parametrize("line", FORGED.splitlines())
def test_a_line_before_the_banner_is_read_as_the_server_s(line: str) -> None:
    quoted = f"debug1: kex_exchange_identification: banner line 0: {line}\r\n"
    log = log_of(BEFORE + quoted + BANNER + UNKNOWN)
    assert not log.logged_in
    assert (log.host_key, log.hostname, log.port, log.user) == ("", "gpu01", 22, "me")
    assert why(BEFORE + quoted + BANNER + UNKNOWN)[0] == "the server's host key is unknown"


@pytest.mark.parametrize("quote", ["debug1: Remote: x\r\n", "debug1: Remote: "])
def test_what_a_server_says_before_its_key_is_checked_is_no_word_of_ssh(quote: str) -> None:
    text = BEFORE + BANNER + quote + FORGED + UNKNOWN
    log = log_of(text)
    assert not log.logged_in
    assert log.meddled
    assert (log.host_key, log.hostname, log.user, log.later) == ("", "", "", [])
    message, absent = why(text)
    assert message.startswith("the server wrote into ssh's log before its key had been checked")
    assert "forged" not in message
    assert not absent


def test_a_certificate_ends_what_is_believed_of_the_key() -> None:
    certificate = 'debug1: Server host certificate: ssh-ed25519-cert-v01@openssh.com SHA256:x, serial 0 ID "'
    text = BEFORE + BANNER + certificate + "\r\n" + FORGED + '" CA ssh-ed25519 SHA256:y valid forever\r\n'
    log = log_of(text)
    assert not log.logged_in
    assert (log.host_key, log.hostname) == ("", "")
    assert "changed" not in why(text)[0].lower()
    assert "resolve" not in why(text)[0]
    # One that ssh believes is logged in to as any other.
    good = certificate + 'gpu01" CA ssh-ed25519 SHA256:y valid forever\r\n' + KEYS
    assert log_of(BEFORE + BANNER + good + "debug1: Sending command: tflaunch-agent 1 2\r\n").logged_in
    assert (
        "refused" in why(BEFORE + BANNER + good + OFFERED + "me@gpu01: Permission denied (publickey).\r\n")[0]
    )


OFFERED = "debug1: Offering public key: /etc/passwd ED25519 SHA256:x explicit\r\n"


def test_during_the_login_a_server_speaks_of_the_login_alone() -> None:
    text = BEFORE + BANNER + KEYS + "debug1: Remote: x\r\n" + FORGED.replace("NEWKEYS received", "x")
    log = log_of(text)
    assert not log.logged_in  # it does not know the command
    assert (log.hostname, log.port, log.user, log.host_key) == ("gpu01", 22, "me", "")
    message, absent = why(text)
    assert message.startswith("user me: the server takes no keys, only forged")
    assert not absent


def test_a_key_that_only_the_server_names_is_not_named() -> None:
    text = BEFORE + BANNER + KEYS + OFFERED + "debug1: Remote: x\r\n"
    text += "debug1: Offering public key: /nowhere/forged;id ED25519 SHA256:y\r\n"
    text += "debug1: Server accepts key: /nowhere/forged;id ED25519 SHA256:y\r\n"
    log = log_of(text + "me@gpu01: Permission denied (publickey).\r\n")
    error = why_not(log, 255, log.known(TARGET), Deadline(5), nothing_shown)
    assert "forged" not in f"{error} {getattr(error, 'hint', '')}"


def test_the_banner_and_the_command_are_not_read_as_the_log() -> None:
    log = log_of(BEFORE + BANNER + KEYS)
    log.hear(FORGED.encode())
    assert not log.logged_in
    log.feed(b"debug1: Sending command: tflaunch-agent 1 2\r\n")
    log.hear(b"debug1: client_input_channel_req: channel 0 rtype exit-signal reply 0\nTimeout, server x\n")
    assert log.logged_in
    assert log.last_words(255, closed=False).startswith(
        "the connection broke (ssh has not said why); it said: debug1:"
    )
