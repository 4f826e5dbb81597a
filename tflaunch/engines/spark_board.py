"""The driver's listener: tasks of the barrier stage say how their slots are, and any command of this user asks it.

A line of JSON with the token each, over TLS with the certificate of the slots:
    {"slot": I, "told": {...}, ...}       of a task, whose connection stays as long as the slot
    {"slot": I, "ended": CODE, ...}       its slot holder has ended
    {"feed": I, "rows": N, ...}           tflaunch.engines.spark_rows.SparkRows.heard answers; as often as it likes
    {"ask": I}                            {"over": null, or {"words": TEXT, "in_order": BOOL, "code": CODE or null}}
    {"give_up": true}                     {"given_up": true}; the launcher gives the slots back
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

from tflaunch.engines.spark_rows import SparkRows
from tflaunch.slot.holder import addresses

PROOF_S = 10.0  # for a caller to say its first line
UNPROVED = 1024  # callers that have not said the token yet; one more drops the oldest
LINE_BYTES = 64 * 1024
WORKER_GONE = "Spark's Python worker that held a slot has crashed or was killed"


class SlotBoard:
    """One for each set of slots; any thread may use it."""

    def __init__(self, certificate: str, key: str, token: str) -> None:
        self.certificate, self.token = certificate, token
        self.addresses = tuple(addresses())
        self.told: dict[int, Mapping[str, Any]] = {}  # what each slot's task has said first
        self.changed = threading.Condition()
        self.rows: SparkRows | None = None  # that the slots' tasks read
        self.given_up = False  # another command gives the slots back
        self.why = ""  # the engine has taken all slots back, in its words
        self._over: dict[int, dict[str, Any]] = {}
        self._lost: list[tuple[float, str]] = []  # when a slot's end was not in order, and what it was
        self._unproved: dict[socket.socket, None] = {}  # the oldest first
        self._lines: set[ssl.SSLSocket] = set()
        self._feeds: set[ssl.SSLSocket] = set()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        with tempfile.NamedTemporaryFile("w") as file:  # which no other user reads
            file.write(certificate + key)
            file.flush()
            self._context.load_cert_chain(file.name)
        try:
            self._listener = socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True
            )
        except (OSError, ValueError):
            self._listener = socket.create_server(("", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="slot board", daemon=True).start()

    def take_back(self, why: str) -> None:
        """Note why the engine has taken all slots back."""
        with self.changed:
            self.why = self.why or why
            self.changed.notify_all()

    def over(self, slot: int) -> dict[str, Any] | None:
        """How that slot has ended; None while it is there."""
        with self.changed:
            said = self._over.get(slot)
            if self.why and (said is None or not said["in_order"]):
                return {"words": self.why, "in_order": False, "code": None}
            return said

    def why_lost(self, after_s: float) -> str:
        """Why all slots are taken back; where Spark has not said so `after_s` after the first was, why that was."""
        with self.changed:
            if self.why or not self._lost or time.monotonic() < self._lost[0][0] + after_s:
                return self.why
            return self._lost[0][1]

    def let_go(self) -> None:
        """Hang up on the tasks, whose slot holders end then; the board still answers."""
        self._hang_up(self._lines)

    def close(self) -> None:
        """Answer nobody any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.let_go()
        self._hang_up(self._feeds)

    def _hang_up(self, on: set[ssl.SSLSocket]) -> None:
        with self.changed:
            lines = list(on)
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with self.changed:
                self._unproved[caller] = None
                oldest = next(iter(self._unproved)) if len(self._unproved) > UNPROVED else None
            if oldest is not None:
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._welcome, args=[caller], daemon=True).start()

    def _welcome(self, caller: socket.socket) -> None:
        try:
            with caller:
                caller.settimeout(PROOF_S)
                with self._context.wrap_socket(caller.dup(), server_side=True) as line:
                    self._hear(line, caller)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # a stranger, or one that has hung up
        finally:
            self._proved(caller)

    def _proved(self, caller: socket.socket) -> None:
        with self.changed:
            self._unproved.pop(caller, None)

    def _hear(self, line: ssl.SSLSocket, caller: socket.socket) -> None:
        lines = line.makefile("rb")
        said = self._said(lines.readline(LINE_BYTES))
        self._proved(caller)
        if "feed" in said:
            line.settimeout(None)
            with self.changed:
                self._feeds.add(line)
            try:
                self._answer_feed(line, lines, said)
            finally:
                with self.changed:
                    self._feeds.discard(line)
            return
        if "slot" not in said:
            answer: dict[str, Any] = {"over": self.over(int(said["ask"]))} if "ask" in said else {}
            if said.get("give_up"):
                with self.changed:
                    self.given_up = True
                    self.changed.notify_all()
                answer = {"given_up": True}
            line.sendall(json.dumps(answer).encode() + b"\n")
            return
        slot = int(said["slot"])
        line.settimeout(None)
        with self.changed:
            self._lines.add(line)
            self.told[slot] = said
            self.changed.notify_all()
        last: Mapping[str, Any] = {}
        try:
            last = self._said(lines.readline(LINE_BYTES))
        except (OSError, ValueError):
            pass
        finally:
            with self.changed:
                self._lines.discard(line)
                self._over[slot] = end = _end(last)
                if not end["in_order"]:
                    self._lost.append((time.monotonic(), end["words"]))
                self.changed.notify_all()

    def _answer_feed(self, line: ssl.SSLSocket, lines: IO[bytes], said: Mapping[str, Any]) -> None:
        assert self.rows is not None  # noqa: S101 - a slot has a feed only then
        while said:
            line.sendall(json.dumps(self.rows.heard(int(said["feed"]), said)).encode() + b"\n")
            text = lines.readline(LINE_BYTES)
            said = self._said(text) if text else {}

    def _said(self, text: bytes) -> Mapping[str, Any]:
        """What that line says; raises ValueError for one without the token."""
        said = json.loads(text)
        if not isinstance(said, dict) or not hmac.compare_digest(str(said.get("token", "")), self.token):
            raise ValueError
        return said


def _end(last: Mapping[str, Any]) -> dict[str, Any]:
    """How a slot has ended whose task has said this at last; {}: nothing."""
    code = last.get("ended")
    if not isinstance(code, int):
        return {"words": WORKER_GONE, "in_order": False, "code": None}
    if code < 0:
        return {"words": f"its slot holder was killed by signal {-code}", "in_order": False, "code": None}
    return {"words": f"its slot holder has ended with {code}", "in_order": code != 75, "code": code}
