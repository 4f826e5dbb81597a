"""Host keys that are unknown or have changed, on many hosts at once."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.support.screen import on_terminal, plain, shown
from tflaunch.protocol.errors import ConnectError, ConnectErrors
from tflaunch.ssh.refused_keys import RefusedKey, together


def unknown(fingerprint: str) -> RefusedKey:
    hint = f"compare {fingerprint}, then `ssh {{host}}` once"
    return RefusedKey("the key is unknown", hint, kind="ssh-ed25519", fingerprint=fingerprint)


def changed(name: str, line: int, path: str = "/k/known_hosts") -> RefusedKey:
    return RefusedKey(
        f"the key is not the one in {path}:{line}",
        f"compare SHA256:{line}, then `ssh-keygen -R '{name}' -f {path}`",
        kind="ssh-rsa",
        fingerprint=f"SHA256:{line}",
        place=f"{path}:{line}",
        known_as=name,
    )


def test_unknown_keys_of_many_hosts_have_a_line_each_and_one_next_step() -> None:
    failures = {f"gpu{index:02}": unknown(f"SHA256:{index}") for index in range(1, 65)}
    (row,) = together(failures)
    assert row.hosts == tuple(failures)
    assert row.lines[:2] == ("gpu01  SHA256:1", "gpu02  SHA256:2")
    assert len(row.lines) == 64
    assert row.hint == (
        "compare these fingerprints with what their administrator says (on each host: ssh-keygen -lf "
        "/etc/ssh/ssh_host_ed25519_key.pub), then --accept-new records them all"
    )
    err = shown(lambda reporter: reporter.failures(ConnectErrors(failures, 64)))[1].splitlines()
    assert err[:3] == [
        "✗ 64 of 64 hosts could not be used",
        "  gpu[01-64]  the key is unknown",
        "              gpu01  SHA256:1",
    ]
    assert err[17:19] == [
        "              gpu16  SHA256:16",
        "              and 48 more; --json has all",
    ]
    assert len(err) == 20
    told = json.loads(shown(lambda reporter: reporter.failures(ConnectErrors(failures, 64)), json=True)[0])
    assert told["rows"][0]["lines"] == list(row.lines)


def test_one_host_keeps_its_own_sentence() -> None:
    (row,) = together({"gpu01": changed("gpu01", 7)})
    assert (row.cause, row.lines) == ("the key is not the one in /k/known_hosts:7", ())
    assert row.hint == "compare SHA256:7, then `ssh-keygen -R 'gpu01' -f /k/known_hosts`"
    (row,) = together({"gpu01": unknown("SHA256:1")})
    assert row.hint == "compare SHA256:1, then `ssh gpu01` once"


def test_other_failures_are_grouped_as_before() -> None:
    rows = together(
        {"a": ConnectError("no", "try {host}"), "b": unknown("x"), "c": ConnectError("no", "try {host}")}
    )
    assert [(row.hosts, row.cause, row.hint) for row in rows] == [
        (("a", "c"), "no", "try a"),
        (("b",), "the key is unknown", "compare x, then `ssh b` once"),
    ]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["gpu1", "gpu3", "gpu4", "gpu5", "login"], "gpu{1,{3..5}} login"),
        (["gpu08", "gpu09", "gpu10"], "gpu{08..10}"),
        (["a", "b"], "a b"),
        (["[10.0.0.1]:2222", "[10.0.0.2]:2222"], "'[10.0.0.1]:2222' '[10.0.0.2]:2222'"),
    ],
)
def test_one_command_forgets_all_keys_that_have_changed(names: list[str], words: str) -> None:
    failures = {name: changed(name, line) for line, name in enumerate(names, 1)}
    (row,) = together(failures)
    assert row.cause == "the key is not the one in /k/known_hosts"
    assert row.lines[0].endswith("SHA256:1, not the one in /k/known_hosts:1")
    (command,) = row.commands
    assert row.whole_hint.endswith(f"\n{command}")
    screen = plain(on_terminal(lambda reporter: reporter.failures(ConnectErrors(failures, 64)), columns=60))
    assert screen[-1] == f"  → {command}", "in one piece, to be copied"
    bash = shutil.which("bash")
    assert bash
    echoed = command.replace("ssh-keygen -R", "echo").replace(" -f /k/known_hosts", "")
    assert (
        subprocess.run([bash, "-c", echoed], capture_output=True, text=True, check=True).stdout.split()
        == names
    )


def test_a_file_of_each_kind_has_its_own_command() -> None:
    failures = {"a": changed("a", 1, "/k/x"), "b": changed("b", 2, "/k/x")}
    (row,) = together(failures)
    assert len(row.commands) == 1
    assert len(together({**failures, "c": changed("c", 3, "/k/y")})) == 2
