"""How a command is asked to end: by a signal, or, where a program drives it in a thread, by that program."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from tflaunch.protocol.events import Interrupted

Put = Callable[[Interrupted], None]


class Interrupter:
    """Asks what runs in another thread to end, as Ctrl-C does; twice, to end at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard_by: list[Put] = []
        self._asked: list[Interrupted] = []

    def interrupt(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end; what begins to listen later hears of it, too."""
        with self._lock:
            self._asked.append(Interrupted(number))
            heard_by = list(self._heard_by)
        for put in heard_by:
            put(Interrupted(number))

    @contextlib.contextmanager
    def heard_by(self, put: Put) -> Iterator[None]:
        """Inside, `put` gets each request to end, at first those that came before."""
        with self._lock:
            self._heard_by.append(put)
            before = list(self._asked)
        for interrupted in before:
            put(interrupted)
        try:
            yield
        finally:
            with self._lock:
                self._heard_by.remove(put)


INTERRUPTER: ContextVar[Interrupter | None] = ContextVar("tflaunch.interrupter", default=None)


@contextlib.contextmanager
def interrupts(put: Put) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM come by `put`, or what the Interrupter of this context asks for."""
    if interrupter := INTERRUPTER.get():
        with interrupter.heard_by(put):
            yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: put(Interrupted(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
