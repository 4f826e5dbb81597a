"""What fabric does for each connection, which a launch of a thousand hosts pays a thousand times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import fabric
import pytest

from tflaunch.ssh.connection import HostConnection


def test_a_connection_is_made_without_a_look_through_all_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def counted(*of: object) -> list[str]:
        looks.extend(of)
        return dir(*of)

    monkeypatch.setattr("invoke.config.dir", counted, raising=False)
    target = cast("Any", SimpleNamespace(hostname="gpu01.lab", user="alice", port=2222))
    fabric.Connection("gpu01.lab", user="alice")
    assert looks, "invoke looks elsewhere now: this test sees nothing"
    looks.clear()
    connection = HostConnection(cast("Any", None), target, cast("Any", None))
    assert (connection.host, connection.user, connection.port) == ("gpu01.lab", "alice", 2222)
    assert looks == []
