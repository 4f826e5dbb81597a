"""What the launcher expects of a wire (a duplex byte stream to an agent, however it is carried) and of its opener."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError

# The hint for a connection that breaks at the first full-sized packet.
LARGE_PACKETS = (
    "are large packets lost between here and there (MTU)? try: ping -M do -s 1472 {host}; if only smaller ones "
    "(-s 500) come back, set the MTU of the network interface here or there to what passes: ip link set dev eth0 mtu N"
)
_NOT_INTERACTIVE = (
    "let it end where nobody types: begin ~/.bashrc there with `case $- in *i*) ;; *) return;; esac`; then "
    "`ssh {host} true </dev/null` must end at once"
)


class Advice(NamedTuple):
    """What to do where the connection stands and no agent answers: hints, in which `{host}` stands for the name."""

    silence: str  # why nothing may have come, to be read behind "nothing came of the agent"
    start_up: str  # nothing came, or what was sent to the agent came back
    no_shell: str  # what should run the command there runs none
    ended: str  # it ended before the agent answered
    large_packets: str  # it broke, or stalled, at the first full-sized packet
    cut: str  # it broke


OF_SSH = Advice(
    silence=": a start-up file of the login shell does not end, or has read what was sent to the agent",
    start_up=_NOT_INTERACTIVE,
    no_shell="give the account a shell there (chsh -s /bin/bash), or set another `user:` in the hostfile",
    ended="try: ssh {host} python3 --version",
    large_packets=LARGE_PACKETS,
    cut="was sshd restarted there, or does something on the way cut connections? its log says more: journalctl -u ssh",
)


class Wire(Protocol):
    """Any duplex byte stream to an agent; any thread may send or close."""

    @property
    def advice(self) -> Advice:
        """What to do when no agent answers by this wire."""

    def listen(self, take: Callable[[bytes], None]) -> None:
        """Give `take` all that comes from now on, in order, and b"" at the end of the stream, however it ended.

        Call it once.  One thread at a time calls `take`: the wire's own or, for earlier data, the caller's.
        `take` must not send or wait: while it runs, nothing more is read.
        """

    def send(self, data: bytes) -> None:
        """Write all of `data`, waiting while the stream is full.  Raises WireClosed."""

    def send_now(self, data: bytes) -> bool:
        """Write all of `data` if that takes no waiting, else nothing; returns whether it did.  Raises WireClosed."""

    @property
    def acknowledged(self) -> bool:
        """Whether the host's kernel acknowledges what is sent; False where nothing tells."""

    def close(self) -> None:
        """End the stream, and wake the threads that wait in `send`; idempotent, silent, from any thread."""

    def last_words(self) -> str:
        """What the host wrote to stderr and how the command there ended, for messages; "" when nothing is known."""


class Opener(Protocol):
    """Opens wires: `tflaunch.remote.Connector`."""

    def open(self, host: Host, command: str, first: bytes = b"", /) -> Wire:
        """Run `command` on that host and send `first` to it.  Raises ConnectError."""


class Way(Opener, Protocol):
    """One way to hosts, which their `connection` names: by SSH, by the system's `ssh`, to this machine, to slots."""

    def unanswered(self, host: Host, /) -> ConnectError | None:
        """The error for a host that is being dialled and whose network has not answered yet; None for any other."""

    def hostname(self, host: Host, /) -> str:
        """What is dialled: a name or an address without the port; "" where nothing is."""

    def user(self, host: Host, /) -> str:
        """The account that runs the tasks there; "" for one without a name."""

    def host_key(self, host: Host, /) -> str:
        """The fingerprint of the host's key; "" before the first connection, and where there is none."""

    def close(self) -> None:
        """End what the wires share; each caller of `open` closes its own wire."""
