"""What a launcher keeps of what hosts send while it hands its run over."""

from __future__ import annotations

from tflaunch.launch.handover import MOST_KEPT, MOST_KEPT_BYTES, KeptReports
from tflaunch.protocol.wire import Message


def test_a_host_that_sends_for_ever_does_not_fill_the_memory() -> None:
    kept = KeptReports()
    assert all(kept.keep("host1", Message("through", {})) for _ in range(MOST_KEPT))
    assert not kept.keep("host1", Message("through", {}))
    assert kept.keep("host2", Message("through", {})), "another host has its own share"
    assert len(kept.messages) == MOST_KEPT + 1


def test_nor_by_large_messages() -> None:
    kept = KeptReports()
    large = Message("said", {"text": "x" * (MOST_KEPT_BYTES // 2)})
    assert kept.keep("host1", large)
    assert not kept.keep("host1", large)
    assert not kept.keep("host2", Message("file", {}, bytes(MOST_KEPT_BYTES)))
    assert kept.messages == [("host1", large)]


def test_beats_are_not_kept() -> None:
    kept = KeptReports()
    assert all(kept.keep("host1", Message("beat", {})) for _ in range(MOST_KEPT + 1))
    assert kept.messages == []
