"""The TCP connections and the open ports of this host, and what the kernel counts of each connection.

From netlink (SOCK_DIAG), which is quicker than /proc and alone knows the bytes and the times; from /proc/net/tcp where
netlink is refused (gVisor, some seccomp profiles, a kernel without tcp_diag).
"""

import os
import struct

from tflaunch.protocol.light_stdlib import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Mapping, Optional, Sequence, Tuple

ESTABLISHED, SYN_SENT, LISTEN = 1, 2, 10  # as in include/net/tcp_states.h
NETLINK, SOCK_DIAG = 16, 4  # the family, and its protocol
SOCK_DIAG_BY_FAMILY, REQUEST_DUMP = 20, 0x301
ERROR, DONE = 2, 3  # types of messages
INFO = 2  # the attribute that holds a struct tcp_info
PATIENCE_S = 2.0  # the kernel answers at once
BUFFER = 65536
DNS = 53

_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_QUERY = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states
# state; own and the peer's port and address; bytes received and unread, in the send queue; user, inode
_SOCKET = struct.Struct("=xBxx2s2s16s16s12x4xIIII")
_INODE = struct.Struct("=I")
_ATTRIBUTE = struct.Struct("=HH")
# Of struct tcp_info, which grows with the kernel: each from its offset.
# Milliseconds since data was last sent, and received; segments sent again; segments with data, from Linux 4.6.
_SENT_AGO, _GOT_AGO = struct.Struct("=44xI"), struct.Struct("=52xI")
_SENT_AGAIN, _SEGMENTS = struct.Struct("=100xI"), struct.Struct("=156xI")
_RETRANSMITS, _ROUND_TRIP, _BYTES = struct.Struct("=2xB"), struct.Struct("=68xI"), struct.Struct("=120xQQ")
TCP_INFO = _BYTES.size  # what it must have at least; a kernel before 4.1 has less


class Connection:
    """A socket of TCP that has a peer, or calls one."""

    __slots__ = (
        "acked",
        "address",
        "calling",
        "got_ago_ms",
        "inode",
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


def sockets(inodes: "Mapping[int, str]") -> Sockets:
    """The connections whose sockets are among these inodes, and all ports that are listened on."""
    try:
        return _from_netlink(inodes)
    except (OSError, struct.error):
        return _from_proc(inodes)


def dns_calls(inodes: "Mapping[int, str]") -> "List[Connection]":
    """The UDP sockets, of these, that ask a name server."""
    found = []
    for path in ("/proc/net/udp", "/proc/net/udp6"):
        for _, connection in _rows(path, inodes, (ESTABLISHED,)):
            if connection.port == DNS:
                connection.calling = True
                found.append(connection)
    return found


# -- netlink


def _from_netlink(inodes: "Mapping[int, str]") -> Sockets:
    """Raises OSError if it is refused."""
    found = Sockets(True)
    for family in (socket.AF_INET, socket.AF_INET6):
        _dump(family, inodes, found)
    return found


def _dump(family: int, inodes: "Mapping[int, str]", found: Sockets) -> None:
    states = 1 << ESTABLISHED | 1 << SYN_SENT | 1 << LISTEN
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), states)
    kernel = socket.socket(NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG)
    try:
        kernel.settimeout(PATIENCE_S)
        head = _MESSAGE.pack(_MESSAGE.size + len(query), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0)
        kernel.sendto(head + query, (0, 0))
        while True:
            data, sender = kernel.recvfrom(BUFFER)
            if sender[0] == 0 and not _take(data, inodes, found):  # 0: the kernel
                return
    finally:
        kernel.close()


def _take(data: bytes, inodes: "Mapping[int, str]", found: Sockets) -> bool:
    """Take what one part of the kernel's answer says; returns whether more parts come.  Raises OSError."""
    at = 0
    inode_at = _MESSAGE.size + _SOCKET.size - _INODE.size
    while at + _MESSAGE.size <= len(data):
        length, type, _, _, _ = _MESSAGE.unpack_from(data, at)
        if type == DONE:
            return False
        if type == ERROR or length < _MESSAGE.size + _SOCKET.size:
            raise OSError("netlink refuses")
        (inode,) = _INODE.unpack_from(data, at + inode_at)
        if data[at + _MESSAGE.size + 1] == LISTEN:
            own_port = data[at + _MESSAGE.size + 4 : at + _MESSAGE.size + 6]
            found.listening.append((inode, int.from_bytes(own_port, "big")))
        elif inode in inodes:
            found.connections.append(_connection(data[at + _MESSAGE.size : at + length]))
        at += (length + 3) & ~3
    return True


def _connection(data: bytes) -> Connection:
    """Read one struct inet_diag_msg with its attributes; raises OSError without the bytes and times."""
    state, own_port, port, _, peer, _, queued, _, inode = _SOCKET.unpack_from(data)
    address = peer[:4] if data[0] == socket.AF_INET else peer
    connection = Connection(
        inode, state == SYN_SENT, int.from_bytes(own_port, "big"), _text(address), int.from_bytes(port, "big")
    )
    at = _SOCKET.size
    while at + _ATTRIBUTE.size <= len(data):
        length, type = _ATTRIBUTE.unpack_from(data, at)
        if type == INFO and length >= _ATTRIBUTE.size + TCP_INFO:
            info = data[at + _ATTRIBUTE.size : at + length]
            (connection.retransmits,), (rtt_us,) = (
                _RETRANSMITS.unpack_from(info),
                _ROUND_TRIP.unpack_from(info),
            )
            connection.acked, connection.received = _BYTES.unpack_from(info)
            connection.rtt_ms = round(rtt_us / 1000.0, 2)
            connection.queued = queued
            (connection.sent_again,), (connection.sent_ago_ms,) = (
                _SENT_AGAIN.unpack_from(info),
                _SENT_AGO.unpack_from(info),
            )
            (connection.got_ago_ms,) = _GOT_AGO.unpack_from(info)
            if len(info) >= _SEGMENTS.size:
                (connection.segments,) = _SEGMENTS.unpack_from(info)
            return connection
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    raise OSError("this kernel tells no bytes")


# -- /proc


def _from_proc(inodes: "Mapping[int, str]") -> Sockets:
    found = Sockets(False)
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for state, connection in _rows(path, inodes, (ESTABLISHED, SYN_SENT, LISTEN)):
            if state == LISTEN:
                found.listening.append((connection.inode, connection.own_port))
            else:
                found.connections.append(connection)
    return found


def _rows(
    path: str, inodes: "Mapping[int, str]", states: "Sequence[int]"
) -> "Iterator[Tuple[int, Connection]]":
    """(state, connection) of each line of such a table that has one of these states; others' only if they listen."""
    try:
        with open(path) as table:
            next(table, "")
            for line in table:
                fields = line.split(None, 10)
                state, inode = int(fields[3], 16), int(fields[9])
                if state in states and (state == LISTEN or inode in inodes):
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


def _text(packed: bytes) -> str:
    """An IP address in words."""
    if packed[:12] == bytes(10) + b"\xff\xff":  # IPv4 over an IPv6 socket
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
