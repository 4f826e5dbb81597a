"""The called end of the dial check (tflaunch.protocol.dialling): it listens on the ports that are held for the tasks.

Its sockets listen beside those that hold the ports (tflaunch.agent.net.ports) until the check ends; from then on the
kernel refuses connects again, until TensorFlow listens.  All runs in the agent's one loop: no threads, nothing blocks.
"""

import time

from tflaunch.agent.net import ports
from tflaunch.protocol.dialling import (
    AT_ONCE,
    HELLO,
    HELLO_LOAD,
    HELLO_PUSH,
    LOAD_BYTES,
    NONCE_BYTES,
    proof,
    set_option,
)
from tflaunch.protocol.light_stdlib import socket
from tflaunch.protocol.selector import EVENT_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Tuple

    from tflaunch.agent.net.throughput import Sink
    from tflaunch.protocol.selector import Selector

BACKLOG = 1024  # all hosts of a large run may dial one port at the same moment
HELLOS = (HELLO, HELLO_LOAD, HELLO_PUSH)
LINGER_S = 10.0  # how long a caller may be connected without saying hello


class Answering:
    """Listens on held ports and answers each caller with a proof, until it is closed."""

    def __init__(self, selector: "Selector", key: str, host: str) -> None:
        self._selector = selector
        self._key = key
        self._host = host
        self._listeners = []  # type: List[socket.socket]
        self._callers = {}  # type: Dict[socket.socket, Tuple[bytes, float]]
        self._pushing = []  # type: List[socket.socket]  # callers that were answered and will send on
        self._sink = None  # type: Optional[Sink]
        self._look_at = 0.0  # for callers that say nothing

    def listen(self, held: "Iterable[int]") -> None:
        """Listen on each of these ports, which this process holds; raises OSError."""
        for port in held:
            listener = ports.bind(port, socket.SO_REUSEPORT)
            self._listeners.append(listener)
            listener.setblocking(False)
            listener.listen(BACKLOG)
            # In this order: a caller need not wake the loop before it speaks; the answer also acknowledges the hello; a
            # caller that does not reset its connection (it is frozen, or the reset is lost) must not keep the port from
            # the next run for a minute.
            set_option(listener, "TCP_DEFER_ACCEPT", int(LINGER_S))
            set_option(listener, "TCP_QUICKACK", 0)
            set_option(listener, "TCP_LINGER2", 1)
            accept = lambda listener=listener, port=port: self._accept(listener, port)  # noqa: E731
            self._selector.register(listener, EVENT_READ, accept)

    def _accept(self, listener: socket.socket, port: int) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LINGER_S
            for late in [each for each, (_, since) in self._callers.items() if now - since > LINGER_S]:
                self._drop(late)
        for _ in range(AT_ONCE):  # then the loop turns to others
            caller = self._selector.accept(listener)
            if caller is None:
                return
            heard = self._answer(caller, port, b"")
            if heard is None:  # most callers have sent their whole hello by now
                self._part(caller)
            else:
                self._callers[caller] = (heard, now)
                read_on = lambda caller=caller: self._read_on(caller, port)  # noqa: E731
                self._selector.register(caller, EVENT_READ, read_on)

    def _read_on(self, caller: socket.socket, port: int) -> None:
        if caller not in self._callers:
            return  # dropped in this same turn of the loop
        heard, since = self._callers[caller]
        heard_now = self._answer(caller, port, heard)
        if heard_now is None:
            self._forget(caller)
            self._part(caller)
        else:
            self._callers[caller] = (heard_now, since)

    def _answer(self, caller: socket.socket, port: int, heard: bytes) -> "Optional[bytes]":
        """Read from the caller and answer it.

        Returns what it has sent so far if the hello is incomplete; None if it was answered or is no dial check.
        """
        wanted = len(HELLO) + NONCE_BYTES
        try:
            data = caller.recv(wanted - len(heard) + 1, socket.MSG_DONTWAIT)
            heard += data
            begins = heard[: len(HELLO)]
            if data and len(heard) < wanted and any(each.startswith(begins) for each in HELLOS):
                return heard
            if data and len(heard) == wanted and begins in HELLOS:
                name = self._host.encode("utf-8", "surrogateescape")
                line = proof(self._key, heard[len(HELLO) :], self._host, port) + b" " + name + b"\n"
                if begins == HELLO:
                    caller.send(line, socket.MSG_DONTWAIT | socket.MSG_MORE)  # in one packet with the goodbye
                elif begins == HELLO_PUSH:
                    caller.send(line, socket.MSG_DONTWAIT)
                    self._pushing.append(caller)
                else:  # separately, or the proof would be lost with the load
                    caller.send(line, socket.MSG_DONTWAIT)
                    room = 4 * LOAD_BYTES  # for all of it at once
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
                    caller.send(b"." * LOAD_BYTES, socket.MSG_DONTWAIT)
                # Now it can be closed: the dialler resets the connection, and the port keeps no TIME_WAIT.
        except BlockingIOError:
            return heard
        except OSError:
            pass
        return None

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        caller.close()

    def _forget(self, caller: socket.socket) -> None:
        del self._callers[caller]
        self._selector.unregister(caller)

    def _part(self, caller: socket.socket) -> None:
        """It was answered: close it, unless it has more to send."""
        if caller not in self._pushing:
            caller.close()
            return
        self._pushing.remove(caller)
        if self._sink is None:
            from tflaunch.agent.net.throughput import Sink

            self._sink = Sink(self._selector)
        self._sink.take(caller)

    def close(self) -> None:
        """Stop listening: from now on the kernel refuses connects; idempotent."""
        for caller in list(self._callers):
            self._drop(caller)
        if self._sink is not None:
            self._sink.close()
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        self._listeners = []
