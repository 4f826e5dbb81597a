"""A tflaunch that notes what its watchdog is told: `python recorder.py FILE`, then the words of tflaunch.

Each line of FILE is a JSON object with `at`, a time of the watchdog's clock, and `type`:

    watchdog   places, names, limits_s: the arguments of the watchdog
    begin      begun
    exit       task, host, code, signal, seconds, tail (at most 4 KiB), attempt, ...
    started    task, host, attempt, pid
    lost       host, reason
    said       sentences: what the watchdog had to say
    looked, dialled, inspected and whatever else a host says    host, fields

so that a test can replay them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.outcome import HostLost, TaskExit

TAIL_BYTES = 4096
NO_FACTS = ("log", "beat", "through", "started", "exit")  # the last two are events, too


class Recorder:
    """Wraps the methods of Watchdog."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def note(self, at: float, type: str, **more: Any) -> None:
        """Write a line."""
        self._file.write(json.dumps({"at": at, "type": type, **more}, default=_plain) + "\n")
        self._file.flush()

    def install(self) -> None:
        """Note whatever any watchdog is told from now on."""
        made, begin, happened = Watchdog.__init__, Watchdog.begin, Watchdog.happened
        said, sentences = Watchdog.said, Watchdog.sentences

        def noted_init(own: Watchdog, *args: Any, **named: Any) -> None:
            made(own, *args, **named)
            self.note(time.monotonic(), "watchdog", **own.data())

        def noted_begin(own: Watchdog, now: float, begun: float | None = None) -> None:
            self.note(now, "begin", begun=begun)
            begin(own, now, begun)

        def noted_event(own: Watchdog, event: Any, now: float) -> Any:
            if isinstance(event, TaskExit):
                tail = event.tail[-TAIL_BYTES:].decode("utf-8", "replace")
                self.note(now, "exit", **{**vars(event), "task": str(event.task), "tail": tail})
            elif isinstance(event, TaskStarted):
                self.note(now, "started", **{**event._asdict(), "task": str(event.task)})
            elif isinstance(event, HostLost):
                self.note(now, "lost", **vars(event))
            return happened(own, event, now)

        def noted_message(own: Watchdog, host: str, type: str, fields: Any, *rest: Any) -> None:
            if type not in NO_FACTS:
                self.note(rest[-1], type, host=host, fields=fields)
            said(own, host, type, fields, *rest)

        def noted_sentences(own: Watchdog, now: float) -> Any:
            told = sentences(own, now)
            if told:
                self.note(now, "said", sentences=[sentence.text for sentence in told])
            return told

        for name, method in (
            ("__init__", noted_init),
            ("begin", noted_begin),
            ("happened", noted_event),
            ("said", noted_message),
            ("sentences", noted_sentences),
        ):
            setattr(Watchdog, name, method)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value[-TAIL_BYTES:].decode("utf-8", "replace")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


if __name__ == "__main__":
    Recorder(Path(sys.argv[1])).install()
    from tflaunch.cli import main

    sys.argv = ["tflaunch", *sys.argv[2:]]
    sys.exit(main())
