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
            # An address that does not answer leaves time for the next one.
            connecting.settimeout(deadline.left() / (len(addresses) - tried))
            if target.bind_address:
                _bind(connecting, target)
            connecting.connect(address)
            return connecting
        except OSError as error:
            connecting.close()
            last = error
    raise last


def _bind(connecting: socket.socket, target: Target) -> None:
    """Have the connection begin at the first address of its family that BindAddress names, as ssh does."""
    try:
        [*_, address], *_ = socket.getaddrinfo(
            target.bind_address, None, connecting.family, socket.SOCK_STREAM
        )
        connecting.bind(address)
    except (OSError, UnicodeError) as error:
        raise BindError(*error.args) from error


def _resolve(target: Target, deadline: Deadline) -> list[Any]:
    query = (target.hostname, target.port, FAMILIES[target.family], socket.SOCK_STREAM)
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(target.hostname)
        return socket.getaddrinfo(*query)
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(*query))
        except Exception as error:
            answers.put(error)

    # The system's resolver has no time limit; a thread that hangs in it is left behind.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=deadline.left())
    except queue.Empty:
        raise NameTimeout from None
    if isinstance(answer, Exception):
        raise answer
    return answer
