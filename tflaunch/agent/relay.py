"""Between the SSH channel and the agent: first the channel is made ours, then bytes go both ways."""

import os
import select
import socket

from tflaunch import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple


def own_channel() -> "Tuple[int, int]":
    """(input, output) of the channel on fresh descriptors, and nothing else may print into it any more."""
    channel_in = _above_standard(os.dup(0))
    channel_out = _above_standard(os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    if null > 2:
        os.close(null)
    write_all(channel_out, wire.MAGIC)
    return channel_in, channel_out


def _above_standard(descriptor: int) -> int:
    while descriptor <= 2:  # a shell may have given us no stderr
        descriptor = os.dup(descriptor)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def relay(channel_in: int, channel_out: int, agent: socket.socket) -> None:
    """Copy until the agent closes; the channel's end is passed on, so that the agent knows."""
    sources = [channel_in, agent.fileno()]
    while agent.fileno() in sources:
        for source in select.select(sources, [], [])[0]:
            if source == channel_in:
                try:
                    data = os.read(channel_in, 256 * 1024)
                    agent.sendall(data)
                except OSError:
                    data = b""
                if not data:
                    sources.remove(channel_in)
                    try:
                        agent.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass
            else:
                try:
                    data = agent.recv(256 * 1024)
                    write_all(channel_out, data)
                except OSError:  # the launcher is gone: the agent learns it by this socket's end
                    data = b""
                if not data:
                    return
