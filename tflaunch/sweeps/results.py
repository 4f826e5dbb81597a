"""The results of a sweep's trials: the metric in their logs, and the files that keep them.

    sweep.json      the trials in the order of their numbers, their program and its arguments
    results.jsonl   a line for each trial that has ended, written at that moment and synced
    results.csv     the last result of each trial, for spreadsheets; written when the sweep ends

They lie in the record of the sweep (tflaunch.runs.record).  A sweep that goes on reads them; a line that was cut off by
a sudden end is no result.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import json
import math
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.job import TRIAL
from tflaunch.protocol.outcome import TaskExit, how, signal_name
from tflaunch.runs.record import Record
from tflaunch.runs.record_files import DAMAGE, reading
from tflaunch.sessions.printed_numbers import finite, names_in, number_of
from tflaunch.sweeps.curves import Curve
from tflaunch.sweeps.trials import Params, Trial, plain
from tflaunch.text.lines import LineAssembler

RESULTS, TABLE, TRIALS = "results.jsonl", "results.csv", "sweep.json"
_FORMAT = 1
_LINE = 200  # at most so many characters of a log line, as the reason of a failure
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]*")
_KEYS, _KEY_LENGTH = 20, 40  # names of numbers, to be shown
_LOG = re.compile(rf"{TRIAL}-(\d+)(?:\.(\d+))?\.log")


@dataclass(frozen=True)
class Metric:
    """The measure of a trial: the last match of a regular expression in its log, or the last number with a name."""

    name: str  # as it is shown
    text: str = ""  # as the user gave it
    key: str = ""
    pattern: re.Pattern[str] | None = None
    maximize: bool = False

    @classmethod
    def parse(cls, text: str, maximize: bool) -> Metric:
        """Read `loss`, a name, or `loss: ([\\d.]+)`, a pattern with one group. Raises UsageError."""
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
                "for example --metric 'loss: ([-+.\\deE]+)', or its name alone: --metric loss",
            )
        word = re.match(r"[A-Za-z_][\w-]*", text)
        name = next(iter(pattern.groupindex), word[0] if word else "metric")
        return cls(name, text, pattern=pattern, maximize=maximize)

    def find(self, line: str) -> float | None:
        """The value in a line; None where there is none, or it is not a finite number."""
        if self.pattern is None:
            return finite(number_of(line, self.key))
        value: float | None = None
        for match in self.pattern.finditer(line):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                value = float(match[1])
        return finite(value)

    def rank(self, value: float | None) -> float:
        """A sort key: the best value first, no value last."""
        return math.inf if value is None else -value if self.maximize else value


class MetricReading:
    """Reads the log of one attempt as it comes in: counts its bytes and keeps the last value of the metric."""

    def __init__(self, metric: Metric | None) -> None:
        self.received = 0
        self.value: float | None = None
        self.curve = Curve()
        self.keys: dict[str, None] = {}  # of numbers in the log, in case none is the metric
        self._last = ""
        self._metric = metric
        self._lines = LineAssembler()

    @property
    def last_line(self) -> str:
        """The last line that is not blank, shortened."""
        return self._last.strip()[:_LINE]

    def feed(self, offset: int, data: bytes) -> bool:
        """Take a piece, without what came before; returns whether the value has changed."""
        fresh = data[max(0, self.received - offset) :]
        self.received = max(self.received, offset + len(data))
        return self._look(self._lines.feed(fresh))

    def end(self) -> None:
        """Take the last line, also without a newline: nothing more comes."""
        self._look(self._lines.end())

    def _look(self, lines: str) -> bool:
        before = self.value
        for line in lines.split("\n")[:-1]:
            self._last = line if line and not line.isspace() else self._last
            value = self._metric.find(line) if self._metric else None
            if value is not None:
                self.value = value
                self.curve.add(value)
            elif self.value is None and self._metric and len(self.keys) < _KEYS:
                self.keys.update(dict.fromkeys(islice(_number_keys(line), _KEYS)))
        return self.value != before


def _number_keys(line: str) -> Iterator[str]:
    """Yield the names of numbers in a line: each could be a metric."""
    yield from (key for key in names_in(line) if len(key) <= _KEY_LENGTH and _KEY.fullmatch(key))


def no_metric(metric: Metric, keys: Iterable[str]) -> tuple[str, str]:
    """Return (what a log without the metric has, the options to score anew); `keys`: the names of its numbers."""
    found, largest = list(keys), " --maximize" * metric.maximize
    if found:
        close = difflib.get_close_matches(metric.name, found, 1, 0.5)
        named = shlex.quote((close or found)[-1])
        return f"lines have numbers for: {', '.join(found)}", f"--metric {named}{largest} --resume"
    what = "no line matches" if metric.pattern else "no line has a number for"
    pattern = shlex.quote(f"{metric.name}: (\\S+)")
    return f"log: {what} {metric.text}", f"--metric {pattern}{largest} --resume"


@dataclass(frozen=True)
class Result:
    """How a trial has ended; `log` is the path of its log on the launcher's machine."""

    trial: int
    params: Mapping[str, Any]
    metric: float | None
    status: Literal["succeeded", "failed", "stopped"]  # stopped: by --stop-below
    exit_code: int
    signal: str | None
    host: str
    gpus: tuple[str, ...]
    seconds: float
    attempts: int
    ended: float  # epoch seconds
    log: str
    why: str = ""  # for a failure: `exited with code 1: ValueError: lr`; for one that was stopped: the rule's sentence


