"""A wire: a duplex byte stream to an agent, however it is carried; and what opens one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tflaunch.hosts import Host

# The remedy where a connection breaks as soon as packets are full.
LARGE_PACKETS = (
    "are large packets lost between here and there (MTU)? try: ping -M do -s 1472 {host}; if only smaller ones "
    "(-s 500) come back, set the MTU of the network card here or there to what passes: ip link set dev eth0 mtu N"
)


class Wire(Protocol):
    """Any duplex byte stream to an agent; any thread may send or close."""

    def listen(self, take: Callable[[bytes], None]) -> None:
        """From now on, once: `take` gets what comes, in order, and b"" at the end of the stream, however it ended.

        It is called by one thread at a time, of the wire's own or (what has come already) this one.  It must not
        send, nor wait: nothing more comes meanwhile.
        """

    def send(self, data: bytes) -> None:
        """Hand all of `data` to the stream, waiting while it is full; raises WireClosed."""

    def send_now(self, data: bytes) -> bool:
        """Send it if that takes no waiting, in one piece; else nothing of it.  Raises WireClosed."""

    def close(self) -> None:
        """End the stream and wake whoever waits in it; idempotent, from any thread."""

    def last_words(self) -> str:
        """What the far side said on stderr and how it ended, for messages; "" when nothing is known."""


class Opener(Protocol):
    """What brings a wire: `tflaunch.remote.Connector`."""

    def open(self, host: Host, command: str, first: bytes = b"") -> Wire: ...
