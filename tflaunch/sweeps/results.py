"""What came of the trials of a sweep: the metric in their logs, and the files that keep it.

    sweep.json      the trials, in the order of their numbers, and of what program they are
    results.jsonl   a line for each trial that has ended, written at that moment and synced
    results.csv     the last result of each trial, for spreadsheets; written when the sweep ends

They lie in the record of the sweep (tflaunch.runs.record).  What is written is believed later, also after a sudden end: a
line that was cut off is no result.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.outcome import TaskExit, how, signal_name
from tflaunch.runs.record import Record
from tflaunch.sessions.log_lines import LineAssembler
from tflaunch.sweeps.trials import JOB, Params, Trial, plain

RESULTS, TABLE, TRIALS = "results.jsonl", "results.csv", "sweep.json"
_FORMAT = 1
_LINE = 200  # of a log, as the reason of a failure
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]*")
_LOG = re.compile(rf"{JOB}-(\d+)(?:\.(\d+))?\.log")


@dataclass(frozen=True)
class Metric:
    """What a trial is measured by: the last match of a regular expression in its log, or of a key in a JSON line."""

    name: str  # as it is shown
    text: str = ""  # as it was given
    key: str = ""
    pattern: re.Pattern[str] | None = None
    maximize: bool = False

    @classmethod
    def parse(cls, text: str, maximize: bool) -> Metric:
        """Read `loss`, a key, or `loss: ([\\d.]+)`, a pattern with one group. Raises UsageError."""
        if _KEY.fullmatch(text):
            return cls(text, text, key=text, maximize=maximize)
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise UsageError(f"--metric {text}: {error}", "it is a regular expression of Python's") from None
        except (RecursionError, OverflowError):
            raise UsageError(f"--metric {text[:40]}...: Python compiles no expression like this") from None
        if pattern.groups != 1:
            raise UsageError(
                f"--metric {text}: {pattern.groups} groups; one must hold the number",
                "for example --metric 'loss: ([-+.\\deE]+)', or the key of a JSON line: --metric loss",
            )
        word = re.match(r"[A-Za-z_][\w-]*", text)
        name = next(iter(pattern.groupindex), word[0] if word else "metric")
        return cls(name, text, pattern=pattern, maximize=maximize)

    def find(self, line: str) -> float | None:
        """The value in a line; None where there is none, or no number."""
        text: Any = None
        if self.pattern is not None:
            for match in self.pattern.finditer(line):
                text = match[1]
        elif f'"{self.key}"' in line and line.lstrip().startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                told = json.loads(line)
                text = told.get(self.key) if isinstance(told, dict) else None
        try:
            value = float(text) if text is not None and not isinstance(text, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            return None
        return value if math.isfinite(value) else None

    def rank(self, value: float | None) -> float:
        """Smaller is better; what has none comes last."""
        return math.inf if value is None else -value if self.maximize else value


class Reading:
    """The log of one attempt as it comes in: how much of it is here, and the last value in it."""

    def __init__(self, metric: Metric | None) -> None:
        self.received = 0
        self.value: float | None = None
        self._last = ""
        self._metric = metric
        self._lines = LineAssembler()

    @property
    def last_line(self) -> str:
        """The last line that says something, shortened."""
        return self._last.strip()[:_LINE]

    def feed(self, offset: int, data: bytes) -> bool:
        """Take a piece; whether there is a new value. What was here before is passed over."""
        fresh = data[max(0, self.received - offset) :]
        self.received = max(self.received, offset + len(data))
        return self._look(self._lines.feed(fresh))

    def end(self) -> None:
        """Nothing more comes: the last line needs no newline."""
        self._look(self._lines.end())

    def _look(self, lines: str) -> bool:
        before = self.value
        for line in lines.split("\n")[:-1]:
            self._last = line if line and not line.isspace() else self._last
            value = self._metric.find(line) if self._metric else None
            self.value = self.value if value is None else value
        return self.value != before


@dataclass(frozen=True)
class Result:
    """How a trial has ended; `log` is the launcher's copy of what it printed."""

    trial: int
    params: Mapping[str, Any]
    metric: float | None
    status: Literal["succeeded", "failed"]
    exit_code: int
    signal: str | None
    host: str
    gpus: tuple[str, ...]
    seconds: float
    attempts: int
    ended: float  # epoch seconds
    log: str
    why: str = ""  # it has failed: `exited with code 1: ValueError: lr`


