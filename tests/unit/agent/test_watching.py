"""Who is led to the ports of tasks: the user alone."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.patience import PATIENCE_S
from tflaunch.agent.watching import TunnelEnd
from tflaunch.protocol.selector import Selector
from tflaunch.protocol.wire import Message


class Viewer:
    """What of a viewer the end of a tunnel uses."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.sent: list[str] = []

    def send(self, type: str, **_: object) -> None:
        self.sent.append(type)


@pytest.mark.parametrize("private", [True, False])
def test_only_the_user_is_led_to_a_task(private: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        task = SimpleNamespace(alive=True, request={"port": port, "env": {}})
        team = SimpleNamespace(tasks={"worker/0": task})
        end, viewer = TunnelEnd(cast("Any", None), Selector(), cast("Any", team)), Viewer(private)
        end.take(cast("Any", viewer), Message("connect", {"stream": 1, "port": port}))
        assert viewer.sent == ([] if private else ["cut"])
        server.settimeout(PATIENCE_S if private else 0)
        if private:
            server.accept()[0].close()
        else:
            with pytest.raises(BlockingIOError):
                server.accept()
        end.left(cast("Any", viewer))
