"""Measures how much one host can send to another: `check --bandwidth`.

The sender connects as the dial check does and, once the other agent has proven itself, sends as much as it can.  What
the other end has acknowledged counts, so what waits in buffers does not.  The first part of the time is left out, for
TCP begins slowly.  The receiver throws all away.  All runs in the agents' loops: nothing blocks.
"""

import errno
import os
import time

from tflaunch.protocol.dialling import (
    ANSWER_LIMIT,
    FAILED,
    HELLO_PUSH,
    NONCE_BYTES,
    SILENT,
    STRANGER,
    addresses_of,
    proof,
    verdict_of,
)
from tflaunch.protocol.light_stdlib import socket
from tflaunch.protocol.selector import EVENT_READ, EVENT_WRITE
from tflaunch.protocol.tcp_info import tcp_info

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from tflaunch.protocol.selector import Selector

BLOCK = 1 << 20  # bytes of one send
BLOCKS = 16  # before the loop turns to others
SLOW_START = 0.25  # this share of the time does not count
CALLERS = 8  # at once; the oldest has to go for another
CONNECT_S = 5.0  # for the connect and the proof


class Push:
    """Sends to one target for `seconds`; call `step` until it returns True, then read `result`."""

    def __init__(self, selector: "Selector", key: str, target: "List[Any]", seconds: float) -> None:
        self.result = {"bytes": 0, "seconds": 0.0, "rtt_ms": 0.0, "lost": 0, "failed": None}  # type: Dict[str, Any]
        self._selector = selector
        self._key = key
        self._address, self._port, self._host = target
        self._seconds = seconds
        self._connection = None  # type: Optional[socket.socket]
        self._nonce = os.urandom(NONCE_BYTES)
        self._answer = b""
        self._block = b""
        self._since = time.monotonic()  # when it began; then, when the other end had proven itself
        self._sent = 0
        self._counted = None  # type: Optional[List[float]]  # when the slow start was over, and the bytes by then
        self._begin()

    def _begin(self) -> None:
        found = addresses_of(self._address, self._port)  # the dial check has looked that name up before
        if isinstance(found, str):
            self._fail([FAILED, found])
            return
        family, where = found[0]
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        code = connection.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._fail(verdict_of(code))
            return
        self._connection = connection
        self._selector.register(connection, EVENT_WRITE, self._connected)

    def step(self, now: float) -> bool:
        """Go on; True once there is a result."""
        if self._connection is None:
            return True
        passed = now - self._since
        if not self._block:
            if passed > CONNECT_S:
                self._fail([SILENT, ""])
        elif self._counted is None and passed >= SLOW_START * self._seconds:
            self._counted = [now, self._acked()]
        elif self._counted is not None and passed >= self._seconds:
            info = tcp_info(self._connection)
            self.result["bytes"] = max(0, self._acked() - int(self._counted[1]))
            self.result["seconds"] = round(now - self._counted[0], 6)
            if info is not None:
                self.result["rtt_ms"], self.result["lost"] = info.rtt_ms, info.lost
            self.close()
        return self._connection is None

    def _acked(self) -> int:
        info = None if self._connection is None else tcp_info(self._connection)
        return self._sent if info is None else info.acked_bytes

    def _connected(self) -> None:
        if self._connection is None:
            return
        try:
            self._connection.send(HELLO_PUSH + self._nonce)
        except OSError as error:
            why = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._fail(verdict_of(why or error.errno or 0))
            return
        self._selector.modify(self._connection, EVENT_READ, self._answered)

    def _answered(self) -> None:
        if self._connection is None:
            return
        try:
            data = self._connection.recv(ANSWER_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._answer += data
        if data and b"\n" not in self._answer and len(self._answer) < ANSWER_LIMIT:
            return
        if self._answer.partition(b" ")[0] != proof(self._key, self._nonce, self._host, self._port):
            self._fail([STRANGER, ""])
            return
        self._since = time.monotonic()
        self._block = bytes(BLOCK)
        self._selector.modify(self._connection, EVENT_WRITE, self._send)

    def _send(self) -> None:
        if self._connection is None:
            return
        try:
            for _ in range(BLOCKS):
                self._sent += self._connection.send(self._block)
        except BlockingIOError:
            pass
        except OSError:
            self._fail([FAILED, "it hangs up in the middle"])

    def _fail(self, why: "List[str]") -> None:
        self.result["failed"] = why
        self.close()

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._connection.close()
            self._connection = None


class Sink:
    """The other end: throws away what the callers send."""

    def __init__(self, selector: "Selector") -> None:
        self._selector = selector
        self._room = bytearray(BLOCK)
        self._callers = {}  # type: Dict[socket.socket, None]

    def take(self, caller: socket.socket) -> None:
        """Read from this caller until it hangs up."""
        if len(self._callers) >= CALLERS:
            self._drop(next(iter(self._callers)))
        self._callers[caller] = None
        self._selector.register(caller, EVENT_READ, lambda: self._read(caller))

    def _read(self, caller: socket.socket) -> None:
        if caller not in self._callers:
            return  # dropped in this same turn of the loop
        try:
            for _ in range(BLOCKS):
                if not caller.recv_into(self._room, BLOCK, socket.MSG_DONTWAIT):
                    self._drop(caller)
                    return
        except BlockingIOError:
            pass
        except OSError:
            self._drop(caller)

    def _drop(self, caller: socket.socket) -> None:
        del self._callers[caller]
        self._selector.unregister(caller)
        caller.close()

    def close(self) -> None:
        """Hang up on all of them; idempotent."""
        for caller in list(self._callers):
            self._drop(caller)
