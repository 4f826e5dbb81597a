"""The channel that sshd gives to a process, and how that process passes it to another one, the agent.

sshd closes a channel once the process that sshd started has ended.  So that process stays, and only waits until the
agent closes the channel.
"""

import os
import struct

from tflaunch.protocol import wire
from tflaunch.protocol.light_stdlib import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

# The type of the message by which a visit passes the descriptors of its channel to an agent.
PASSED = "channel"
# How long nothing may come by the channel of one who gives a sign of life every 5 s: then its connection has died, and
# nobody has said so.
SILENCE_S = 60.0
_DESCRIPTORS = struct.Struct("2i")


def own_channel() -> "Tuple[int, int]":
    """(input, output) of the channel on fresh descriptors; descriptors 0 and 1 no longer lead to it."""
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


class Channel:
    """A channel as a connection that does not block.

    The process that sshd started waits at the other end of `holder`; if it is killed, sshd takes no more bytes.
    """

    def __init__(self, channel_in: int, channel_out: int, holder: socket.socket) -> None:
        self.out = channel_out
        self.holder = holder
        self._in = channel_in

    def fileno(self) -> int:
        """The descriptor to read from."""
        return self._in

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self._in, flag)
        os.set_blocking(self.out, flag)

    def recv(self, size: int) -> bytes:
        return os.read(self._in, size)

    def send(self, data: "bytes | bytearray") -> int:
        return os.write(self.out, data)

    def close(self) -> None:
        """Close the channel; the process that waits at the holder's other end then ends."""
        os.close(self._in)
        os.close(self.out)
        self._in = self.out = -1
        self.holder.close()


class Caller:
    """A connection from a process of this user to the agent's socket; a visit may pass its channel over it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._passed = ()  # type: Tuple[int, ...]
        self.fileno, self.send = connection.fileno, connection.send
        self.setblocking = connection.setblocking

    def recv(self, size: int) -> bytes:
        # CLOEXEC: otherwise every program that the agent starts would inherit the passed descriptors.
        room, flags = socket.CMSG_SPACE(_DESCRIPTORS.size), socket.MSG_CMSG_CLOEXEC
        data, besides, _, _ = self._socket.recvmsg(size, room, flags)
        for level, type, value in besides:
            if (level, type) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._passed += struct.unpack("%di" % (len(value) // 4), value)
        return data

    def channel(self) -> Channel:
        """The channel that the visit has passed; raises WireError."""
        if len(self._passed) != 2:  # for example, this process had no descriptors free for both
            raise wire.WireError("the message says that it brings a channel, but no descriptors came with it")
        (channel_in, channel_out), self._passed = self._passed, ()
        return Channel(channel_in, channel_out, self._socket)

    def close(self) -> None:
        for each in self._passed:
            os.close(each)
        self._passed = ()
        self._socket.close()


def pass_on(channel_in: int, channel_out: int, agent: socket.socket, early: bytes) -> bool:
    """Pass the channel to the agent, with the bytes `early` that were read from it; wait until the agent closes it.

    Returns False when the agent has ended without taking the channel, which is still open then.
    """
    besides = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTORS.pack(channel_in, channel_out))]
    try:
        agent.sendmsg([wire.encode(PASSED, early)], besides)
    except OSError:
        return False
    return hold(agent)


def hold(agent: socket.socket) -> bool:
    """Wait until the agent closes the channel; returns False if it ends, and has not read what was sent to it."""
    # Of an engine that takes the slot back: the agent still has something to say.
    before = [(each, signal.signal(each, signal.SIG_IGN)) for each in (signal.SIGTERM, signal.SIGHUP)]
    try:
        while agent.recv(4096):  # what the agent said before it had the channel
            pass
    except OSError:  # ECONNRESET
        for each, handler in before:
            signal.signal(each, handler)
        return False
    return True
