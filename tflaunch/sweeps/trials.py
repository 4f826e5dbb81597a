"""The trials of a sweep: the values of their parameters, and the arguments for the program; pure but for one file.

A value is text, as the user wrote it: the program gets it byte for byte, and trials with equal texts are the same.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tflaunch.inputs.missing_files import no_such_file
from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import TRIAL, TaskId

Params = Mapping[str, str]

MOST = 10_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")
_DIGITS = 4  # significant digits of a number that is drawn
_DRAWS = 1000  # after so many known draws in a row, a new one is unlikely


@dataclass(frozen=True)
class Trial:
    """One set of values; its number never changes, however often the sweep goes on."""

    number: int
    params: Params

    @property
    def task(self) -> TaskId:
        """The task that runs it."""
        return TaskId(TRIAL, self.number)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())


def grid(specs: Sequence[str]) -> list[Params]:
    """All combinations of `lr=0.1,0.01`, `layers=2,3`; the last one varies fastest. Raises UsageError."""
    values: dict[str, list[str]] = {}
    for spec in specs:
        name, text = _named("--grid", spec, values)
        values[name] = _choices("--grid", spec, text)
    count = math.prod(map(len, values.values()))
    if count > MOST:
        sizes = " x ".join(f"{len(each)} {name}" for name, each in values.items())
        raise UsageError(
            f"--grid: {sizes} are {count:,} trials, more than {MOST:,}",
            "take fewer values, or some at random: --random",
        )
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def draw(specs: Sequence[str], count: int, seed: int) -> list[Params]:
    """`count` different trials of `lr=0.001..0.1:log`, `layers=1..4`, `optimizer=adam,sgd`. Raises UsageError.

    Ranges include both ends; between whole numbers, whole numbers are drawn.  Equal arguments give equal trials.
    """
    if not 0 < count <= MOST:
        raise UsageError(f"--trials {count}: from 1 to {MOST:,}")
    dice = random.Random(seed)  # noqa: S311  no secret depends on it
    axes = axes_of(specs)
    drawn: dict[tuple[str, ...], None] = {}
    misses = 0
    while len(drawn) < count:
        values = tuple(axis.draw(dice) for axis in axes.values())
        misses = misses + 1 if values in drawn else 0
        drawn[values] = None
        if misses == _DRAWS:
            raise UsageError(
                f"--trials {count}: there are only {len(drawn)} different trials",
                f"--trials {len(drawn)}, or wider ranges",
            )
    return [dict(zip(axes, values, strict=True)) for values in drawn]


@dataclass(frozen=True)
class Axis:
    """The values of one parameter: some, or a range."""

    choices: Sequence[str] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def size(self) -> float:
        """How many values there are."""
        return len(self.choices) or (self.high - self.low + 1 if self.whole else math.inf)

    def draw(self, dice: random.Random) -> str:
        """One of them, as text."""
        if self.choices:
            return dice.choice(self.choices)
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = math.exp(dice.uniform(math.log(low), math.log(high))) if self.log else dice.uniform(low, high)
        return self.written(min(self.high, max(self.low, value)))

    def written(self, value: Any) -> str:
        """The value as text."""
        if self.choices:
            return str(value)
        return str(round(value)) if self.whole else f"{value:.{_DIGITS}g}"

    def read(self, text: str) -> Any:
        """The value of a text, one within the range."""
        if self.choices:
            return text
        number = min(self.high, max(self.low, float(text)))
        return round(number) if self.whole else number


def axes_of(specs: Sequence[str]) -> dict[str, Axis]:
    """The parameters of `lr=0.001..0.1:log`, `layers=1..4`, `optimizer=adam,sgd`; raises UsageError."""
    axes: dict[str, Axis] = {}
    for spec in specs:
        name, text = _named("--random", spec, axes)
        axes[name] = _axis(spec, text)
    return axes


def _axis(spec: str, text: str) -> Axis:
    found = _RANGE.fullmatch(text)
    if found is None:
        if ".." in text:
            raise UsageError(f"--random {spec}: not a range", "write lr=0.001..0.1, or lr=0.001..0.1:log")
        return Axis(_choices("--random", spec, text))
    low, high, log = float(found[1]), float(found[2]), bool(found[3])
    if not math.isfinite(high - low):
        raise UsageError(f"--random {spec.partition('=')[0]}: its range is too wide for a number")
    if not low < high:
        raise UsageError(f"--random {spec}: {found[1]} is not less than {found[2]}")
    if log and low <= 0:
        raise UsageError(f"--random {spec}: a logarithmic range begins above 0")
    whole = all(re.fullmatch(r"[+-]?\d+", end) for end in found.group(1, 2))
    return Axis(low=low, high=high, log=log, whole=whole)


def _named(option: str, spec: str, before: Iterable[str]) -> tuple[str, str]:
    name, equals, text = spec.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"{option} {spec}: not NAME=VALUES", f"for example {option} lr=0.1,0.01")
    if name in before:
        raise UsageError(f"{option} {spec}: {name} is there twice", "give all of its values at once")
    _refuse_another(option, spec, text)
    return name, text


def _refuse_another(option: str, spec: str, text: str) -> None:
    """Raise UsageError for `lr=0.1,0.2,layers=2,3`: the user means the second half as another parameter."""
    found = re.search(rf"[,\s]+({_NAME.pattern}=)", text)
    if found and "=" not in text[: found.start()]:
        end = len(spec) - len(text) + found.start()
        first, second = spec[:end], spec[len(spec) - len(text) + found.start(1) :]
        raise UsageError(
            f"{option} {spec}: {found[1]} looks like another parameter, and each has its own {option}",
            f"{option} {shlex.quote(first)} {option} {shlex.quote(second)}   (if it is a value, put it into a "
            "--trials-file)",
        )


def _choices(option: str, spec: str, text: str) -> list[str]:
    values = text.split(",")
    if "" in values:
        raise UsageError(f"{option} {spec}: a value is empty", "put an empty value into a --trials-file")
    if twice := [value for value in values if values.count(value) > 1]:
        raise UsageError(f"{option} {spec}: {twice[0]} is there twice")
    return values


# --- from a file -----------------------------------------------------------------------------------------


def read(path: Path) -> list[Params]:
    """The trials in a file: .yaml or .json, a list of mappings; .jsonl, a mapping a line; .csv.  Raises UsageError."""
    try:
        # Not read_text: that would make the line ends within a value all alike.
        text = path.read_bytes().decode("utf-8-sig")
        rows = _rows(path, text)
    except FileNotFoundError:
        raise no_such_file("--trials-file", path) from None
    except OSError as error:
        raise UsageError(f"--trials-file {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, csv.Error) as error:
        raise UsageError(f"--trials-file {path}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"--trials-file {path}: lists and mappings are nested too deeply") from None
    if not 0 < len(rows) <= MOST:
        raise UsageError(f"--trials-file {path}: {len(rows):,} trials; from 1 to {MOST:,}")
    seen: dict[str, str] = {}
    found: list[Params] = []
    for where, row in rows:
        if not isinstance(row, dict) or not row:
            raise UsageError(f"{path}:{where}: not a mapping of names to values", "for example {lr: 0.1}")
        texts = {str(name): _text(f"{path}:{where}", name, value) for name, value in row.items()}
        params = {name: text for name, text in texts.items() if text is not None}
        key = identity(params)
        if key in seen:
            raise UsageError(f"{path}:{where}: the same as {path}:{seen[key]}", "leave one of them out")
        seen[key] = where
        found.append(params)
    return found


def _rows(path: Path, text: str) -> list[tuple[str, Any]]:
    """(line or number, content) of each trial."""
    kind = path.suffix.lower()
    if kind == ".jsonl":
        rows = []
        # Not splitlines: that takes U+2028 and its like, which a value may have, for the end of a line.
        for number, line in enumerate(io.StringIO(text, newline=None), 1):
            try:
                rows += [(str(number), json.loads(line))] if line.strip() else []
            except ValueError as error:
                raise UsageError(f"{path}:{number}: {error}") from None
        return rows
    if kind == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", restval=None)
        names = list(reader.fieldnames or ())
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"{path}:1: {twice} is there twice", "leave one of them out")
        found = [(str(reader.line_num), row) for row in reader]
        if wrong := next((where for where, row in found if "" in row or None in row.values()), None):
            raise UsageError(f"{path}:{wrong}: the number of fields differs from the first line's")
        return list(found)
    if kind not in (".yaml", ".yml", ".json"):
        raise UsageError(f"--trials-file {path}: neither .yaml, .json, .jsonl nor .csv")
    listed = yaml.safe_load(text) if kind != ".json" else json.loads(text)
    if not isinstance(listed, list):
        raise UsageError(f"--trials-file {path}: not a list", "write one trial an entry: - {lr: 0.1}")
    return [(f"trial {number}", row) for number, row in enumerate(listed)]


def _text(where: str, name: object, value: object) -> str | None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{where}: {name!r} is no name of a parameter")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    raise UsageError(f"{where}: {name} is neither a number nor text", "quote it")


# --- for a program, and for a record ---------------------------------------------------------------------


def arguments(args: Sequence[str], trial: Trial) -> tuple[str, ...]:
    """The program's arguments: `{lr}` in `args` is replaced, else `--lr=0.1` follows; `{trial}` is the number."""
    values = {**trial.params, "trial": str(trial.number)}
    pattern = re.compile("|".join(re.escape(f"{{{name}}}") for name in values))
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        used.add(match[0][1:-1])
        return values[match[0][1:-1]]

    filled = [pattern.sub(value, word) for word in args]
    return (*filled, *(f"--{name}={text}" for name, text in trial.params.items() if name not in used))


def plain(params: Params) -> dict[str, Any]:
    """The values for JSON: texts that are numbers or booleans become these."""
    return {name: _number(text) for name, text in params.items()}


def _number(text: str) -> Any:
    for kind, pattern in ((int, r"-?(0|[1-9]\d*)"), (float, rf"(?![+-]?0\d){_NUMBER}")):
        if re.fullmatch(pattern, text) and math.isfinite(float(text)):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)


def identity(params: Params) -> str:
    """A text that is equal for equal values."""
    return json.dumps(sorted(params.items()))


def numbered(known: Sequence[Params], wanted: Sequence[Params]) -> tuple[list[Params], list[Trial]]:
    """(all trials in the order of their numbers, the trials that are wanted); known trials keep their numbers."""
    everything = list(known)
    numbers = {identity(params): number for number, params in enumerate(known)}
    for params in wanted:
        if identity(params) not in numbers:
            numbers[identity(params)] = len(everything)
            everything.append(params)
    chosen = [Trial(numbers[identity(params)], params) for params in wanted]
    return everything, sorted(chosen, key=lambda trial: trial.number)
