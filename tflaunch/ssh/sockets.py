"""TCP connections, with a time limit for what the system does without one."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from tflaunch.ssh.config_match import FAMILIES
from tflaunch.ssh.deadline import BindError, Deadline, NameTimeout
from tflaunch.ssh.target import Target


def dial_tcp(target: Target, deadline: Deadline, last_address: Callable[[], None]) -> socket.socket:
    """A connection to the first of the target's addresses that answers.

    `last_address()` is called when only the last address is left to answer.  Raises OSError, ValueError and
    OverflowError for what the system refuses, NameTimeout when no name server answers,
    BindError for a BindAddress that this machine does not have.
    """
    addresses = _resolve(target, deadline)
    last: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        if tried == len(addresses) - 1:
            last_address()
        connecting = socket.socket(family, kind, protocol)
        try:
            if target.bind_address:
                _bind(connecting, target.bind_address, deadline)
            # An address that does not answer leaves time for the next one.
            connecting.settimeout(deadline.left() / (len(addresses) - tried))
            connecting.connect(address)
            return connecting
        except OSError as error:
            connecting.close()
            last = error
    raise last


def _bind(connecting: socket.socket, name: str, deadline: Deadline) -> None:
    """Have the connection begin at the first address of its family that BindAddress names, as ssh does."""
    try:
        [*_, address], *_ = _look_up(name, None, connecting.family, deadline)
        connecting.bind(address)
    except NameTimeout:
        raise
    except (OSError, UnicodeError) as error:
        raise BindError(*error.args) from error


def _resolve(target: Target, deadline: Deadline) -> list[Any]:
    return _look_up(target.hostname, target.port, FAMILIES[target.family], deadline)


def _look_up(name: str, port: int | None, family: int, deadline: Deadline) -> list[Any]:
    """What the system's resolver says of a name, or an address.  Raises what it raises, NameTimeout."""
    query = (name, port, family, socket.SOCK_STREAM)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return socket.getaddrinfo(*query)
    # The system's resolver has no time limit; a thread that hangs in it is left behind.
    answers: _Answers = queue.SimpleQueue()
    _resolvers.ask(query, answers)
    try:
        answer = answers.get(timeout=deadline.left())
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
