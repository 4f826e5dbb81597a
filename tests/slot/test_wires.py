"""Wires to slot holders: the agent at the other end, links that are cut, and holders that lie."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slot.conftest import Hold
from tests.support import ROOT
from tests.support.agent_over_pipes import IS_ROOT
from tests.support.patience import PATIENCE_S
from tests.support.slots import CERTIFICATE, KEY, TOKEN
from tests.support.wires import Line
from tflaunch.engines.door import SlotDoor
from tflaunch.protocol import wire
from tflaunch.protocol.errors import ConnectError
from tflaunch.sessions import payload
from tflaunch.sessions.wires import Wire


def test_a_session_stands_on_such_a_wire(hold: Hold, tmp_path: Path) -> None:
    """What a launcher makes of it, as the type checker sees it and as it is."""
    line: Wire = hold().door.open("exit 3", timeout_s=PATIENCE_S)
    assert all(line.advice)
    Line(line).close()


def test_an_agent_answers(every: Hold, tmp_path: Path) -> None:
    held = every()
    line = held.open(payload.boot_line("visit", run_dir=str(tmp_path)), payload.loader())
    decoder = wire.Decoder(magic=True)
    said: list[str] = []
    while "hello" not in said:
        data = line.recv(65536)
        assert data, line.last_words()
        said += [message.type for message in decoder.feed(data)]
        if said[-1:] == ["lacks"]:
            line.send(payload.agent())
    line.close()


CUT = """
import subprocess, sys, tempfile
from pathlib import Path
from tests.support.slots import *
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
held = Held(Path(sys.argv[1]))
silent, sending = held.open("echo up; exec cat"), held.open("echo up; exec cat")
assert silent.recv(3) == sending.recv(3) == b"up\\n"
rules = "table inet cut { chain out { type filter hook output priority 0; tcp sport != 0 drop; }; }"
subprocess.run(["nft", rules], check=True)
sending.send(b"into the void")
for wire in (silent, sending):
    assert wire.recv(100) == b"", "neither hears of it from the network"
    print(wire.last_words(), flush=True)
subprocess.run(["nft", "flush ruleset"], check=True)
held.close()
"""


@pytest.mark.skipif(not IS_ROOT or not shutil.which("nft"), reason="needs root and nftables")
def test_a_link_that_is_cut_is_noticed(place: Path) -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", CUT, str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for said in lines:
        assert said.startswith("its slot holder does not answer, either (no answer on port ")


class Liar:
    """Has the slot holder's certificate, and answers what it likes."""

    def __init__(self, directory: Path) -> None:
        (directory / "pem").write_text(CERTIFICATE + KEY)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "pem")
        self.answer = b""
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.door = SlotDoor(("127.0.0.1",), self._listener.getsockname()[1], CERTIFICATE, TOKEN)

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(raw, server_side=True) as caller:
                    caller.recv(65536)
                    caller.sendall(self.answer)
            except OSError:
                raw.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[Liar]:
    made = Liar(tmp_path)
    yield made
    made.close()


ANSWERS = [
    b"",
    b"\n",
    b"null\n",
    b"[]\n",
    b"{}\n",
    b"\xff\xfe\n",
    b"[" * 100_000 + b"\n",
    b"9" * 100_000 + b"\n",
    b"x" * 3_000_000,
    b'{"started": 1}\n',
    b'{"started": false, "why": ["x"], "ends_in": "soon"}\n',
    json.dumps({"started": False, "why": "x" * 100_000, "ends_in": 3}).encode() + b"\n",
    b'{"ends_in": "x", "why": 1, "running": 1}\n',
    b'{"ends_in": null, "why": 1, "running": 1e999}\n',
    b'{"ends_in": [], "why": 1, "running": {}}\n',
]


def test_a_lying_holder_harms_nobody(liar: Liar) -> None:
    for answer in ANSWERS:
        liar.answer = answer
        for ask in (lambda: liar.door.open("cat", timeout_s=PATIENCE_S), lambda: liar.door.look(PATIENCE_S)):
            with pytest.raises(ConnectError) as caught:
                ask()
            assert caught.value.hint
            assert len(caught.value.message) < 600


def test_lying_last_words_are_short(liar: Liar) -> None:
    liar.answer = b'{"started": true}\nout'
    line = Line(liar.door.open("cat", timeout_s=PATIENCE_S))
    assert line.recv(100) == b"out"
    assert line.recv(100) == b""
    for answer in (*ANSWERS, json.dumps({"words": "x" * 900_000, "code": 10**40}).encode() + b"\n"):
        liar.answer = answer
        assert len(line.last_words()) < 5_000
    line.close()
