"""A visit ends when its launcher does, also where the connection dies without a word."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tflaunch.agent import archive, visit
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.visit import Visit
from tflaunch.protocol import wire


class Silent:
    """A channel by which nothing comes any more, and that never ends."""

    def __init__(self) -> None:
        self.theirs, self.ours = os.pipe()
        self.out, self._drain = os.pipe()[::-1]

    def close(self) -> None:
        for each in (self.theirs, self.ours, self.out, self._drain):
            os.close(each)


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    for module in (visit, archive):
        monkeypatch.setattr(module, "SILENCE_S", 1.0)
    monkeypatch.setattr(archive, "BEAT_S", 0.05)
    channel = Silent()
    yield channel
    channel.close()


def ends(work: threading.Thread) -> bool:
    work.start()
    work.join(60)
    return not work.is_alive()


def test_a_visit_by_a_connection_that_died_without_a_word_ends(tmp_path: Path, channel: Silent) -> None:
    served = Visit(str(tmp_path), channel.theirs, channel.out)
    assert ends(threading.Thread(target=served.run, args=[b""], daemon=True))


def test_signs_of_life_keep_it(tmp_path: Path, channel: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Visit(str(tmp_path), channel.theirs, channel.out)
    heard: list[str] = []
    monkeypatch.setattr(served, "_send", lambda type, **_: heard.append(type))
    work = threading.Thread(target=served.run, args=[b""], daemon=True)
    work.start()
    for _ in range(40):
        os.write(channel.ours, wire.encode("credit", bytes=0))
        work.join(0.05)
    os.write(channel.ours, wire.encode("list"))
    work.join(60)
    assert heard == ["hello", "runs"]


def test_so_does_one_that_shows_what_a_dead_agent_has_left(tmp_path: Path, channel: Silent) -> None:
    directory = RunDirectory(str(tmp_path), "run-1", "gpu01")
    shows = archive.Archive(directory, channel.theirs, channel.out)
    assert ends(threading.Thread(target=shows.run, args=[wire.Decoder(), []], daemon=True))
