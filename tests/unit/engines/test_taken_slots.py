"""Slots for one command: given back whatever happens, and what comes of it does not change how the run has ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.patience import PATIENCE_S
from tflaunch.engines import taken_slots
from tflaunch.engines.engine import ForWhom, GivenSlots
from tflaunch.engines.taken_slots import ForCommand, taking
from tflaunch.hosts import Host, Hostfile
from tflaunch.inputs.engine_words import SlotGroup, WantedSlots
from tflaunch.sessions.group import Stopped

WANTED = Hostfile("odd:1", (Host("slot1", connection="odd"),), wanted=WantedSlots("odd", (SlotGroup(1),)))


class Odd:
    """An engine whose release does what a test wants."""

    keys = ()

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.at_the_end = lambda: None

    def take(self, _wanted: WantedSlots, _about: ForWhom) -> GivenSlots:
        self.at_the_end()
        return GivenSlots({}, (Host("n1", connection="odd", slot={"id": "1"}),))

    def release(self, _handle: Mapping[str, str], _hosts: Sequence[Host]) -> None:
        self.begun.set()
        self.go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Odd:
    engine = Odd()
    monkeypatch.setattr(taken_slots.registry, "engine", lambda _: cast("Any", engine))
    return engine


def command() -> ForCommand:
    return ForCommand("run-1", cast("Any", SimpleNamespace(phase=lambda *_, **__: None)))


def test_a_release_that_fails_is_no_error_of_the_run(odd: Odd) -> None:
    odd.error = RuntimeError("it has no such job")
    odd.go_on.set()
    with taking(WANTED, command()) as (there, _):
        assert [host.name for host in there.hosts] == ["n1"]
    assert odd.begun.is_set()


def test_ctrl_c_ends_the_wait_for_a_release_and_nothing_else(odd: Odd) -> None:
    threading.Thread(target=lambda: (odd.begun.wait(PATIENCE_S), os.kill(os.getpid(), signal.SIGINT))).start()
    with taking(WANTED, command()):
        pass
    assert not odd.go_on.is_set()
    odd.go_on.set()


def test_ctrl_c_while_the_last_slot_comes_gives_all_back(odd: Odd) -> None:
    odd.go_on.set()
    odd.at_the_end = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Stopped), taking(WANTED, command()):
        raise AssertionError("not reached")
    assert odd.begun.is_set()


def test_what_the_run_keeps_is_not_given_back(odd: Odd) -> None:
    with taking(WANTED, command()) as (_, slots):
        assert slots is not None
        slots.keep()
    assert not odd.begun.is_set()
