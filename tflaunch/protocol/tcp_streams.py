"""TCP connections carried in the frames of one wire; both ends use this code, in their own loop, without blocking.

Each end sends at most WINDOW bytes of a connection ahead of what the other end has passed on.  So a slow browser, or a
slow server, holds up its own connection only.

    connect  {stream}             a new connection; the receiver knows where it leads
    bytes    {stream} + bytes     data of a connection; no bytes: the end of this direction
    taken    {stream, bytes}      the receiver has passed on so many bytes: more may come
    cut      {stream}             the connection is gone, in both directions
"""

import selectors
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from tflaunch.protocol.wire import Message

TYPES = ("connect", "bytes", "taken", "cut")
WINDOW = 256 * 1024
PIECE = 64 * 1024
MOST = 256  # connections at a time, on one wire


class _Stream:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.out = bytearray()
        self.credit = WINDOW
        self.reads = True  # until the connection here has sent its last byte
        self.writes = True  # until the other end's last byte has been passed on
        self.ends = False  # the other end's last byte has come
        self.events = 0  # what the selector waits for; 0: not registered


class Streams:
    """The connections of one wire; `send` puts a message on it.

    `selector` is one of the module `selectors`, or of protocol/selector.py; the loop calls the `data` of its keys.
    """

    def __init__(self, selector: "Any", send: "Callable[..., None]") -> None:
        self._selector = selector
        self._send = send
        self._streams = {}  # type: Dict[int, _Stream]

    def add(self, number: int, connection: socket.socket) -> None:
        """Carry that connection from now on; its connect may still be under way."""
        if number in self._streams or len(self._streams) >= MOST:
            connection.close()
            self._send("cut", stream=number)
            return
        connection.setblocking(False)
        stream = self._streams[number] = _Stream(connection)
        self._watch(number, stream)

    def connect(self, number: int, port: int) -> None:
        """Connect to that port of this machine, and carry the connection."""
        try:
            connection = socket.socket()
        except OSError:  # there is no descriptor left
            self._send("cut", stream=number)
            return
        connection.setblocking(False)
        try:
            connection.connect(("127.0.0.1", port))
        except BlockingIOError:
            pass
        except OSError:
            connection.close()
            self._send("cut", stream=number)
            return
        self.add(number, connection)

    def take(self, message: "Message") -> None:
        """Take a message of the other end; ignore those about connections that are gone here."""
        number = message["stream"]
        stream = self._streams.get(number)
        if stream is None:
            return
        if message.type == "bytes":
            stream.out += message.body
            stream.ends |= not message.body
            if len(stream.out) > 2 * WINDOW:
                self._drop(number, notify=True)  # the other end does not keep to the window
                return
            self._write(number, stream)
        elif message.type == "taken":
            stream.credit += message["bytes"]
        elif message.type == "cut":
            self._drop(number, notify=False)
            return
        self._watch(number, stream)

    def close(self) -> None:
        """Close all connections: the wire is gone."""
        for number in list(self._streams):
            self._drop(number, notify=False)

    def _watch(self, number: int, stream: _Stream) -> None:
        if self._streams.get(number) is not stream:
            return
        events = selectors.EVENT_READ if stream.reads and stream.credit > 0 else 0
        if stream.out or (stream.ends and stream.writes):
            events |= selectors.EVENT_WRITE
        if events == stream.events:
            return
        if not stream.events:
            self._selector.register(stream.connection, events, lambda: self._ready(number, stream))
        elif events:
            self._selector.modify(stream.connection, events, self._selector.get_key(stream.connection).data)
        else:
            self._selector.unregister(stream.connection)
        stream.events = events

    def _ready(self, number: int, stream: _Stream) -> None:
        if self._streams.get(number) is stream and stream.reads and stream.credit > 0:
            self._read(number, stream)
        if self._streams.get(number) is stream:
            self._write(number, stream)
            self._watch(number, stream)

    def _read(self, number: int, stream: _Stream) -> None:
        try:
            data = stream.connection.recv(min(PIECE, stream.credit))
        except BlockingIOError:
            return
        except OSError:
            self._drop(number, notify=True)
            return
        stream.credit -= len(data)
        stream.reads = bool(data)
        self._send("bytes", data, stream=number)
        self._end(number, stream)

    def _write(self, number: int, stream: _Stream) -> None:
        try:
            sent = stream.connection.send(stream.out[:PIECE]) if stream.out else 0
            if sent:
                del stream.out[:sent]
                self._send("taken", stream=number, bytes=sent)
            if stream.ends and stream.writes and not stream.out:
                stream.writes = False
                stream.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            self._drop(number, notify=True)
            return
        self._end(number, stream)

    def _end(self, number: int, stream: _Stream) -> None:
        if not (stream.reads or stream.writes):
            self._drop(number, notify=False)

    def _drop(self, number: int, notify: bool) -> None:
        stream = self._streams.pop(number)
        if stream.events:
            self._selector.unregister(stream.connection)
        stream.connection.close()
        if notify:
            self._send("cut", stream=number)
