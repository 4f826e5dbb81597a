"""Every error of a login becomes a sentence."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import paramiko
import paramiko.ssh_exception
import pytest

from tests.support.patience import PATIENCE_S
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError
from tflaunch.ssh import config_match
from tflaunch.ssh.deadline import Deadline, NameTimeout
from tflaunch.ssh.failures import unreached
from tflaunch.ssh.login import explained
from tflaunch.ssh.sockets import dial_tcp
from tflaunch.ssh.ssh_config import SshConfig, Target
from tflaunch.ssh.transport import SshStream, TunedTransport

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
        stream = SshStream(ours)
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


def test_a_dial_begins_at_the_bind_address(tmp_path: Path) -> None:
    config = tmp_path / "config"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for own, other in (("127.0.0.2", ""), ("192.0.2.1", "this machine cannot dial from 192.0.2.1")):
            config.write_text(f"HostName 127.0.0.1\nPort {port}\nBindAddress {own}\n")
            target = SshConfig(config).target(Host(name="gpu01"))
            try:
                with dial_tcp(target, Deadline(9), lambda: None):
                    caller, address = server.accept()
                    caller.close()
                assert (address[0], other) == (own, "")
            except OSError as error:
                assert str(unreached(error, target, Deadline(9))).startswith(other or "no error")


def test_a_bind_address_of_which_no_name_server_tells_costs_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, answer, ask = tmp_path / "config", threading.Event(), socket.getaddrinfo

    def getaddrinfo(name: str, *query: Any) -> Any:
        if name == "uplink":
            answer.wait(PATIENCE_S)
        return ask(name, *query)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with socket.create_server(("127.0.0.1", 0)) as server:
        config.write_text(f"HostName 127.0.0.1\nPort {server.getsockname()[1]}\nBindAddress uplink\n")
        target, limit = SshConfig(config).target(Host(name="gpu01")), Deadline(0.1)
        try:
            with pytest.raises(NameTimeout) as raised:
                dial_tcp(target, limit, lambda: None)
            assert not answer.is_set()
        finally:
            answer.set()
    assert str(unreached(raised.value, target, limit)) == "the name look-up took longer than 0.1 s"


def test_canonical_names_have_a_limit_where_no_name_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, answer = tmp_path / "config", threading.Event()
    config.write_text("CanonicalizeHostname yes\nCanonicalDomains corp.example\n")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer.wait(PATIENCE_S))
    monkeypatch.setattr(config_match, "LOOK_UP_S", 0.1)
    try:
        with pytest.raises(
            ConnectError, match=r"no name server has answered for gpu01\.corp\.example within 0.1 s"
        ):
            SshConfig(config).target(Host(name="gpu01"))
        assert not answer.is_set()
    finally:
        answer.set()


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("slurm", "slurm:4"),
        ("slrum", "slurm:4"),
        ("kube", "kubernetes:4"),
        ("k8", "k8s:4"),
        ("gpu01", ""),
        ("yar", "yarn:4"),
    ],
)
def test_a_host_that_is_called_like_an_engine_may_be_meant_as_one(name: str, word: str) -> None:
    error = unreached(socket.gaierror(-2, "no"), SshConfig(None).target(Host(name)), Deadline(1.0))
    assert "check the spelling" in error.hint
    told = f"; slots of an engine are written {word}, with their number" if word else "config"
    assert error.hint.endswith(told)
