"""The samples that hosts keep of a run, brought piece by piece."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from tests.support.attached import Watcher
from tests.support.pipes import Opener
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError
from tflaunch.runs.visits import Visits

WHOLE = wire.BODY_LIMIT


class Sessions:
    """Those of hosts that have a file each, and send as much of it at once as `piece` says."""

    def __init__(self, files: Mapping[str, bytes], piece: int) -> None:
        self.by_host = dict.fromkeys(files)
        self.rounds = 0
        self._files, self._piece = files, piece
        self._asked: dict[str, int] = {}

    def send(self, hosts: Collection[str], _: str, *, run: str, offset: int) -> None:
        assert run == "run-1"
        self._asked.update(dict.fromkeys(hosts, offset))

    def gather(
        self, _: str, hosts: Collection[str], *__: Any
    ) -> tuple[dict[str, wire.Message], dict[str, ConnectError]]:
        self.rounds += 1
        assert self.rounds < 20, "it goes on for ever"
        pieces = {
            name: self._files[name][self._asked[name] : self._asked[name] + self._piece] for name in hosts
        }
        return {name: wire.Message("samples", {}, piece) for name, piece in pieces.items()}, {}


def brought(files: Mapping[str, bytes], most: int, piece: int = WHOLE) -> tuple[bytes, int]:
    """What `samples` returns, and how often the hosts were asked."""
    watcher: Any = Watcher()
    opener: Any = Opener()
    visits = Visits(opener, watcher)
    sessions: Any = Sessions(files, piece)
    visits._sessions = sessions
    return visits.samples("run-1", most), sessions.rounds


@pytest.mark.parametrize(("size", "rounds"), [(0, 1), (5, 1), (WHOLE, 2), (2 * WHOLE + 7, 3)])
def test_a_file_of_any_size_comes_whole(size: int, rounds: int) -> None:
    file = bytes(range(251)) * (size // 251 + 1)
    assert brought({"gpu01": file[:size], "gpu02": b""}, 16 * WHOLE) == (file[:size], rounds)


def test_a_host_that_sends_next_to_nothing_each_time_is_asked_once() -> None:
    assert brought({"gpu01": bytes(1000)}, 16 * WHOLE, piece=1) == (b"\0", 1)


def test_no_more_is_taken_than_there_may_be() -> None:
    assert brought({"gpu01": bytes(9 * WHOLE)}, 2 * WHOLE) == (bytes(2 * WHOLE), 2)
