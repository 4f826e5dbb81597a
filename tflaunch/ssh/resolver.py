"""Names looked up by the system's resolver, which has no time limit of its own."""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import socket
import threading
from typing import Any

from tflaunch.ssh.deadline import NameTimeout


def look_up(name: str, port: int | None, family: int, within_s: float) -> list[Any]:
    """What `socket.getaddrinfo` says of a name, or an address, for TCP.

    Raises what that raises, and NameTimeout where it takes longer than `within_s`.
    """
    query = (name, port, family, socket.SOCK_STREAM)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return socket.getaddrinfo(*query)
    # A thread that hangs in it is left behind.
    answers: _Answers = queue.SimpleQueue()
    _resolvers.ask(query, answers)
    try:
        answer = answers.get(timeout=within_s)
    except queue.Empty:
        raise NameTimeout from None
    if isinstance(answer, Exception):
        raise answer
    return answer


_Answers = queue.SimpleQueue[list[Any] | Exception]


class _Resolvers:
    """Threads that ask the system's resolver: one asks again as soon as it has an answer, and all end when idle.

    A ThreadPoolExecutor would wait for one that hangs when Python ends.
    """

    IDLE_S = 1.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[tuple[Any, _Answers]] = queue.SimpleQueue()
        self._free = 0  # threads that wait for a question, less the questions that wait for a thread

    def ask(self, query: tuple[Any, ...], answers: _Answers) -> None:
        """Have `query` put to getaddrinfo; `answers` gets what it says.  Raises RuntimeError if no thread can start."""
        with self._lock:
            if starts := self._free == 0:
                threading.Thread(
                    target=self._work, args=[query, answers], name="resolve", daemon=True
                ).start()
            else:
                self._free -= 1
        if not starts:
            self._asked.put((query, answers))

    def _work(self, query: tuple[Any, ...], answers: _Answers) -> None:
        while True:
            try:
                answers.put(socket.getaddrinfo(*query))
            except Exception as error:
                answers.put(error)
            with self._lock:
                self._free += 1
            try:
                query, answers = self._asked.get(timeout=self.IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._free:
                        self._free -= 1
                        return
                query, answers = self._asked.get()  # put for this thread just now


_resolvers = _Resolvers()
