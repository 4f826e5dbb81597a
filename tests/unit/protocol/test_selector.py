"""The agent's own selector against the promises of `selectors`, on epoll and without."""

from __future__ import annotations

import os
import resource
import select
import socket
from collections.abc import Iterator

import pytest

from tests.support.patience import until
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE, Selector


@pytest.fixture(params=["epoll", "none"])
def selector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selector]:
    if request.param == "none":
        monkeypatch.delattr(select, "epoll")
    made = Selector()
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def ready(selector: Selector, timeout: float = 0) -> list[tuple[object, int]]:
    return [(key.fileobj, events) for key, events in selector.select(timeout)]


def test_what_is_ready_is_told_as_far_as_it_is_waited_for(
    selector: Selector, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    selector.register(ours, EVENT_READ, lambda: None)
    assert ready(selector) == []
    theirs.send(b"a")
    assert ready(selector, 10.0) == [(ours, EVENT_READ)]
    selector.modify(ours, EVENT_READ | EVENT_WRITE, lambda: None)
    assert ready(selector, 10.0) == [(ours, EVENT_READ | EVENT_WRITE)]
    selector.modify(ours, EVENT_WRITE, lambda: None)
    assert ready(selector, 10.0) == [(ours, EVENT_WRITE)]
    assert selector.unregister(ours).fileobj is ours
    assert ready(selector) == []
    with pytest.raises(KeyError):
        selector.get_key(ours)


def test_a_hang_up_is_told_to_who_reads_and_to_who_writes(selector: Selector) -> None:
    reading, writing = os.pipe()
    selector.register(writing, EVENT_WRITE, lambda: None)
    os.close(reading)
    assert ready(selector, 10.0) == [(writing, EVENT_WRITE)]
    selector.unregister(writing)
    os.close(writing)


def test_a_file_that_was_closed_can_still_be_unregistered_and_its_number_used_again(
    selector: Selector,
) -> None:
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    selector.register(ours, EVENT_READ, lambda: None)
    ours.close()
    assert selector.unregister(ours).fd == number
    reading, writing = os.pipe()
    os.dup2(reading, number)  # whatever it was given to
    selector.register(number, EVENT_READ, lambda: None)
    os.write(writing, b"a")
    assert ready(selector, 10.0) == [(number, EVENT_READ)]
    selector.unregister(number)
    for each in {reading, writing, number}:
        os.close(each)
    theirs.close()


def test_a_listener_without_a_descriptor_for_its_caller_rests_and_comes_back(selector: Selector) -> None:
    with socket.socket() as listener, socket.socket() as caller:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        selector.register(listener, EVENT_READ, lambda: None)
        caller.connect(listener.getsockname())
        assert ready(selector, 10.0) == [(listener, EVENT_READ)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            assert selector.accept(listener) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert selector.get_map() == {}, "it rests"
        until(lambda: ready(selector, 1.0) == [(listener, EVENT_READ)], "it to be listened to again")
        accepted = selector.accept(listener)
        assert accepted is not None
        accepted.close()
        selector.unregister(listener)
