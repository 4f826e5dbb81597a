"""Keys of a terminal: each counts alone, and the terminal is as before afterwards."""

from __future__ import annotations

import os
import pty
import sys
import termios
import threading
import time

import pytest

from tests.support.descriptors import how_many
from tests.support.patience import until
from tflaunch.sessions import asking
from tflaunch.sessions.typed_keys import reading_keys


def test_a_key_counts_alone_and_pasted_text_is_none() -> None:
    main, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    taken: list[str] = []

    def press(key: str) -> bool:
        os.write(main, key.encode())
        time.sleep(0.2)  # alone
        return key in taken

    with reading_keys(taken.append, terminal) as reads:
        assert reads
        assert not termios.tcgetattr(terminal)[3] & (termios.ICANON | termios.ECHO)
        for _ in range(20):
            os.write(main, b"deeds and words\n")
        until(lambda: press("q"), "the key")
    assert set(taken) == {"q"}
    assert termios.tcgetattr(terminal) == before
    os.close(main)
    os.close(terminal)


def test_what_is_no_terminal_is_left_alone() -> None:
    end, other = os.pipe()
    with reading_keys(print, end) as reads:
        assert not reads
    os.close(end)
    os.close(other)


def test_without_a_thread_that_is_said_and_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    main, terminal = pty.openpty()
    before, keys = how_many(), termios.tcgetattr(terminal)
    with pytest.raises(RuntimeError, match="can't start new thread"), reading_keys(print, terminal):
        pass
    with open(terminal, closefd=False) as stdin, pytest.raises(RuntimeError, match="can't start new thread"):
        monkeypatch.setattr(sys, "stdin", stdin)
        with asking._reading(lambda *_: None):
            pass
    assert how_many() == before
    assert termios.tcgetattr(terminal) == keys
    os.close(main)
    os.close(terminal)
