"""Tell a watchdog once more what `--record` has noted, and hear what it has to say.

    sentences = replay(Path("stopped-ps.jsonl"))

A rule that asks hosts for something new gets the answers that were noted, no others: record again for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, TaskExit

OWN = ("at", "type")
TICK_S = 1.0  # it is also asked when nothing has happened, as it is in a run


def replay(path: Path, **changed: Any) -> list[tuple[float, str]]:
    """What is said, and how many seconds after the beginning; `changed` are arguments of the watchdog."""
    told: list[tuple[float, str]] = []
    watchdog: Watchdog | None = None
    begun = last = 0.0
    for line in _lines(path):
        at = line["at"]
        fields = {name: value for name, value in line.items() if name not in OWN}
        if line["type"] == "watchdog":
            watchdog = Watchdog(**{**fields, **changed})
            continue
        assert watchdog is not None, f"{path} does not begin with its watchdog"
        while last and last + TICK_S < at:
            last += TICK_S
            told += [(last - begun, sentence.text) for sentence in watchdog.sentences(last)]
        last = at
        if line["type"] == "begin":
            begun = at
            watchdog.begin(at, fields["begun"])
        elif line["type"] in ("exit", "started", "lost"):
            watchdog.happened(_event(line["type"], fields), at)
        elif "host" in fields:
            watchdog.said(fields["host"], line["type"], fields["fields"], at)
        list(watchdog.questions([], at))  # so that it knows that a look is over
        told += [(at - begun, sentence.text) for sentence in watchdog.sentences(at)]
    return told


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _event(kind: str, fields: dict[str, Any]) -> Any:
    if kind == "lost":
        return HostLost(**fields)
    task = TaskId.parse(fields.pop("task"))
    if kind == "started":
        return TaskStarted(task, **fields)
    return TaskExit(task=task, **{**fields, "tail": fields["tail"].encode()})
