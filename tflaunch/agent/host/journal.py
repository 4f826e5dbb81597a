"""The journal of a run on this host: its events in order, numbered, so that a viewer who comes later misses none."""

import os
import sys
import time

from tflaunch.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from tflaunch.agent.host.rundir import RunDirectory

NAME = "events.jsonl"


class Journal:
    """The events of one run directory: dicts with `type`, `n` (from 1), `time` (epoch seconds) and their fields."""

    def __init__(self, directory: "RunDirectory") -> None:
        self._directory = directory
        self.events = []  # type: List[Dict[str, Any]]

    def add(self, type: str, **fields: "Any") -> None:
        """Write an event down, in memory and on disk; with a full disk, in memory only."""
        event = dict(fields, type=type, n=len(self.events) + 1, time=time.time())
        self.events.append(event)
        try:
            self._directory.append(NAME, event)
        except OSError:
            pass

    def has(self, type: str) -> bool:
        """Whether an event of that type has happened."""
        return any(event["type"] == type for event in self.events)


def read(directory: "RunDirectory", last_plan: bool = False) -> "Journal":
    """The journal that an agent has left, as far as it reached the disk.

    A run that was planned again has had more than one agent here; with `last_plan` only the last agent's events.
    """
    journal = Journal(directory)
    try:
        with open(os.path.join(directory.path, NAME), "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return journal
    number = 0
    for line in lines:
        try:
            event = wire.loads(line.decode("utf-8", "replace"))
            if isinstance(event, dict) and isinstance(event.get("type"), str):
                next_number = event["n"] if isinstance(event.get("n"), int) else 0
                if last_plan and next_number <= number:
                    journal.events = []
                number = next_number
                journal.events.append(dict(event, n=len(journal.events) + 1))
        except ValueError:
            pass  # cut off by a full disk or a sudden end
    return journal


def note(text: str) -> None:
    """Write a line to agent.log, which is for people."""
    try:
        print("tflaunch agent: %s" % text, file=sys.stderr)
    except OSError:
        pass  # the disk is full: the tasks must not suffer from that
