"""Why there is no trace of a task, by what gRPC gets through the tunnel: its real client, a made-up host."""

from __future__ import annotations

import time
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.wire import Message
from tflaunch.runs.profiler_messages import METHOD
from tflaunch.runs.profiling import Profiler
from tflaunch.sessions.session import Ended, Said

SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # with which an HTTP/2 server begins
NOBODY, LEAVES, BREAKS = 1, 2, 3  # ports


class Host:
    """An agent, and what listens on its host: `send` is called by the tunnel's thread."""

    def __init__(self) -> None:
        self._told: SimpleQueue[Said | Ended] = SimpleQueue()
        self._ports: dict[int, int] = {}
        self.by_host = {"h": self}

    def _say(self, type: str, stream: int, body: bytes = b"") -> None:
        self._told.put(Said("h", Message(type, {"stream": stream}, body)))

    def send(self, type: str, body: bytes = b"", *, stream: int, **fields: Any) -> None:
        if type == "connect":
            port = self._ports[stream] = fields["port"]
            if port == NOBODY:
                self._say("cut", stream)
            else:
                self._say("bytes", stream, SETTINGS)
        elif type == "bytes" and METHOD.encode() in body:
            if self._ports[stream] == LEAVES:
                self._say("cut", stream)
            else:
                self._told.put(Ended("h", ConnectError("gone")))

    def next(self, deadline: float) -> Said | Ended | None:
        try:
            return self._told.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return None


@pytest.mark.parametrize(
    ("port", "why"),
    [
        (NOBODY, "no TensorFlow server answers at its port 1"),
        (LEAVES, "it closed the connection while the trace was taken"),
        (BREAKS, "the connection to its host broke"),
    ],
)
def test_what_is_said_of_a_task_that_sends_no_trace(tmp_path: Path, port: int, why: str) -> None:
    pytest.importorskip("grpc")
    run = SimpleNamespace(run_id="r", shares=[SimpleNamespace(host="h", asked="h")])
    hello = Message("hello", {"ports": True})
    view = SimpleNamespace(run=run, hosts=["h"], hellos={"h": hello}, sessions=Host())
    profiler = Profiler(cast("Any", view), tmp_path, cast("Any", None))
    made = profiler.run(cast("Any", [SimpleNamespace(task="worker/0", host="h", port=port)]), 0.1)
    assert made.failed["worker/0"].startswith(why) and not made.files


def test_an_agent_that_would_lead_elsewhere_is_not_asked(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    run = SimpleNamespace(run_id="r", shares=[SimpleNamespace(host="h", asked="h")])
    view = SimpleNamespace(run=run, hosts=["h"], hellos={"h": Message("hello", {})}, sessions=None)
    task = SimpleNamespace(task="worker/0", host="h", port=LEAVES)
    made = Profiler(cast("Any", view), tmp_path, cast("Any", None)).run(cast("Any", [task]), 0.1)
    assert made.failed["worker/0"].startswith("an older tflaunch started its run")
