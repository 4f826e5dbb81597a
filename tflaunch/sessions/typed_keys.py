"""Single keys that the user types while a command watches something; the terminal stays as it is otherwise.

A thread reads the terminal.  Ctrl-C and Ctrl-Z work as always: while this process is stopped, in the background or
gone, the terminal has its own settings again.  A key counts only if it comes alone: pasted text presses none.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator

from tflaunch.sessions.asking import in_foreground, reader

_BACKGROUND_S = 0.2  # how often a process in the background looks whether it is in the foreground
_ALONE_S = 0.05  # what comes within this time of another key is no key, but pasted text


@contextlib.contextmanager
def reading_keys(take: Callable[[str], None], terminal: int | None = None) -> Iterator[bool]:
    """Inside, another thread calls `take` with each key; yields whether there is a terminal to read.

    `terminal` is stdin by default.  Call it from the main thread.
    """
    terminal = _stdin() if terminal is None else terminal
    if terminal is None or not os.isatty(terminal) or not in_foreground(terminal):
        yield False
        return
    with _keywise(terminal), reader(lambda wake: _read(terminal, wake, take)):
        yield True


def _stdin() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or replaced
        return None


def _read(terminal: int, wake: int, take: Callable[[str], None]) -> None:
    while True:
        try:
            mine = in_foreground(terminal)  # a read in the background would stop this process
            ready, _, _ = select.select([wake, *([terminal] if mine else [])], [], [], _BACKGROUND_S)
            if wake in ready:
                return
            if terminal not in ready or not in_foreground(terminal):
                continue
            typed = os.read(terminal, 4096)
            if not typed:
                return
            if len(typed) == 1 and not select.select([terminal], [], [], _ALONE_S)[0]:
                take(typed.decode("latin-1"))
        except (OSError, ValueError):  # the terminal is gone
            return


@contextlib.contextmanager
def _keywise(terminal: int) -> Iterator[None]:
    """Inside, the terminal gives each key at once and does not show it, whenever this process is in the foreground."""
    before = termios.tcgetattr(terminal)
    keys = termios.tcgetattr(terminal)
    keys[3] &= ~(termios.ICANON | termios.ECHO)

    def give_keys(*_: object) -> None:
        with contextlib.suppress(OSError, termios.error):
            if in_foreground(terminal):
                termios.tcsetattr(terminal, termios.TCSANOW, keys)

    def restore() -> None:
        with contextlib.suppress(OSError, termios.error):
            if in_foreground(terminal):
                termios.tcsetattr(terminal, termios.TCSANOW, before)

    def stop(*_: object) -> None:
        restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, stop)  # this process goes on
        give_keys()

    handlers = {signal.SIGTSTP: stop, signal.SIGCONT: give_keys}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        give_keys()
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        restore()
