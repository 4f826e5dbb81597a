"""Between the SSH channel and the agent: first the channel is made ours, then bytes go both ways."""

import os
import select

from tflaunch.agent import socket

PENDING_LIMIT = 256 * 1024  # no more is read for a side that does not take what is there
FAREWELL_S = 5.0  # how long the last words of an agent that has left may wait for a launcher to take any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple


def own_channel() -> "Tuple[int, int]":
    """(input, output) of the channel on fresh descriptors, and nothing else may print into it any more."""
    channel_in = _above_standard(os.dup(0))
    channel_out = _above_standard(os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    if null > 2:
        os.close(null)
    return channel_in, channel_out


def _above_standard(descriptor: int) -> int:
    while descriptor <= 2:  # a shell may have given us no stderr
        descriptor = os.dup(descriptor)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def relay(channel_in: int, channel_out: int, agent: socket.socket, early: bytes = b"") -> None:
    """Copy, `early` first, until the agent has closed and its words are passed on, or until nobody takes them any more.

    Neither way waits for the other: a launcher that does not read (it is frozen) cannot keep this process.
    The channel's end is passed on, so that the agent knows.
    """
    os.set_blocking(channel_out, False)
    agent.setblocking(False)
    up, down = bytearray(early), bytearray()  # still to be sent to the agent, to the channel
    channel_open = agent_open = True
    while agent_open or down:
        poll = select.poll()
        if channel_open and len(up) < PENDING_LIMIT:
            poll.register(channel_in, select.POLLIN)
        if agent_open:  # also when it must wait: its end (POLLHUP) is always told
            reading = select.POLLIN if len(down) < PENDING_LIMIT else 0
            poll.register(agent, reading | (select.POLLOUT if up else 0))
        if down:
            poll.register(channel_out, select.POLLOUT)
        ready = dict(poll.poll(None if agent_open else FAREWELL_S * 1000))
        if not ready:
            return
        if channel_in in ready:
            data = _read(channel_in)
            up += data or b""
            channel_open = data != b""
        if ready.get(agent.fileno(), 0) & ~select.POLLOUT:
            data = _read(agent.fileno())
            down += data or b""
            agent_open = data != b""
        if up and not _write(agent.fileno(), up):
            channel_open = False  # the agent is gone; what it has said may still be read
            up.clear()
        if down and not _write(channel_out, down):
            return  # the launcher is gone: the agent learns it by this socket's end
        if not (channel_open or up) and agent_open:
            try:
                agent.shutdown(socket.SHUT_WR)
            except OSError:
                pass


def _read(descriptor: int) -> "Optional[bytes]":
    """What is there: b"" at the end, however it came, None when there is nothing after all."""
    try:
        return os.read(descriptor, 256 * 1024)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _write(descriptor: int, pending: bytearray) -> bool:
    """Write what `descriptor` takes now; False when it is broken."""
    try:
        del pending[: os.write(descriptor, pending)]
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True
