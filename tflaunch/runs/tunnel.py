"""Sockets of this machine that lead to programs on a host, through the connection to its agent.

Who calls while the connection is lost, or TensorBoard is still starting, waits.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.selector import Selector
from tflaunch.protocol.tcp_streams import Streams
from tflaunch.protocol.wire import Message

BACKLOG = 64

Send = Callable[..., None]


class Tunnel:
    """Takes connections at some sockets of this machine; a thread of its own passes bytes on."""

    def __init__(self, ways: Mapping[socket.socket, Mapping[str, Any]]) -> None:
        """`ways`: a socket that listens -> the fields of `connect` that say where it leads.

        Both end with `close`, and at once where this fails: it raises OSError, RuntimeError if no thread can start.
        """
        self._ways = ways
        self._led = tuple(ways.values())
        self._count = itertools.count()
        # For the thread; each returns whether the thread goes on.
        self._orders: deque[Callable[[], bool]] = deque()
        self._streams: Streams | None = None
        self._send: Send | None = None
        self._open = True
        with contextlib.ExitStack() as undo:
            for listener in ways:
                undo.callback(listener.close)
                listener.setblocking(False)
            self._wake, self._woken = socket.socketpair()
            for each in (self._wake, self._woken):
                undo.callback(each.close)
                each.setblocking(False)
            self._selector = Selector()
            undo.callback(self._selector.close)
            self._selector.register(self._woken, selectors.EVENT_READ, self._obey)
            self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)
            self._thread.start()
            undo.pop_all()

    def begin(self, send: Send) -> None:
        """The host answers: let callers in.  The thread sends its messages by `send`."""
        self._order(lambda: self._begin(send))

    def pause(self) -> None:
        """The connection is lost: close the connections, and let new callers wait."""
        self._order(self._pause)

    def take(self, message: Message) -> None:
        """Take a message that the agent sent."""
        self._order(lambda: self._take(message))

    def way(self, number: int) -> Mapping[str, Any]:
        """The fields of `connect` of that stream, and one that there is not has some, too."""
        return self._led[number % len(self._led)]

    def close(self) -> None:
        """Close the sockets, and wait for the thread to end; may be called twice."""
        self._order(lambda: False)
        self._thread.join()

    def _order(self, order: Callable[[], bool]) -> None:
        self._orders.append(order)
        try:
            self._wake.send(b"!")
        except OSError:
            pass  # the thread is awake already, or at its end

    # From here on: in the thread.

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                key.data()
        self._pause()
        for each in (*self._ways, self._wake, self._woken):
            each.close()
        self._selector.close()

    def _obey(self) -> None:
        self._woken.recv(4096)
        while self._orders:
            self._open &= self._orders.popleft()()

    def _begin(self, send: Send) -> bool:
        self._pause()
        self._send = send
        self._streams = Streams(self._selector, send)
        for listener, where in self._ways.items():
            accept = functools.partial(self._accept, listener, where)
            self._selector.register(listener, selectors.EVENT_READ, accept)
        return True

    def _pause(self) -> bool:
        if self._streams is not None:
            for listener in self._ways:
                self._selector.unregister(listener)
            self._streams.close()
            self._streams = None
        return True

    def _take(self, message: Message) -> bool:
        if self._streams is not None:
            self._streams.take(message)
        return True

    def _accept(self, listener: socket.socket, where: Mapping[str, Any]) -> None:
        if self._send is None or self._streams is None:
            return  # the connection was lost in this same turn of the loop: the caller waits for the next one
        connection = self._selector.accept(listener)
        if connection is None:
            return
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Its remainder says which way: nothing need be kept of a connection.
        number = next(self._count) * len(self._led) + self._led.index(where)
        self._send("connect", stream=number, **where)
        self._streams.add(number, connection)


class BrowserTunnel(Tunnel):
    """A port of this machine's loopback, for browsers, that leads to TensorBoard."""

    def __init__(self, port: int = 0) -> None:
        """Listen on `port`, or on any free one if it is 0; raises UsageError if the port is taken."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise UsageError(
                f"--tensorboard-port {port}: {error.strerror}", "name another one, or leave it out"
            ) from None
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        super().__init__({listener: {}})
