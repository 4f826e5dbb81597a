"""Fixtures of the tests with real sshd."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import stored_agent
from tests.support.bed import Bed
from tests.support.lab import Gpus
from tests.support.launcher import Launcher
from tests.support.sshd import SshNetwork
from tests.support.stopping import Stopping
from tests.support.wires import Client


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


@pytest.fixture
def gpus(library: Path, tmp_path: Path, network: SshNetwork, launcher: Launcher) -> Gpus:
    """A lab without hosts."""
    return Gpus(library, tmp_path, network, launcher)


@pytest.fixture
def stopping(bed: Bed, tmp_path: Path) -> Iterator[Stopping]:
    launcher = Stopping(tmp_path, bed)
    try:
        yield launcher
    finally:
        launcher.close()


@pytest.fixture
def started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is a Python of its own: where a command forks, its child is found by what /proc tells of it."""
    monkeypatch.setenv("TFLAUNCH_PRELOADED", "0")


@pytest.fixture
def never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host has the agent in its store: it is sent."""
    monkeypatch.setattr(stored_agent, "keep", lambda *_: None)
