"""Holds ports from before the plan to the end of the run, so that no other process can take one in between.

A socket binds each port, then sets SO_REUSEPORT, which lets this user's other sockets bind it too; it never listens.
So TensorFlow can bind the port (TF_GRPC_REUSE_PORT=true), and JAX's coordinator does so by itself.  The kernel refuses
every other bind, and all connects until TensorFlow listens.  PyTorch's store only sets SO_REUSEADDR, with or without
libuv: see `share`.
"""

import errno
import os

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Tuple

DEFAULT_RANGE = (20000, 29999)  # above the ports of services, below the ephemeral ports
SCAN_LIMIT = 4000  # bind attempts before giving up


def ephemeral_range() -> "Tuple[int, int]":
    """The ports that the kernel gives to outgoing connections: one may be in use whenever a server wants it."""
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
        """Hold `count` ports, or fewer if no more are free; returns all ports that are held, ascending.

        `wanted` are the first and the last port to try.  Without it `seed` decides where the search begins, so that
        runs side by side seldom try the same ports.
        """
        first, last = wanted or DEFAULT_RANGE
        size = last + 1 - first
        low, high, turn = 0, -1, 0  # ports that the hostfile names are taken in order, ephemeral or not
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
        """From now on let a program that only sets SO_REUSEADDR listen at this port, also after its restart.

        Until that program listens, any other program on this machine that sets SO_REUSEADDR may take the port.  The
        kernel refuses all the rest, and does not choose this port for a program that asks for any port.
        """
        held = self._held.get(port)
        if held is None:
            return
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bind(port, socket.SO_REUSEADDR).close()
        except OSError:  # a kernel that imitates Linux: there only giving up the port helps
            self._held.pop(port).close()

    def keep(self, ports: "Iterable[int]") -> None:
        """Give up all other ports."""
        keep = set(ports)
        for port in set(self._held) - keep:
            self._held.pop(port).close()


def _hold(port: int) -> "Optional[socket.socket]":
    # First without SO_REUSEPORT: so the kernel refuses a port that any socket has; with it, two agents of one user
    # could both bind the port.  The option is set right after the bind; other users cannot take the port in between.
    try:
        bound = bind(port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return None
        raise
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bind(port, socket.SO_REUSEPORT).close()
    except OSError:  # a kernel that imitates Linux: there the option counts only before the bind
        bound.close()
        try:
            return bind(port, socket.SO_REUSEPORT)
        except OSError:
            return None
    return bound


def bind(port: int, option: "Optional[int]" = None) -> socket.socket:
    """A socket bound to every address, IPv4 and IPv6 as TensorFlow's own, with the given SO_ option; raises OSError."""
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
