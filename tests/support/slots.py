"""Slot holders on this machine: real processes, called as engines, agents and launchers call them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S
from tests.support.wires import Line
from tflaunch.engines.door import SlotDoor, make_certificate
from tflaunch.engines.holder_text import holder_text, relay_text
from tflaunch.slot import relay

CERTIFICATE, KEY = make_certificate()
TOKEN = "5a" * 16
LONG = {"idle_s": 600.0, "first_s": 600.0, "after_s": 600.0}  # none of them ends a test
# The text comes by stdin, which stays open behind it.
BOOT = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"
# A trainer that saves at TERM, as one that writes a checkpoint does.
SAVES = """
    import os, signal, sys, time
    def save(*_):
        time.sleep(0.3)
        print("saved", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, save)
    seen = sorted(name for name in os.environ if name.startswith("TFLAUNCH_SLOT"))
    print("trains in attempt", os.environ["TFLAUNCH_ATTEMPT"], seen, flush=True)
    while True:
        time.sleep(0.1)
"""


class UnixCaller:
    """A caller at the slot holder's socket: an agent, or what a test makes of it."""

    def __init__(self, path: str) -> None:
        self.socket = relay.dial(path)
        self.socket.settimeout(PATIENCE_S)
        self._heard = b""

    def say(self, **words: object) -> None:
        self.socket.sendall(json.dumps(words).encode() + b"\n")

    def start(self, command: str, *descriptors: int) -> None:
        line = json.dumps({"start": command}).encode() + b"\n"
        socket.send_fds(self.socket, [line], list(descriptors))

    def hear(self) -> dict[str, Any] | None:
        """The next line; None at the end of the stream."""
        while b"\n" not in self._heard:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        said = json.loads(line)
        assert isinstance(said, dict)
        return said

    def close(self) -> None:
        self.socket.close()


class Held:
    """A slot holder that has told where it listens."""

    def __init__(
        self,
        work: Path,
        python: str = sys.executable,
        *,
        env: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
        boot: str = BOOT,
        **settings: Any,
    ) -> None:
        keys = {"token": TOKEN, "certificate": CERTIFICATE, "key": KEY, "door": True, "slot": "slot1"}
        settings = {**keys, **LONG, "place": str(work), **settings}
        text = holder_text(settings).encode()
        self.stderr = work / f"stderr-{os.urandom(4).hex()}"
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*under, python, "-I", "-c", boot, str(len(text))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `said` tells
            self.process.stdin.write(text)
            self.process.stdin.flush()
        if not settings.get("lifeline"):
            self.let_go()
        self._opened: list[Any] = []
        line = self._line()
        self.told: dict[str, Any] = json.loads(line) if line else {}

    def _line(self) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None
        assert select.select([stdout], [], [], PATIENCE_S)[0], "the slot holder says nothing"
        return stdout.readline()

    @property
    def said(self) -> str:
        return self.stderr.read_text()

    @property
    def directory(self) -> Path:
        return Path(self.told["directory"])

    @property
    def pid(self) -> int:
        """The holder's own: what it is started under may wait for it."""
        return int(self.told["pid"])

    @property
    def door(self) -> SlotDoor:
        return SlotDoor(("127.0.0.1",), self.told["port"], CERTIFICATE, TOKEN)

    def let_go(self) -> None:
        """Close its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def open(self, command: str, first: bytes = b"") -> Line:
        wire = Line(self.door.open(command, first, PATIENCE_S))
        self._opened.append(wire)
        return wire

    def call(self) -> UnixCaller:
        caller = UnixCaller(self.told["socket"])
        self._opened.append(caller)
        return caller

    def agent(self) -> UnixCaller:
        """An agent that the holder knows of."""
        agent, look = self.call(), self.call()
        agent.say(agent=os.getpid())
        look.say(look=True)  # callers are heard in the order in which they speak
        assert look.hear() is not None
        look.close()
        return agent

    def relay(self, command: str, **options: Any) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", relay_text(), self.told["socket"], command]
        return subprocess.Popen(argv, **options)

    def relayed(self, command: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-c", relay_text(), self.told["socket"], command]
        return subprocess.run(argv, input=input, capture_output=True, check=False, timeout=PATIENCE_S)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; returns its exit status."""
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        for opened in reversed(self._opened):
            opened.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            finally:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
