"""Keys of a terminal: each counts alone, and the terminal is as before afterwards."""

from __future__ import annotations

import os
import pty
import termios
import time

from tests.support.patience import until
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
