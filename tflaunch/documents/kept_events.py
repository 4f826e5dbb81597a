"""Keeps what a run tells in its record, as `--json` prints it: `events.jsonl`, which stays small.

What the tasks print is not kept: the record has their logs.  Nor are the tasks of a plan, which run.json has.  Secrets
among the values of variables are masked wherever they stand.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tflaunch.documents.json_events import EVENTS
from tflaunch.documents.json_lines import JsonReporter
from tflaunch.documents.log_keeping import Options
from tflaunch.documents.writer import Stream
from tflaunch.runs.hidden_values import VALUE_LEFT_OUT, plan_without_values, secrets_of

if TYPE_CHECKING:
    from tflaunch.planning.cluster_plan import ClusterPlan

R = TypeVar("R")

EVENTS_KEPT = "events.jsonl"
MOST_BYTES = 2_000_000
FOR_THE_END = 500_000  # of these, only for the events that say how tasks and the run ended
_LAST = frozenset(("exited", "lost", "report", "error", "failures", "detached"))
# The methods of a reporter that tell an event.
_TOLD = frozenset(
    {name for name in EVENTS if hasattr(JsonReporter, name)} - {"log", "gap", "log_end"}
    | {"warn_once", "slowed", "handed_over"}
)


class KeptEvents:
    """Keeps the events of a run: in memory until the run has a record, then in its file."""

    def __init__(self) -> None:
        self._file = _File()
        self._reporter = _Keeper(self._file)

    def begin(self, directory: Path) -> None:
        """Keep them in the record with that directory from now on; may be called again."""
        self._file.open(directory / EVENTS_KEPT)

    def beside(self, reporter: R) -> R:
        """Return a reporter that tells everything as this one does, and has it kept, too."""
        return cast("R", _Both(reporter, self._reporter))

    def close(self) -> None:
        """Write what is not written yet."""
        self._reporter.close()
        self._file.close()


class _Both:
    """A reporter that passes everything on, and what is an event to a second one as well."""

    def __init__(self, reporter: Any, kept: Any) -> None:
        self._reporter, self._kept = reporter, kept

    def __getattr__(self, name: str) -> Any:
        shown = getattr(self._reporter, name)
        if name not in _TOLD:
            return shown
        kept = getattr(self._kept, name)

        def both(*values: Any, **named: Any) -> Any:
            kept(*values, **named)
            return shown(*values, **named)

        return both


class _Keeper(JsonReporter):
    """Writes the events of a run, but for what comes in great numbers."""

    def __init__(self, file: _File) -> None:
        self._kept_file = file
        self._phase = ""
        super().__init__(Options(quiet=True), file, Stream(io.StringIO()))

    def phase(self, name: str, done: int, total: int, note: str = "", **more: Any) -> None:
        """Keep the beginning and the end of each step."""
        if name != self._phase or done >= total:
            self._phase = name if done < total else ""
            super().phase(name, done, total, note, **more)

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        self._kept_file.secrets |= secrets_of(plan)
        super().plan(plan_without_values(plan), brief=brief)

    def _event(self, event: str, **fields: Any) -> None:
        if event == "plan":
            fields = {**fields, "tasks": [], "cluster": {}}
        if event == "code":
            fields = {name: value for name, value in fields.items() if name not in ("shipped", "left")}
        super()._event(event, **fields)


class _File(Stream):
    """The file, or the lines that wait for it."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.secrets: set[str] = set()
        self._lock = threading.Lock()  # lines come from a thread of the reporter
        self._waiting: list[bytes] = []
        self._room = MOST_BYTES
        self._descriptor: int | None = None

    def open(self, path: Path) -> None:
        """Write to this file from now on; one that cannot be written loses the events, and nothing else."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._lock:
            if self._descriptor is not None:
                return
            try:
                self._descriptor = os.open(path, flags, 0o600)
                self._room -= os.fstat(self._descriptor).st_size
            except OSError as error:
                self.broken = error
            for line in self._waiting:
                self._write(line)
            self._waiting.clear()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self.broken = self.broken or OSError("closed")

    def write_some(self, data: bytes, start: int) -> int:
        with self._lock:
            for line in data[start:].splitlines(keepends=True):
                if self._descriptor is None:
                    self._waiting.append(line)
                else:
                    self._write(line)
        return len(data)

    def _write(self, line: bytes) -> None:
        if self.broken or self._descriptor is None:
            return
        for secret in self.secrets:
            line = line.replace(json.dumps(secret)[1:-1].encode("ascii"), VALUE_LEFT_OUT.encode("ascii"))
        kind = line[: line.find(b",")].decode("ascii").rpartition(" ")[2].strip('"')
        if len(line) > self._room - (0 if kind in _LAST else FOR_THE_END):
            return
        try:
            os.write(self._descriptor, line)
            self._room -= len(line)
        except OSError as error:
            self.broken = error


def read_events(directory: Path) -> Iterator[Mapping[str, Any]]:
    """The events that the record in that directory has, in the order in which they were told.  Raises OSError."""
    try:
        text = (directory / EVENTS_KEPT).read_text("ascii", "replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:  # torn, as the disk was full or the launcher was killed
            continue
        if (
            isinstance(event, dict)
            and isinstance(event.get("event"), str)
            and isinstance(event.get("time"), float)
        ):
            yield event
