"""What the launcher expects of a wire (a duplex byte stream to an agent, however it is carried) and of its opener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tflaunch.hosts import Host

# The hint for a connection that breaks at the first full-sized packet.
LARGE_PACKETS = (
    "are large packets lost between here and there (MTU)? try: ping -M do -s 1472 {host}; if only smaller ones "
    "(-s 500) come back, set the MTU of the network interface here or there to what passes: ip link set dev eth0 mtu N"
)


class Wire(Protocol):
    """Any duplex byte stream to an agent; any thread may send or close."""

    def listen(self, take: Callable[[bytes], None]) -> None:
        """Give `take` all that comes from now on, in order, and b"" at the end of the stream, however it ended.

        Call it once.  One thread at a time calls `take`: the wire's own or, for earlier data, the caller's.
        `take` must not send or wait: while it runs, nothing more is read.
        """

    def send(self, data: bytes) -> None:
        """Write all of `data`, waiting while the stream is full.  Raises WireClosed."""

    def send_now(self, data: bytes) -> bool:
        """Write all of `data` if that takes no waiting, else nothing; returns whether it did.  Raises WireClosed."""

    def close(self) -> None:
        """End the stream, and wake the threads that wait in `send`; idempotent, from any thread."""

    def last_words(self) -> str:
        """What the host wrote to stderr and how the command there ended, for messages; "" when nothing is known."""


class Opener(Protocol):
    """Opens wires: `tflaunch.remote.Connector`."""

    def open(self, host: Host, command: str, first: bytes = b"") -> Wire:
        """Run `command` on that host and send `first` to it.  Raises ConnectError."""
