"""The door of a detached run."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from tests.support.patience import until
from tflaunch.agent.entrusted import Entrusted
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.net import peers
from tflaunch.protocol import wire
from tflaunch.protocol.selector import Selector


def test_connections_that_say_nothing_do_not_keep_an_agent_out(tmp_path: Path) -> None:
    secret = os.urandom(32)
    selector = Selector()
    came: list[Any] = []
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        directory = RunDirectory(str(tmp_path), "run-1", "gpu01")
        message = wire.Message("entrust", {"secret": secret.hex(), "address": "127.0.0.1"})
        entrusted = Entrusted(directory, selector, message, port, came.append)
        mute = []
        for _ in range(2 * peers.WAITING_LIMIT):
            mute.append(socket.create_connection(("127.0.0.1", port), timeout=5.0))
            for key, _ in selector.select(1.0):
                key.data()
        ours = socket.create_connection(("127.0.0.1", port), timeout=5.0)
        handshake = peers.Handshake(ours, secret, answers=False)
        found = None

        def proved() -> bool:
            nonlocal found
            for key, _ in selector.select(0.01):
                key.data()
            found = found or handshake.step()
            return bool(came and found)

        until(proved, "the agent to be let in")
        entrusted.tick(0.0)
        assert (
            len(selector.get_map()) <= 1 + peers.WAITING_LIMIT
        )  # the listener, and those that may still speak
        for each in mute:
            each.close()
        ours.close()
        came[0].close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        selector.close()
