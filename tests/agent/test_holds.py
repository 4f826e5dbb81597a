"""What holds of a run now: the agent keeps it for `status`, with limits, whoever sends it."""

from __future__ import annotations

import json
import stat

from tests.support.agent_over_pipes import Host, running, shell
from tests.support.patience import until
from tests.support.ps import told
from tflaunch.protocol.messages import FROM_PEER


def test_it_is_kept_and_listed_with_its_age(host: Host) -> None:
    channel = host.start()
    running(channel, shell("sleep 600"))
    path = host.directory / "holds.json"

    def listed() -> object:
        return told(host, tail_bytes=100)[host.run]["holds"]

    assert listed() is None
    channel.send("holds", sentences=["x" * 5000, *["y"] * 100], blind=["z"])
    until(path.exists, "the file")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = listed()
    assert isinstance(found, dict)
    assert found["sentences"] == ["x" * 1000, *["y"] * 31]
    assert found["blind"] == ["z"]
    assert 0 <= found["age_s"] < 600
    assert told(host)[host.run]["holds"] is None  # `ps` shows none
    for damaged in ("", "[]", json.dumps({"at": "now", "sentences": [1], "blind": None})):
        path.write_text(damaged)
        assert listed() is None
        assert told(host, tail_bytes=100)[host.run]["tasks"]


def test_the_coordinator_on_another_host_may_send_it() -> None:
    assert "holds" in FROM_PEER
