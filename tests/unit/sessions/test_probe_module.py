"""The module that a host lacks for its probe is sent to it, once, and the command sees only the answer that counts."""

from __future__ import annotations

import time
from typing import Any

from tests.support.pipes import sessions
from tflaunch.protocol import wire
from tflaunch.sessions.session import Said

FACTS: dict[str, Any] = {
    "hostname": "gpu01",
    "boot_id": "",
    "addresses": [],
    "python": "3.11.7",
    "cores": 2,
    "load": 0.5,
    "memory_bytes": 1,
    "memory_available_bytes": 1,
    "disk_free_bytes": 1,
    "ports": [],
    "gpus": [],
    "driver": "",
    "cuda": "",
    "gpu_note": "",
    "lacks": "",
    "queue": [],
    "queue_error": "",
    "clock": 1.0,
    "proxies": [],
}


def test_a_host_that_lacks_the_module_gets_it_and_answers_again() -> None:
    made, pipe = sessions()
    pipe.feed(wire.encode("facts", **{**FACTS, "lacks": "pynvml"}))
    assert made.next(time.monotonic() + 0.1) is None
    (sent,) = [each for each in wire.Decoder().feed(pipe.sent) if each.type != "renew"]
    assert (sent.type, sent["name"]) == ("module", "pynvml")
    pipe.feed(wire.encode("facts", **FACTS))
    item = made.next(time.monotonic() + 1)
    assert isinstance(item, Said) and item.message.type == "facts" and not item.message["lacks"]


def test_a_host_that_lacks_it_still_has_failed() -> None:
    made, pipe = sessions()
    for _ in range(2):
        pipe.feed(wire.encode("facts", **{**FACTS, "lacks": "pynvml"}))
    item = made.next(time.monotonic() + 1)
    assert isinstance(item, Said) and item.message.type == "failed"
    assert item.message["reason"] == "the module pynvml does not run there"