def result(
    trial: Trial, exit: TaskExit, reading: Reading, gpus: tuple[str, ...], log: Path, *, late: str = ""
) -> Result:
    """The result of a trial that has ended for good; `late`: for having taken too long, in words."""
    why = late or ": ".join(filter(None, (how(exit), reading.last_line)))
    return Result(
        trial.number,
        plain(trial.params),
        reading.value,
        "failed" if exit.exit_code else "succeeded",
        exit.exit_code,
        signal_name(exit) or None,
        exit.host,
        gpus,
        exit.seconds,
        exit.attempt + 1,
        time.time(),
        str(log),
        why if exit.exit_code else "",
    )


def new_seed() -> int:
    """What trials that are drawn are drawn by."""
    return secrets.randbits(32)


class Results:
    """The results of one sweep, on disk and here."""

    def __init__(self, record: Record) -> None:
        """Reads what is there; raises RecordError."""
        self.record = record
        self.seed = new_seed()
        self.known: list[Params] = []  # the trials in the order of their numbers
        self.about: dict[str, Any] = {}  # what they are trials of
        self.last: dict[int, Result] = {}
        self.failure = ""  # why nothing more is written
        if (about := record.read(TRIALS)) is not None:
            self.known, self.seed = list(about["trials"]), about["seed"]
            self.about = about.get("about", {})
            self._read()

    @property
    def path(self) -> Path:
        """Where they are."""
        return self.record.path / RESULTS

    def keep_trials(self, trials: list[Params], seed: int, about: Mapping[str, Any]) -> None:
        """Write down which trials there are, and of what; raises RecordError."""
        self.known, self.seed, self.about = trials, seed, dict(about)
        told = {
            "format": _FORMAT,
            "seed": seed,
            "about": self.about,
            "trials": [dict(each) for each in trials],
        }
        self.record.write(TRIALS, told)

    def attempts(self) -> dict[int, int]:
        """The number of each trial's next attempt, by the logs that are here."""
        found = {trial: result.attempts for trial, result in self.last.items()}
        for path in (self.record.path / "logs").iterdir():
            if match := _LOG.fullmatch(path.name):
                trial, attempt = int(match[1]), int(match[2] or 0)
                found[trial] = max(found.get(trial, 0), attempt + 1)
        return found

    def add(self, result: Result) -> None:
        """Write a result so that a sudden end does not lose it; raises RecordError the first time that fails."""
        self.last[result.trial] = result
        if self.failure:
            return
        line = json.dumps(asdict(result)) + "\n"
        try:
            self.path.touch(0o600)
            with self.path.open("a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.failure = os.strerror(error.errno or 0)
            raise RecordError(
                f"cannot write {self.path}: {self.failure}",
                "The sweep goes on; what it finds is shown at its end, and lost for --resume.",
            ) from error

    def write_table(self, metric: str) -> None:
        """Write results.csv; raises RecordError."""
        names = list(dict.fromkeys(name for params in self.known for name in params))
        rest = ["status", "exit_code", "host", "seconds", "attempts", "log", "why"]
        page = io.StringIO()
        table = csv.writer(page)
        table.writerow(["trial", *names, metric or "metric", *rest])
        for number, each in sorted(self.last.items()):
            values = [self.known[number].get(name, "") for name in names]
            table.writerow([number, *values, each.metric, *(getattr(each, name) for name in rest)])
        building = self.record.path / f".{TABLE}"
        try:
            building.write_text(page.getvalue(), "utf-8", newline="")
            building.chmod(0o600)
            building.replace(self.record.path / TABLE)
        except OSError as error:
            where = self.record.path / TABLE
            raise RecordError(
                f"cannot write {where}: {os.strerror(error.errno or 0)}", f"{self.path} has the same"
            ) from error

    def _read(self) -> None:
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(f"cannot read {self.path}: {os.strerror(error.errno or 0)}") from error
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                told = json.loads(line)
                found = Result(**{**told, "gpus": tuple(told["gpus"])})
                if 0 <= found.trial < len(self.known):
                    self.last[found.trial] = found
        if lines and not lines[-1].endswith(b"\n"):  # cut off: what follows must begin a line
            with contextlib.suppress(OSError), self.path.open("ab") as file:
                file.write(b"\n")


def ranked(results: Iterable[Result], metric: Metric | None) -> list[Result]:
    """Those that succeeded, the best first; without a metric in the order of their numbers."""
    done = [each for each in results if each.status == "succeeded"]
    return sorted(done, key=lambda each: (metric.rank(each.metric) if metric else 0.0, each.trial))
