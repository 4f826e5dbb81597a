"""A tflaunch that notes all that its watchdog is told, for tests that replay it: `python recorder.py FILE WORDS...`.

Each line of FILE is JSON: [when, what, ...]; what is `made` (the arguments of the watchdog), `said` (host, type,
fields), `exited` (task, code) or `told` (text, over).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.outcome import TaskExit


def record(path: Path) -> None:
    """From now on every Watchdog writes into that file what it is told and what it tells."""
    happened, said, sentences, begin = (
        Watchdog.happened,
        Watchdog.said,
        Watchdog.sentences,
        Watchdog.begin,
    )

    def note(*parts: Any) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(parts) + "\n")

    def begin_noted(self: Watchdog, now: float, begun: float | None = None) -> None:
        note(now, "made", self.data())
        begin(self, now, begun)

    def happened_noted(self: Watchdog, event: Any, now: float) -> Any:
        if isinstance(event, TaskExit):
            note(now, "exited", str(event.task), event.exit_code)
        return happened(self, event, now)

    def said_noted(self: Watchdog, host: str, type: str, fields: Any, now: float) -> None:
        if type in ("looked", "dialled", "inspected"):
            note(now, "said", host, type, dict(fields))
        said(self, host, type, fields, now)

    def sentences_noted(self: Watchdog, now: float) -> Any:
        told = sentences(self, now)
        for each in told:
            note(now, "told", each.text, each.over)
        return told

    for name, method in (
        ("begin", begin_noted),
        ("happened", happened_noted),
        ("said", said_noted),
        ("sentences", sentences_noted),
    ):
        setattr(Watchdog, name, method)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    sys.argv = ["tflaunch", *sys.argv[2:]]
    from tflaunch.cli import main

    sys.exit(main())
