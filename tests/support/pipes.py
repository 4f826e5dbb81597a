"""Wires whose far end is the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tflaunch.hosts import Host
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions.dialler import Connected
from tflaunch.sessions.group import Sessions
from tflaunch.sessions.wires import OF_SSH

EXIT = {
    "n": 3,
    "time": 1.0,
    "task": "worker/0",
    "attempt": 0,
    "code": 0,
    "signal": None,
    "signal_name": "",
    "seconds": 2.5,
    "stopped": False,
}


class Pipe:
    """A wire whose far end is the test."""

    advice = OF_SSH

    def __init__(self) -> None:
        self.sent = b""
        self.closed = False
        self.feed: Callable[[bytes], None]

    def listen(self, take: Callable[[bytes], None]) -> None:
        self.feed = take

    def send(self, data: bytes) -> None:
        self.sent += data

    def send_now(self, data: bytes) -> bool:
        self.sent += data
        return True

    @property
    def acknowledged(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def last_words(self) -> str:
        return ""


class Nothing:
    """Takes whatever it is told."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Opener:
    """Opens nothing."""

    def open(self, *_: Any) -> Any:
        raise ConnectError("closed")


def sessions(lease_s: float | None = None) -> tuple[Sessions, Pipe]:
    """The agents of a command that has one, on gpu01."""
    made, pipe = Sessions(Opener(), lambda *_: None, lease_s), Pipe()
    made.put(Connected(Host("gpu01"), pipe))  # type: ignore[arg-type]
    made.next(0.0)
    pipe.feed(wire.MAGIC)
    return made, pipe
