"""The TCP connections and the open ports of this host, and what the kernel counts of each connection.

From netlink (SOCK_DIAG), which is quicker than /proc and alone knows the bytes and the times; from /proc/net/tcp where
netlink is refused (gVisor, some seccomp profiles, a kernel without tcp_diag).
"""

import os
import struct

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Dict, Iterator, List, Optional, Sequence, Set, Tuple

ESTABLISHED, SYN_SENT, LISTEN = 1, 2, 10  # as in include/net/tcp_states.h
NETLINK, SOCK_DIAG = 16, 4  # the family, and its protocol
SOCK_DIAG_BY_FAMILY, REQUEST_DUMP = 20, 0x301
ERROR, DONE = 2, 3  # types of messages
INFO = 2  # the attribute that holds a struct tcp_info
PATIENCE_S = 2.0  # the kernel answers at once
BUFFER = 65536
DNS = 53

_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
# Of a message about a socket: its length and type; state, own port, inode.
_BRIEF = struct.Struct("=IH10x xB2x2s62xI")
_QUERY = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states
# state; own and the peer's port and address; bytes received and unread, in the send queue; user, inode
_SOCKET = struct.Struct("=xBxx2s2s16s16s12x4xIIII")
_ATTRIBUTE = struct.Struct("=HH")
# Of struct tcp_info, which grows with the kernel: retransmits; milliseconds since data was last sent, and received; the
# round-trip time in microseconds; segments sent again; bytes acknowledged and received.
_TCP_INFO = struct.Struct("=2xB41xI4xI12xI28xI16xQQ")
# From Linux 4.6: the shortest round trip of the last minutes in microseconds, segments with data.
_LATER = struct.Struct("=148xI4xI")
TCP_INFO = _TCP_INFO.size  # what it must have at least; a kernel before 4.1 has less


class Connection:
    """A socket of TCP that has a peer, or calls one."""

    __slots__ = (
        "acked",
        "address",
        "calling",
        "got_ago_ms",
        "inode",
        "least_rtt_ms",
        "own_port",
        "port",
        "queued",
        "received",
        "retransmits",
        "rtt_ms",
        "segments",
        "sent_again",
        "sent_ago_ms",
    )

    def __init__(self, inode: int, calling: bool, own_port: int, address: str, port: int) -> None:
        self.inode = inode
        self.calling = calling  # its peer has not answered
        self.own_port = own_port
        self.address = address  # of the peer
        self.port = port
        self.acked = -1  # bytes that the peer has acknowledged; -1: what follows is not known
        self.received = 0  # bytes
        self.queued = 0  # bytes that the peer has not acknowledged, sent or not
        self.retransmits = 0  # of the oldest segment that the peer has not acknowledged
        self.rtt_ms = 0.0
        # Of the last minutes, huge before there was one; 0: this kernel does not tell.
        self.least_rtt_ms = 0.0
        self.sent_again = 0  # segments, since the connection began
        self.segments = 0  # that carried data, sent again or not; 0: this kernel does not tell
        self.sent_ago_ms = 0  # since data was last sent ...
        self.got_ago_ms = 0  # ... and received

    @property
    def counted(self) -> bool:
        """Whether the kernel has told the bytes and times."""
        return self.acked >= 0

    @property
    def counts(self) -> "List[float]":
        """All that is counted, in the order of a flow (tflaunch.protocol.messages)."""
        return [self.acked, self.received, self.queued, self.retransmits, self.rtt_ms]

    @property
    def pace(self) -> "List[int]":
        """What tells how fast it is, in the order of a `paces` of a look (tflaunch.protocol.messages)."""
        return [self.sent_again, self.segments, self.sent_ago_ms, self.got_ago_ms]


class Sockets:
    """What the tables of the kernel said."""

    def __init__(self, counted: bool) -> None:
        self.counted = counted  # all connections are
        self.listening = []  # type: List[Tuple[int, int]]  # (inode, port)
        self.connections = []  # type: List[Connection]


