"""Ports that are held from before the plan to the end of the run, so that nobody can take one in between.

Each is bound, then opened to this user's other sockets by SO_REUSEPORT, and never listens: TensorFlow joins it
(TF_GRPC_REUSE_PORT=true), as JAX's coordinator does by itself, every other bind is refused, and connects are refused
until TensorFlow itself listens.  PyTorch's store only says SO_REUSEADDR, with libuv as without: see `share`.
"""

import errno
import os

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Tuple

DEFAULT_RANGE = (20000, 29999)  # clear of the services below and of the ephemeral ports above
SCAN_LIMIT = 4000  # bind attempts before giving up


def ephemeral_range() -> "Tuple[int, int]":
    """The ports that the kernel gives to outgoing connections: never safe to hand to a server."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first, last = file.read().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return 32768, 60999


class HeldPorts:
    """The ports that this agent holds."""

    def __init__(self) -> None:
        self._held = {}  # type: Dict[int, socket.socket]

    def hold(self, count: int, wanted: "Optional[Tuple[int, int]]", seed: int) -> "List[int]":
        """Hold up to `count` ports (fewer when no more are free) and return them, ascending.

        `seed` turns the place where the search begins, so that runs side by side seldom meet.
        """
        first, last = wanted or DEFAULT_RANGE
        size = last + 1 - first
        low, high, turn = 0, -1, 0  # those that are named are taken in turn, wherever they are
        if wanted is None:
            low, high = ephemeral_range()
            turn = seed % size
        tries = 0
        for number in range(size):
            if len(self._held) >= count or tries >= SCAN_LIMIT:
                break
            port = first + (turn + number) % size
            if port not in self._held and not low <= port <= high:
                tries += 1
                bound = _hold(port)
                if bound is not None:
                    self._held[port] = bound
        return self.held

    @property
    def held(self) -> "List[int]":
        """The held ports, ascending."""
        return sorted(self._held)

    def share(self, port: int) -> None:
        """Let a program listen there that says SO_REUSEADDR alone, from now on, also when it starts again.

        Until it listens, whoever else on this machine says so may take that port before it; all others are refused,
        and who asks for any port does not get it.
        """
        held = self._held.get(port)
        if held is None:
            return
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bind(port, socket.SO_REUSEADDR).close()
        except OSError:  # no Linux kernel: let go of it
            self._held.pop(port).close()

    def keep(self, ports: "Iterable[int]") -> None:
        """Let go of all others."""
        keep = set(ports)
        for port in set(self._held) - keep:
            self._held.pop(port).close()


def _hold(port: int) -> "Optional[socket.socket]":
    # First as everybody's, which is refused if anyone at all has it: two agents of one user could both bind it with
    # SO_REUSEPORT.  Only then is it opened, in no time at all, and with nothing that another user could take away.
    try:
        bound = bind(port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bind(port, socket.SO_REUSEPORT).close()
    except OSError:  # no Linux kernel, but what plays one: there it counts only what was said before
        bound.close()
        try:
            return bind(port, socket.SO_REUSEPORT)
        except OSError:
            return None
    return bound


def bind(port: int, option: "Optional[int]" = None) -> socket.socket:
    """A socket on every address, IPv4 and IPv6 as TensorFlow's own, with that option of how it may be shared."""
    try:
        bound = socket.socket(socket.AF_INET6)
        address = "::"
    except OSError:
        bound = socket.socket(socket.AF_INET)
        address = "0.0.0.0"  # noqa: S104
    try:
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if option is not None:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            bound.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or bound.family != socket.AF_INET6:
                raise
            bound.close()  # IPv6 is compiled in but switched off
            bound = socket.socket(socket.AF_INET)
            if option is not None:
                bound.setsockopt(socket.SOL_SOCKET, option, 1)
            bound.bind(("0.0.0.0", port))  # noqa: S104
    except OSError:
        bound.close()
        raise
    return bound
