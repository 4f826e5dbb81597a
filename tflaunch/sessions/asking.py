"""A question to the user in the middle of a command; connections and leases are kept alive until it is answered.

A thread reads the terminal, and ends when the answer is not wanted any more, so that it swallows nothing that is typed
later.  What the user typed before the question was shown does not count.  Ctrl-C works as always; after Ctrl-Z
and fg the question is shown again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tflaunch.sessions.group import Answered, Stopped, interruption

if TYPE_CHECKING:
    from tflaunch.sessions.group import Sessions
    from tflaunch.sessions.watcher import Watcher

PATIENCE_S = 60.0
_BACKGROUND_S = 0.2  # how often a process in the background looks whether it is in the foreground
_LINE = 4096  # bytes; a terminal gives no longer line


def agreed(sessions: Sessions, watcher: Watcher, question: str) -> bool | None:
    """Ask the user a yes/no question; returns whether the answer is yes, None where no user can be asked.

    Any other word and the end of the input count as no.  So does no answer for PATIENCE_S; then the user
    gets a note.
    Raises Stopped.
    """
    if not watcher.can_ask:
        return None
    words = answer(sessions, watcher, f"{question} [y/N]")
    return words is not None and words.strip().lower() in ("y", "yes")


def answer(sessions: Sessions, watcher: Watcher, question: str) -> str | None:
    """Ask the user a question; returns the line that the user typed, or None.

    None stands for the end of the input, and for no answer within PATIENCE_S; then the user gets a note.
    Call it only where `watcher.can_ask`.  Raises Stopped.
    """
    question_id = object()
    typed = False
    _forget_what_was_typed()
    with _reading(lambda words, again: sessions.put(Answered(words, question_id, again))):
        watcher.ask(question)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while (item := sessions.next(deadline)) is not None:
                if interrupted := interruption(item):
                    raise Stopped(interrupted)
                if not isinstance(item, Answered) or item.question is not question_id:
                    continue  # lost hosts stay in `sessions.ended`: the next step reports them
                if not item.again:
                    typed = item.words is not None
                    return item.words
                watcher.ask(question)
                deadline = time.monotonic() + PATIENCE_S
        finally:
            watcher.end_question(typed)
    watcher.note(f"no answer for {PATIENCE_S:g} s, which is taken for a no")
    return None


def _forget_what_was_typed() -> None:
    terminal = sys.stdin.fileno()
    # In the background tcflush would stop this process; in the foreground again, the question is shown anew.
    with contextlib.suppress(OSError, termios.error):
        if in_foreground(terminal):
            termios.tcflush(terminal, termios.TCIFLUSH)


@contextlib.contextmanager
def _reading(take: Callable[[str | None, bool], None]) -> Iterator[None]:
    """Inside, a thread reads one line of stdin and calls `take(line, False)`; at its end, `take(None, False)`.

    It calls `take(None, True)` when this process was stopped and goes on.  Outside, nothing is read.
    """
    terminal = sys.stdin.fileno()
    with reader(lambda wake: _read_line(terminal, wake, take)) as awaken, _signals_wake(awaken):
        yield


@contextlib.contextmanager
def reader(read: Callable[[int], None]) -> Iterator[int]:
    """Inside, a thread of its own runs `read(pipe)`, which returns once that pipe has ended; yields its other end.

    Raises RuntimeError if no thread can start.
    """
    wake, awaken = os.pipe()
    thread = threading.Thread(target=read, args=[wake], daemon=True)
    try:
        thread.start()
    except BaseException:
        os.close(awaken)
        os.close(wake)
        raise
    try:
        yield awaken
    finally:
        os.close(awaken)
        thread.join()
        os.close(wake)


def _read_line(terminal: int, wake: int, take: Callable[[str | None, bool], None]) -> None:
    while True:
        try:
            # A process that reads in the background is stopped by SIGTTIN, and then renews no lease.
            mine = in_foreground(terminal)
            ready, _, _ = select.select([wake, *([terminal] if mine else [])], [], [], _BACKGROUND_S)
            if wake in ready:
                signals = os.read(wake, _LINE)
                if not signals:
                    return
                if signal.SIGCONT in signals:
                    take(None, True)
            elif terminal in ready and in_foreground(terminal):
                line = os.read(terminal, _LINE)
                take(line.decode("utf-8", "replace") if line else None, False)
                return
        except (OSError, ValueError):  # the terminal is gone
            take(None, False)
            return


def in_foreground(terminal: int) -> bool:
    """Whether this process may read that terminal; in the background a read would stop it."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the controlling terminal: it has no background
        return True


@contextlib.contextmanager
def _signals_wake(pipe: int) -> Iterator[None]:
    """Inside, the number of each signal that has a handler, and of SIGCONT, is written into that pipe."""
    os.set_blocking(pipe, False)
    try:
        before = signal.signal(signal.SIGCONT, lambda *_: None)
        pipe_before = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    except ValueError:  # only the main thread may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.set_wakeup_fd(pipe_before)
        signal.signal(signal.SIGCONT, before)
