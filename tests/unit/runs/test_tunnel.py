"""Connections of a browser, in frames through a wire."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.support.descriptors import how_many
from tests.support.patience import PATIENCE_S, until
from tflaunch.protocol import wire
from tflaunch.protocol.tcp_streams import MOST, WINDOW, Streams
from tflaunch.runs.tunnel import BrowserTunnel, Tunnel


class Ends:
    """Two ends of a wire, and a loop for both: `near` is where connections come from."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.under_way: list[tuple[str, wire.Message]] = []
        self.held = False  # nothing arrives
        self.near = Streams(self.selector, lambda *a, **k: self._send("far", *a, **k))
        self.far = Streams(self.selector, lambda *a, **k: self._send("near", *a, **k))

    def _send(self, to: str, type: str, body: bytes = b"", **fields: object) -> None:
        self.under_way.append((to, wire.Message(type, fields, body)))

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()
        while self.under_way and not self.held:
            to, message = self.under_way.pop(0)
            (self.near if to == "near" else self.far).take(message)

    def pair(self, number: int) -> tuple[socket.socket, socket.socket]:
        """A connection: what the browser has of it, and what the server has."""
        browser, near = socket.socketpair()
        far, server = socket.socketpair()
        self.near.add(number, near)
        self.far.add(number, far)
        browser.settimeout(PATIENCE_S)
        server.settimeout(PATIENCE_S)
        return browser, server


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.near.close()
    ends.far.close()
    ends.selector.close()


def test_a_slow_reader_holds_up_its_own_connection_only(ends: Ends) -> None:
    slow, talker = ends.pair(1)
    quick, server = ends.pair(2)
    talker.setblocking(False)
    sent = 0
    for _ in range(200):
        with contextlib.suppress(BlockingIOError):
            sent += talker.send(bytes(65536))
        ends.turn()
    assert WINDOW <= sent < 16 * WINDOW  # what the sockets on the way hold, and one window
    server.sendall(b"hello")
    ends.turn()
    ends.turn()
    assert quick.recv(5) == b"hello"
    for each in (slow, talker, quick, server):
        each.close()


def test_each_direction_ends_by_itself(ends: Ends) -> None:
    browser, server = ends.pair(1)
    data = os.urandom(3 * WINDOW)

    stop = threading.Event()
    answered: list[bytes] = []

    def ask() -> None:
        browser.sendall(data)
        browser.shutdown(socket.SHUT_WR)
        answered.append(b"".join(iter(lambda: browser.recv(65536), b"")))
        stop.set()

    def answer() -> None:
        came = b"".join(iter(lambda: server.recv(65536), b""))
        server.sendall(came[::-1])
        server.close()

    threads = [threading.Thread(target=ask), threading.Thread(target=answer)]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        ends.turn()
    for thread in threads:
        thread.join()
    assert answered == [data[::-1]]
    browser.close()


def test_a_connection_that_cannot_be_made_is_cut(ends: Ends) -> None:
    browser, near = socket.socketpair()
    ends.near.add(1, near)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ends.far.connect(1, port)
    browser.setblocking(False)

    def ended() -> bool:
        ends.turn()
        with contextlib.suppress(BlockingIOError):
            return browser.recv(1) == b""
        return False

    until(ended, "its end")
    browser.close()
    pairs = [ends.pair(number) for number in range(2, MOST + 4)]
    for _ in range(5):
        ends.turn()
    assert pairs[-1][0].recv(1) == b""  # there is a limit
    for pair in pairs:
        for each in pair:
            each.close()


def test_without_a_free_descriptor_a_connection_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, int]] = []
    streams = Streams(selectors.DefaultSelector(), lambda type, stream: said.append((type, stream)))

    def full() -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("tflaunch.protocol.tcp_streams.socket.socket", full)
    streams.connect(7, 1)
    assert said == [("cut", 7)]


def test_who_calls_in_the_moment_in_which_the_wire_is_lost_waits_for_the_next_one() -> None:
    said: SimpleQueue[tuple[str, int]] = SimpleQueue()
    with contextlib.closing(BrowserTunnel()) as tunnel:
        port = int(tunnel.url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            tunnel._accept(*next(iter(tunnel._ways.items())))  # as a loop does that was woken for both
            tunnel.begin(lambda type, *_, stream: said.put((type, stream)))
            assert said.get(timeout=PATIENCE_S) == ("connect", 0)


def test_where_a_connection_leads_is_known_and_nothing_is_kept_of_it(tmp_path: Path) -> None:
    ways: dict[socket.socket, dict[str, int]] = {}
    for port in (7, 8, 9):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.relpath(tmp_path / str(port)))
        listener.listen()
        ways[listener] = {"port": port}
    said: SimpleQueue[tuple[int, int]] = SimpleQueue()
    with contextlib.closing(Tunnel(ways)) as tunnel:
        tunnel.begin(lambda *_, stream, **more: said.put((stream, more["port"])) if more else None)
        seen = set()
        for port in (9, 7, 8, 7, 7, 9):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(os.path.relpath(tmp_path / str(port)))
                stream, led = said.get(timeout=PATIENCE_S)
            assert (led, tunnel.way(stream)) == (port, {"port": port})
            seen.add(stream)
        assert len(seen) == 6
        assert len(tunnel._led) == 3


@pytest.mark.parametrize("missing", ["socketpair", "thread"])
def test_a_tunnel_that_cannot_be_made_leaves_nothing_open(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = how_many()
    with monkeypatch.context() as patch:
        if missing == "socketpair":
            patch.setattr("tflaunch.runs.tunnel.socket.socketpair", refuse)
        else:
            patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="Too many open files") as raised:
            BrowserTunnel()
    assert raised.value.errno == errno.EMFILE
    assert how_many() == before
