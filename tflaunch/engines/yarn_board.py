"""Where slot holders in YARN's containers tell the launcher that they are there; `yarn logs` tells it, too, but later.

One line each, {"token": TOKEN, "told": {...}}, and {"wanted": BOOL} for an answer: YARN starts another container in
place of one that it has lost or preempted, and a launcher that has all its slots has no use for it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Mapping
from typing import IO, Any

from tflaunch.engines.listener import SlotListener


class YarnBoard(SlotListener):
    """One for each set of slots; any thread may use it."""

    def __init__(self, certificate: str, key: str, token: str) -> None:
        self._told: dict[str, Mapping[str, Any]] = {}  # by container
        self._is_full = False
        super().__init__(certificate, key, token)

    def hear(self, said: Mapping[str, Any], line: ssl.SSLSocket, lines: IO[bytes]) -> None:  # noqa: ARG002 - of every listener
        told = read(said["told"])
        with self.changed:
            wanted = not self._is_full or told["where"]["container"] in self._told
            if wanted:
                self._told[told["where"]["container"]] = told
                self.changed.notify_all()
        line.sendall(json.dumps({"wanted": wanted}).encode() + b"\n")

    def add(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Note what slot holders have said elsewhere."""
        with self.changed:
            for told in found:
                self._told.setdefault(told["where"]["container"], told)

    def drop(self, container: str) -> None:
        """Forget a slot that is over."""
        with self.changed:
            self._told.pop(container, None)

    def told(self) -> list[Mapping[str, Any]]:
        """What the slot holders have said that are there."""
        with self.changed:
            return list(self._told.values())

    def fill(self) -> None:
        """All slots are there: others are not wanted."""
        with self.changed:
            self._is_full = True


def read(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a slot holder says, with what it knows of its container as `where`.

    Raises ValueError, LookupError, TypeError for what no slot holder says.
    """
    where = json.loads(told["slot"])
    return {**told, "where": {name: str(where[name]) for name in ("container", "node", "web", "python")}}


def read_log(text: str) -> list[dict[str, Any]]:
    """What slot holders have said first, in what `yarn logs` prints."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(read(json.loads(line)))
            except (ValueError, LookupError, TypeError, RecursionError):
                continue
    return found