def result(
    trial: Trial,
    exit: TaskExit,
    reading: MetricReading,
    gpus: tuple[str, ...],
    log: Path,
    *,
    late: str = "",
    bad: str = "",
) -> Result:
    """The result of a trial that is not tried again.

    late: a sentence, if the sweep ended it for its time limit.  bad: one, if --stop-below stopped it.
    """
    why = late or bad or ": ".join(filter(None, (how(exit), reading.last_line)))
    return Result(
        trial.number,
        plain(trial.params),
        reading.value,
        "stopped" if bad else "failed" if exit.exit_code else "succeeded",
        exit.exit_code,
        signal_name(exit) or None,
        exit.host,
        gpus,
        exit.seconds,
        exit.attempt + 1,
        time.time(),
        str(log),
        why if bad or exit.exit_code else "",
    )


def new_seed() -> int:
    """A seed for `trials.draw`."""
    return secrets.randbits(32)


class Results:
    """The trials and results of one sweep, in memory and in its record."""

    def __init__(self, record: Record) -> None:
        """Read what the record has; raises RecordError."""
        self.record = record
        self.seed = new_seed()
        self.known: list[Params] = []  # the trials in the order of their numbers
        self.about: dict[str, Any] = {}  # see resume.about_sweep
        self.last: dict[int, Result] = {}  # trial -> its last result
        self.failure = ""  # why no more results are written
        if (about := record.read(TRIALS, _FORMAT)) is not None:
            with reading(record.path):
                self.known, self.seed = [dict(each) for each in about["trials"]], about["seed"]
                self.about = dict(about.get("about", {}))
            self._read()

    @property
    def path(self) -> Path:
        """The file of the results."""
        return self.record.path / RESULTS

    def keep_trials(self, trials: list[Params], seed: int, about: Mapping[str, Any]) -> None:
        """Write sweep.json; raises RecordError."""
        data = {
            "format": _FORMAT,
            "seed": seed,
            "about": dict(about),
            "trials": [dict(each) for each in trials],
        }
        self.record.write(TRIALS, data)
        self.known, self.seed, self.about = trials, seed, dict(about)

    def attempts(self) -> dict[int, int]:
        """The number of each trial's next attempt, by the results and the logs in the record."""
        found = {trial: result.attempts for trial, result in self.last.items()}
        for path in (self.record.path / "logs").iterdir():
            if match := _LOG.fullmatch(path.name):
                trial, attempt = int(match[1]), int(match[2] or 0)
                found[trial] = max(found.get(trial, 0), attempt + 1)
        return found

    def add(self, result: Result) -> None:
        """Write a result to the disk at once; raises RecordError the first time that fails."""
        self.last[result.trial] = result
        if self.failure:
            return
        line = (json.dumps(asdict(result)) + "\n").encode()
        try:
            self.path.touch(0o600)
            with self.path.open("a+b") as file:
                file.write(b"\n" * _is_cut_off(file) + line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.failure = os.strerror(error.errno or 0)
            raise RecordError(
                f"cannot write {self.path}: {self.failure}",
                "The sweep goes on and shows its results at the end, but --resume will not know them.",
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
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(f"cannot read {self.path}: {os.strerror(error.errno or 0)}") from error
        for line in lines:
            with contextlib.suppress(*DAMAGE):
                data = json.loads(line)
                found = Result(**{**data, "gpus": tuple(data["gpus"])})
                if 0 <= found.trial < len(self.known):
                    self.last[found.trial] = found


def _is_cut_off(file: BinaryIO) -> bool:
    """Whether its last line has no end: the next result must begin a new one."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def ranked(results: Iterable[Result], metric: Metric | None) -> list[Result]:
    """The trials that succeeded, the best first; without a metric, in the order of their numbers."""
    done = [each for each in results if each.status == "succeeded"]
    return sorted(done, key=lambda each: (metric.rank(each.metric) if metric else 0.0, each.trial))
