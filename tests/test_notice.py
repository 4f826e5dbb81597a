"""Logs that grow wake the agent, where the kernel tells of them."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tflaunch.agent.tasks import log_notice
from tflaunch.agent.tasks.log_notice import REST_S, Notice


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


def turn(selector: selectors.BaseSelector, timeout: float) -> int:
    """How many woke it."""
    ready = selector.select(timeout)
    for key, _ in ready:
        key.data()
    return len(ready)


def test_what_is_written_wakes_it_while_that_is_wanted(
    tmp_path: Path, selector: selectors.BaseSelector
) -> None:
    log = tmp_path / "worker-0.log"
    told = Notice(str(tmp_path), selector)
    if not told.works:
        pytest.skip("no inotify here")
    assert told.watch(True, time.monotonic()) is None
    with log.open("w") as file:
        for _ in range(3):
            file.write("a line\n")
            file.flush()
            assert turn(selector, 10.0) == 1
            rest_s = told.watch(True, time.monotonic())
            assert rest_s is not None and 0 < rest_s <= REST_S
            file.write("more, while it rests\n")
            file.flush()
            assert turn(selector, 0) == 0
            assert told.watch(True, time.monotonic() + REST_S) is None
            assert turn(selector, 10.0) == 1  # that is heard afterwards
            told.watch(True, time.monotonic() + REST_S)
        told.watch(False, time.monotonic() + REST_S)
        file.write("nobody wants it\n")
        file.flush()
        assert turn(selector, 0.05) == 0
    assert selector.get_map() is not None and len(selector.get_map()) == 0


def test_without_it_the_agent_knows(tmp_path: Path, selector: selectors.BaseSelector) -> None:
    told = Notice(str(tmp_path / "missing"), selector)
    assert not told.works
    assert told.watch(True, 0.0) is None
    assert turn(selector, 0) == 0
    assert log_notice.IN_MODIFY == 2
