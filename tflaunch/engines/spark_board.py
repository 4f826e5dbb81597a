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
import json
import socket
import ssl
import time
from collections.abc import Mapping
from typing import IO, Any

from tflaunch.engines.listener import LINE_BYTES, SlotListener
from tflaunch.engines.spark_rows import SparkRows

WORKER_GONE = "Spark's Python worker that held a slot has crashed or was killed"


class SlotBoard(SlotListener):
    """One for each set of slots; any thread may use it."""

    def __init__(self, certificate: str, key: str, token: str) -> None:
        self.told: dict[int, Mapping[str, Any]] = {}  # what each slot's task has said first
        self.rows: SparkRows | None = None  # that the slots' tasks read
        self.given_up = False  # another command gives the slots back
        self.why = ""  # the engine has taken all slots back, in its words
        self._over: dict[int, dict[str, Any]] = {}
        self._lost: list[tuple[float, str]] = []  # when a slot's end was not in order, and what it was
        self._lines: set[ssl.SSLSocket] = set()
        self._feeds: set[ssl.SSLSocket] = set()
        super().__init__(certificate, key, token)

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
        super().close()
        self.let_go()
        self._hang_up(self._feeds)

    def _hang_up(self, on: set[ssl.SSLSocket]) -> None:
        with self.changed:
            lines = list(on)
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def hear(self, said: Mapping[str, Any], line: ssl.SSLSocket, lines: IO[bytes]) -> None:
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
            last = self.said(lines.readline(LINE_BYTES))
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
            said = self.said(text) if text else {}


def _end(last: Mapping[str, Any]) -> dict[str, Any]:
    """How a slot has ended whose task has said this at last; {}: nothing."""
    code = last.get("ended")
    if not isinstance(code, int):
        return {"words": WORKER_GONE, "in_order": False, "code": None}
    if code < 0:
        return {"words": f"its slot holder was killed by signal {-code}", "in_order": False, "code": None}
    return {"words": f"its slot holder has ended with {code}", "in_order": code != 75, "code": code}
