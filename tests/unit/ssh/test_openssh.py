"""`connection: openssh`: what its log says, and who says how hosts are reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tflaunch.hosts import load
from tflaunch.protocol.errors import HostfileError, UsageError
from tflaunch.ssh.config import Target
from tflaunch.ssh.deadline import Deadline
from tflaunch.ssh.openssh_failures import why_not
from tflaunch.ssh.openssh_log import SshLog

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


def why(text: str, code: int | None = 255) -> tuple[str, bool]:
    log = SshLog()
    for at_once in (text[:20], text[20:]):  # however it comes
        log.feed(at_once.encode())
    log.end()
    error = why_not(log, code, log.known(TARGET), Deadline(5))
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
        (
            BEFORE + BANNER + KEYS + "Confirm user presence for key ED25519-SK SHA256:abc\r\n",
            None,
            "the login did not end within 5 s; ssh said last: Confirm user presence for key",
            False,
        ),
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
            + "debug1: Offering public key: /k ED25519 SHA256:x\r\ndebug1: Server accepts key: /k ED25519 SHA256:x\r\n"
            + "me@gpu01: Permission denied (publickey).\r\n",
            255,
            "the server would take key /k, but ssh could not sign with it",
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
    error = why_not(SshLog(), None, target, Deadline(5))
    assert "`ssh -O exit -F cfg {host}` ends a ControlMaster" in error.hint  # type: ignore[attr-defined]


def test_what_the_far_side_says_is_told_apart_from_what_ssh_says() -> None:
    def words(text: str, code: int | None) -> str:
        log = SshLog()
        log.feed((KEYS + "debug1: Sending command: x\r\n" + text).encode())
        log.end()
        return log.last_words(code, closed=False)

    status = "debug1: client_input_channel_req: channel 0 rtype exit-status reply 0\r\n"
    assert words(f"no newlin{status}", 255) == "exit status 255; it said: no newlin"
    assert words("Timeout, server gpu01 not responding.\r\n", 255) == (
        "the connection broke (Timeout, server gpu01 not responding)"
    )
    assert words("theirs\nclient_loop: send disconnect: Broken pipe\r\n", 255) == (
        "the connection broke (client_loop: send disconnect: Broken pipe); it said: theirs"
    )
    assert words("theirs\n", None) == "theirs"
    assert len(words("x" * 100_000, 1)) < 5000
