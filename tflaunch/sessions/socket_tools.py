"""What every wire on a socket needs: its times and sizes, and the words for what went wrong."""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import termios
import threading
from collections.abc import Callable

KEEPALIVE_S = (2, 1, 3)  # idle seconds, seconds between probes, how many (a count)
SILENCE_MS = 5000  # unacknowledged data for this long: the connection is cut
ANY_ROOM = 16 * 1024  # bytes: a socket that has any room has this much
RECV_BYTES = 64 * 1024  # for more the C library asks the kernel for memory each time


def has_room(endpoint: socket.socket, size: int) -> bool:
    """Whether `size` bytes can be sent without waiting; False where the system does not tell."""
    try:
        if size > ANY_ROOM:  # the kernel's accounts of what waits there count up to twice its bytes
            room = endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
            (waiting,) = struct.unpack("i", fcntl.ioctl(endpoint, termios.TIOCOUTQ, bytes(4)))
            return bool(waiting + size <= room)
        poll = select.poll()
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


def text(error: Exception) -> str:
    """The error in words, whatever library raised it; 300 characters at most, for it may quote the server."""
    if isinstance(error, EOFError):
        return "the other side hung up"
    words = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return words[:300]
