"""The coordinator's connections: to its own host's agent by that agent's socket, to the others over TCP (net.peers)."""

import errno
import os
import selectors
import socket
import time

from tflaunch.agent.net.name_lookup import NameLookup
from tflaunch.agent.net.peers import Handshake, PeerError, SealedStream
from tflaunch.protocol import wire
from tflaunch.protocol.dialling import addresses_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Protocol, Set, Tuple, Union

    from tflaunch.agent.host.rundir import RunDirectory

    class Listener(Protocol):
        """Who hears what comes, and what ends."""

        def dial(self, host: str) -> None:
            """Its address is known now: dial it again."""

        def take(self, host: str, peer: "PeerConnection", data: bytes) -> None:
            """Bytes of a host; raises WireError."""

        def lost(self, host: str, reason: str) -> None:
            """The connection has ended, or did not come about."""

        def broke(self, host: str, what: str) -> None:
            """That host breaks the protocol between agents."""


LOOKUP_S = 5.0  # how long a name service may take for the next name
UNREAD_BYTES = (
    4 * 1024 * 1024
)  # that may wait to be sent to one host; all orders to a thousand tasks are a tenth of that


class PeerConnection:
    """The connection to one agent, from the dial to its end."""

    def __init__(self, connection: socket.socket, connected: bool) -> None:
        self.socket = connection
        self.connected = connected
        self.handshake = None  # type: Optional[Handshake]
        self.stream = None  # type: Optional[Union[socket.socket, SealedStream]]
        self.decoder = wire.Decoder(head_limit=wire.ANSWER_LIMIT)
        self.held = bytearray()  # bytes that wait until this host's agent has the memory that explains them
        self.out = bytearray()  # to be sent now
        self.attached = False


class PeerConnections:
    """All of them, by host."""

    def __init__(
        self, directory: "RunDirectory", members: "Mapping[str, List[Any]]", listener: "Listener"
    ) -> None:
        """`members`: host -> address, port, secret in hex."""
        self.by_host = {}  # type: Dict[str, PeerConnection]
        self._directory = directory
        self._members = members
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        # Host -> family, what `connect` takes.  A look-up blocks, and may fail later: the next coordinator has them.
        self.addresses = {}  # type: Dict[str, List[Any]]
        self._sought = set()  # type: Set[str]  # hosts whose names are to be looked up
        self._lookup = None  # type: Optional[NameLookup]

    def dial(self, host: str) -> None:
        """Begin to connect to a host, or to look its name up; raises OSError."""
        if host == self._directory.host:
            own = self._directory.connect()
            if own is None:
                raise OSError("the agent of this host is gone")
            peer = self.by_host[host] = PeerConnection(own, connected=True)
            peer.stream = own
            own.setblocking(False)
            self._selector.register(own, selectors.EVENT_READ, (host, peer))
            return
        if host not in self._members:
            raise OSError("it was lost before the run was handed over")
        if not self._resolve(host):
            return
        family, address = self.addresses[host]
        connection = socket.socket(family)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failure = connection.connect_ex(tuple(address))  # JSON knows only lists
        if failure not in (0, errno.EINPROGRESS):
            connection.close()
            raise OSError(failure, os.strerror(failure))
        peer = self.by_host[host] = PeerConnection(connection, connected=False)
        self._selector.register(connection, selectors.EVENT_WRITE, (host, peer))

    def _resolve(self, host: str) -> bool:
        """Whether its address is known; if not, it is looked up, without waiting: leases must be renewed meanwhile."""
        if host not in self.addresses:
            address, port = self._members[host][:2]
            found = addresses_of(address, port, socket.AI_NUMERICHOST)
            if isinstance(found, str):
                self._sought.add(host)
                return False
            self.addresses[host] = [*found[0]]
        return True

    def _look_up(self) -> None:
        if self._lookup is None:
            if not self._sought:
                return
            names = sorted({self._members[host][0] for host in self._sought})
            try:
                self._lookup = NameLookup(self._selector, names, LOOKUP_S)
            except OSError as error:
                self._looked_up(dict.fromkeys(names, str(error)))
                return
        found = self._lookup.step(time.monotonic())
        if found is not None:
            self._lookup = None
            self._looked_up(found)

    def _looked_up(self, found: "Mapping[str, Union[str, List[Tuple[int, str]]]]") -> None:
        for host in list(self._sought):
            name, port = self._members[host][:2]
            there = found.get(name)
            if there is None:
                continue  # it is sought since then
            self._sought.discard(host)
            if isinstance(there, str):
                self._listener.lost(host, there)
            else:
                self.addresses[host] = [there[0][0], [there[0][1], port]]
                self._listener.dial(host)

    def hang_up(self, host: str) -> None:
        """Close the connection to a host."""
        self._sought.discard(host)
        peer = self.by_host.pop(host, None)
        if peer is not None:
            try:
                self._selector.unregister(peer.socket)
            except (KeyError, ValueError):
                pass
            peer.socket.close()

    def turn(self, timeout_s: float) -> None:
        """Wait for what comes, and take it."""
        self._look_up()
        for key, events in self._selector.select(timeout_s):
            if callable(key.data):
                key.data()
                continue
            host, peer = key.data  # type: Tuple[str, PeerConnection]
            if self.by_host.get(host) is peer:  # an earlier one of this turn may have ended it
                self._ready(host, peer, events)

    def _ready(self, host: str, peer: PeerConnection, events: int) -> None:
        try:
            if not peer.connected:
                failure = peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if failure:
                    raise OSError(failure, os.strerror(failure))
                peer.connected = True
                secret = bytes.fromhex(self._members[host][2])
                peer.handshake = Handshake(peer.socket, secret, answers=False)
                self._selector.modify(peer.socket, selectors.EVENT_READ, (host, peer))
                return
            if peer.stream is None:
                assert peer.handshake is not None  # noqa: S101
                stream = peer.handshake.step()
                if stream is not None:
                    peer.stream = stream
                    self._listener.take(host, peer, stream.opened())
                return
            if events & selectors.EVENT_READ:
                data = peer.stream.recv(256 * 1024)
                if not data:
                    raise OSError("it hung up")
                self._listener.take(host, peer, data)
        except BlockingIOError:
            return
        except (OSError, PeerError) as error:
            self._listener.lost(host, str(error))
        except wire.WireError as error:
            self._listener.broke(host, str(error))

    def hold(self, host: str, data: bytes) -> None:
        """Have `data` wait for `pass_on`, if there is a connection."""
        peer = self.by_host.get(host)
        if peer is not None and peer.stream is not None:
            peer.held += data

    def pass_on(self, host: str) -> None:
        """Send what waits."""
        peer = self.by_host.get(host)
        if peer is not None and peer.stream is not None:
            peer.out += peer.held
            peer.held.clear()
            self._flush(host, peer)

    def _flush(self, host: str, peer: PeerConnection) -> None:
        assert peer.stream is not None  # noqa: S101
        try:
            while peer.out:
                del peer.out[: peer.stream.send(peer.out)]
            if isinstance(peer.stream, SealedStream):
                peer.stream.flush()
        except BlockingIOError:
            if host != self._directory.host and len(peer.out) > UNREAD_BYTES:
                self._listener.lost(host, "its agent does not read its orders")
                return
        except OSError as error:
            self._listener.lost(host, str(error))
            return
        waits = bool(peer.out) or getattr(peer.stream, "pending", False)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
        if self._selector.get_key(peer.socket).events != events:
            self._selector.modify(peer.socket, events, (host, peer))
