"""What the kernel knows of a TCP connection: struct tcp_info of linux/tcp.h.

The kernel measures the round trip itself, so a busy process does not make it longer.
"""

import sys

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_BYTES = 256
_NEVER = 2**32 - 1  # the kernel's word for a round trip that it has not measured yet


class TcpInfo:
    """One look at a connection.

    rtt_ms       the shortest round trip so far
    lost         packets that this end has sent again, or that have reached it out of their order
    unacked      packets that this end has sent and the other has not acknowledged
    unsent       bytes that wait behind them
    acked_bytes  what the other end has acknowledged
    acked_ago_s  when it last acknowledged anything
    """

    def __init__(self, raw: bytes) -> None:
        def number(start: int, size: int = 4) -> int:  # 0 where an older kernel has no such field
            return int.from_bytes(raw[start : start + size], sys.byteorder)

        shortest = number(148)
        self.rtt_ms = (shortest if 0 < shortest < _NEVER else number(68)) / 1000
        self.lost = number(100) + number(224)
        self.unacked = number(24)
        self.unsent = number(144)
        self.acked_bytes = number(120, 8)
        self.acked_ago_s = number(56) / 1000


def tcp_info(connection: socket.socket) -> "Optional[TcpInfo]":
    """What the kernel knows of it; None where it does not say, as outside Linux."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
    except (AttributeError, OSError):
        return None
    return TcpInfo(raw) if len(raw) >= 104 else None