def inodes_of(pid: int) -> "Optional[List[int]]":
    """The inodes of the sockets that a process has open; None when this user may not see them."""
    found = []
    try:
        descriptors = os.listdir("/proc/%d/fd" % pid)
    except PermissionError:
        return None
    except OSError:
        return []  # the process has ended meanwhile
    for each in descriptors:
        try:
            target = os.readlink("/proc/%d/fd/%s" % (pid, each))
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(int(target[8:-1]))
    return found


class SocketTable:
    """All sockets of TCP here that listen, have a peer or call one, and those of UDP that ask a name server."""

    def __init__(self) -> None:
        self._listening = []  # type: List[Tuple[int, int]]
        self._raw = []  # type: List[Tuple[int, bytes]]  # inode, and what netlink says of that connection
        self._rows = []  # type: List[Tuple[int, Connection]]  # where netlink is refused
        self._dns = list(_dns_calls())
        self._counted = True
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                _dump(family, self._listening, self._raw)
        except (OSError, struct.error):
            self._refused()

    def _refused(self) -> None:
        """Netlink has nothing to tell, or not all that is asked for."""
        self._counted, self._listening, self._raw, self._rows = False, [], [], []
        for path in ("/proc/net/tcp", "/proc/net/tcp6"):
            for state, connection in _rows(path, (ESTABLISHED, SYN_SENT, LISTEN)):
                if state == LISTEN:
                    self._listening.append((connection.inode, connection.own_port))
                else:
                    self._rows.append((connection.inode, connection))

    @property
    def inodes(self) -> "Set[int]":
        """Those of all these sockets; a connection that nobody has accepted has none."""
        tables = (self._listening, self._raw, self._rows, self._dns)  # type: Tuple[Sequence[Tuple[int, Any]], ...]
        return {inode for table in tables for inode, _ in table} - {0}

    def of(self, inodes: "Container[int]") -> Sockets:
        """The connections whose sockets are among these inodes, and all ports that are listened on."""
        try:
            own = [_connection(data) for inode, data in self._raw if inode in inodes]
        except (OSError, struct.error):
            self._refused()
            own = []
        found = Sockets(self._counted)
        found.listening = self._listening
        rows = self._rows + self._dns
        found.connections = own + [connection for inode, connection in rows if inode in inodes]
        return found


def _dns_calls() -> "Iterator[Tuple[int, Connection]]":
    for path in ("/proc/net/udp", "/proc/net/udp6"):
        for _, connection in _rows(path, (ESTABLISHED,)):
            if connection.port == DNS:
                connection.calling = True
                yield connection.inode, connection


# -- netlink


def _dump(family: int, listening: "List[Tuple[int, int]]", raw: "List[Tuple[int, bytes]]") -> None:
    """Add all sockets of that family.  Raises OSError if netlink is refused."""
    states = 1 << ESTABLISHED | 1 << SYN_SENT | 1 << LISTEN
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), states)
    kernel = socket.socket(NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG)
    try:
        kernel.settimeout(PATIENCE_S)
        head = _MESSAGE.pack(_MESSAGE.size + len(query), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0)
        kernel.sendto(head + query, (0, 0))
        while True:
            data, sender = kernel.recvfrom(BUFFER)
            if sender[0] == 0 and not _take(data, listening, raw):  # 0: the kernel
                return
    finally:
        kernel.close()


