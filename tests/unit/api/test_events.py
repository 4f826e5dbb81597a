"""The events of a run, as one thread writes them and another reads them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.patience import until
from tflaunch.api import event_feed
from tflaunch.api.event_feed import Events


def line(number: int) -> str:
    return json.dumps({"event": "note", "text": str(number)}) + "\n"


def waits(thread: threading.Thread) -> bool:
    """Whether that thread waits for another one."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "wait"


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Events, threading.Thread]]:
    """Events that nobody has read, and a thread that waits to write one more."""
    monkeypatch.setattr(event_feed, "EVENTS_KEPT", 2)
    kept = Events()
    kept.write(line(0) + line(1))
    writer = threading.Thread(target=kept.write, args=[line(2)], daemon=True)
    writer.start()
    until(lambda: waits(writer), "the writer to wait for room")
    yield kept, writer
    kept.discard()
    writer.join(60)


def test_what_waits_for_room_when_events_are_dropped_is_dropped_too(
    full: tuple[Events, threading.Thread],
) -> None:
    kept, writer = full
    kept.discard()
    kept.keep()
    writer.join(60)
    assert not writer.is_alive()
    kept.write(line(3))
    kept.end()
    assert [each["text"] for each in kept] == ["3"]  # type: ignore[typeddict-item]


def test_a_reader_makes_room(full: tuple[Events, threading.Thread]) -> None:
    kept, writer = full
    reader = iter(kept)
    assert next(reader)["text"] == "0"  # type: ignore[typeddict-item]
    writer.join(60)
    assert not writer.is_alive()
    kept.end()  # waits for nobody
    assert [each["text"] for each in reader] == ["1", "2"]  # type: ignore[typeddict-item]
    assert list(kept) == []


def test_what_is_dropped_after_the_end_does_not_bring_the_end_back() -> None:
    kept = Events()
    kept.write(line(0))
    kept.end()
    kept.discard()
    assert list(kept) == list(kept) == []
