"""What the user is told once a run is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tflaunch.hosts import Host
from tflaunch.launch.afterwards import not_confirmed, verify
from tflaunch.protocol.errors import Gone


def test_hosts_that_confirm_nothing_for_one_reason_are_told_together() -> None:
    assert not_confirmed({"gpu02": "it is slow", "gpu01": "it is slow", "storage": "it is gone"}) == [
        "gpu[01-02]: could not check that nothing is left: it is slow; the lease ends what is there",
        "storage: could not check that nothing is left: it is gone; the lease ends what is there",
    ]


class Engine:
    """One that says of every slot that it is over."""

    def open(self, host: Host, _command: str, _first: bytes = b"") -> None:
        raise Gone("NotFound", swept=host.name == "swept")

    def unanswered(self, _host: Host) -> None:
        return None


def test_a_slot_whose_engine_has_killed_all_there_counts_as_swept() -> None:
    hosts = [Host("swept", connection="local"), Host("left", connection="local")]
    request = SimpleNamespace(hostfile=SimpleNamespace(hosts=hosts), run_id="run-1", lease_s=60.0)
    state = SimpleNamespace(swept={}, gpus={}, lost={"swept": "NotFound", "left": "NotFound"})
    watcher = SimpleNamespace(phase=lambda *_, **__: None, note=lambda _: None)
    anything = cast("Any", (request, state, Engine(), watcher))
    unverified, survivors, gpus, signal = verify(*anything)
    assert unverified == {
        "left": "NotFound; its agent ends the run there with the slot holder, "
        "or 60 s after it last heard of this launcher"
    }
    assert (survivors, gpus, signal) == ({}, {}, None)