def _take(data: bytes, listening: "List[Tuple[int, int]]", raw: "List[Tuple[int, bytes]]") -> bool:
    """Take what one part of the kernel's answer says; returns whether more parts come.  Raises OSError."""
    # All sockets of the host come by here.
    at, end, head, least = 0, len(data), _MESSAGE.size, _BRIEF.size
    while at + least <= end:
        length, type, state, own_port, inode = _BRIEF.unpack_from(data, at)
        if type == DONE:
            return False
        if type == ERROR or length < least:
            raise OSError("netlink refuses")
        if state == LISTEN:
            listening.append((inode, int.from_bytes(own_port, "big")))
        else:
            raw.append((inode, data[at + head : at + length]))
        at += (length + 3) & ~3
    if at + head <= end:  # too short to be about a socket
        _, type, _, _, _ = _MESSAGE.unpack_from(data, at)
        if type == DONE:
            return False
        raise OSError("netlink refuses")
    return True


def _connection(data: bytes) -> Connection:
    """Read one struct inet_diag_msg with its attributes; raises OSError without the bytes and times."""
    state, own_port, port, _, peer, _, queued, _, inode = _SOCKET.unpack_from(data)
    address = peer[:4] if data[0] == socket.AF_INET else peer
    connection = Connection(
        inode, state == SYN_SENT, int.from_bytes(own_port, "big"), _text(address), int.from_bytes(port, "big")
    )
    begins, length = _info_of(data)
    (
        connection.retransmits,
        connection.sent_ago_ms,
        connection.got_ago_ms,
        rtt_us,
        connection.sent_again,
        connection.acked,
        connection.received,
    ) = _TCP_INFO.unpack_from(data, begins)
    connection.rtt_ms = round(rtt_us / 1000.0, 2)
    connection.queued = queued
    if length >= _LATER.size:
        least_us, connection.segments = _LATER.unpack_from(data, begins)
        connection.least_rtt_ms = least_us / 1000.0
    return connection


_info_at = _SOCKET.size  # where it was in the last one: a kernel puts it at the same place in nearly all


def _info_of(data: bytes) -> "Tuple[int, int]":
    """Where the struct tcp_info begins, and how long it is; raises OSError where there is none."""
    global _info_at  # noqa: PLW0603 - a hint, which is checked
    for at in (_info_at, _SOCKET.size):
        while at + _ATTRIBUTE.size <= len(data):
            length, type = _ATTRIBUTE.unpack_from(data, at)
            if type == INFO and length >= _ATTRIBUTE.size + TCP_INFO:
                _info_at = at
                return at + _ATTRIBUTE.size, length - _ATTRIBUTE.size
            at += max(_ATTRIBUTE.size, (length + 3) & ~3)  # noqa: PLW2901
    raise OSError("this kernel tells no bytes")


# -- /proc


def _rows(path: str, states: "Sequence[int]") -> "Iterator[Tuple[int, Connection]]":
    """(state, connection) of each line of such a table that has one of these states."""
    try:
        with open(path) as table:
            next(table, "")
            for line in table:
                fields = line.split(None, 10)
                state, inode = int(fields[3], 16), int(fields[9])
                if state in states:
                    own_port = int(fields[1].rpartition(":")[2], 16)
                    address, port = _endpoint(fields[2])
                    yield state, Connection(inode, state == SYN_SENT, own_port, address, port)
    except OSError:
        return  # no IPv6 here


def _endpoint(text: str) -> "Tuple[str, int]":
    """`0100007F:1F90` -> ("127.0.0.1", 8080): words of 32 bits in this machine's order."""
    import sys

    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[start : start + 8]) for start in range(0, len(address), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return _text(b"".join(words)), int(port, 16)


_texts = {}  # type: Dict[bytes, str]
TEXTS = 4096  # that are kept: most connections are to the same hosts


def _text(packed: bytes) -> str:
    """An IP address in words."""
    text = _texts.get(packed)
    if text is None:
        # IPv4 over an IPv6 socket
        short = packed[12:] if packed[:12] == bytes(10) + b"\xff\xff" else packed
        text = socket.inet_ntop(socket.AF_INET if len(short) == 4 else socket.AF_INET6, short)
        if len(_texts) >= TEXTS:
            _texts.clear()
        _texts[packed] = text
    return text
