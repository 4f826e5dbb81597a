"""TCP connections and sockets, with a time limit for what the system does without one."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import queue
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from tflaunch.ssh.config_match import FAMILIES
from tflaunch.ssh.deadline import BindError, Deadline, NameTimeout
from tflaunch.ssh.target import Target

KEEPALIVE_S = (2, 1, 3)  # idle seconds, seconds between probes, how many (a count)
SILENCE_MS = 5000  # unacknowledged data for this long: the connection is cut
AT_ONCE = 16 * 1024  # bytes: a socket that has any room has this much
RECV_BYTES = 64 * 1024  # for more the C library asks the kernel for memory each time


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


def has_room(endpoint: socket.socket) -> bool:
    """Whether AT_ONCE bytes can be sent without waiting."""
    poll = select.poll()
    try:
        poll.register(endpoint, select.POLLOUT)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # closed
        return False


def in_thread(work: Callable[..., None], *arguments: object) -> None:
    """Do in a thread of its own what may have to wait; here and now when the system lets us start no more."""
    try:
        threading.Thread(target=work, args=arguments, name="ssh", daemon=True).start()
    except RuntimeError:
        work(*arguments)


def tune(tcp: socket.socket) -> None:
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Linux and macOS; the first of each pair that the platform has.
    wanted = (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), KEEPALIVE_S[0]),
        (("TCP_KEEPINTVL",), KEEPALIVE_S[1]),
        (("TCP_KEEPCNT",), KEEPALIVE_S[2]),
        (("TCP_USER_TIMEOUT",), SILENCE_MS),
        (("TCP_QUICKACK",), 1),
    )
    for names, value in wanted:
        for name in names:
            if hasattr(socket, name):
                with contextlib.suppress(OSError):  # macOS: of a connection that was reset already
                    tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                break
