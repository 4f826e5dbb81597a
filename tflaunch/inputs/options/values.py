"""Parsers for the values of options: times, ages, numbers of GPUs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tflaunch.inputs.amounts import FOR_EVER, seconds
from tflaunch.text.times import written

if TYPE_CHECKING:
    from tflaunch.protocol.job import GpuCount

TIME_WORD = r"[0-9]*\.?[0-9]+[a-z]*"  # a word meant as a time, right or wrong; not 10.0.0.1
MOST_GPUS = 1024  # of one task
USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?")


@dataclass(frozen=True)
class TimeParser:
    """Parses a TIME of at least `least_s`."""

    least_s: float = 0.0

    def __call__(self, text: str) -> float:
        """Return the time in seconds; raises ValueError."""
        try:
            time_s = seconds(text)
        except ValueError as error:
            raise ValueError(f"{text[:40]!r} {error}") from None
        if time_s < self.least_s:
            raise ValueError(f"{text!r} is less than {written(self.least_s)}")
        return time_s


def parse_wait(text: str) -> float:
    """Return how long to wait, in seconds, or infinity for FOR_EVER; raises ValueError."""
    return math.inf if text == FOR_EVER else TimeParser()(text)


_HINT_COLUMNS = 76  # hints are not wrapped, so that they can be copied


def read_threshold(text: str) -> tuple[str, float]:
    """Return the name and the value of a threshold, `wait_s=120`; raises UsageError."""
    from tflaunch.diagnosis.thresholds import DEFAULTS
    from tflaunch.protocol.errors import UsageError

    name, _, value = text.partition("=")
    if name not in DEFAULTS:
        import difflib
        import textwrap

        near = difflib.get_close_matches(name[:40], DEFAULTS, 3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        known = ", ".join(f"{known}={default:g}" for known, default in sorted(DEFAULTS.items()))
        hint = textwrap.fill(f"{meant}They are {known}", _HINT_COLUMNS, break_on_hyphens=False)
        raise UsageError(f"--threshold {text[:60]}: {name[:40]!r} is no threshold", hint)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(
            f"--threshold {text[:60]}: {name} is a number above 0", f"its default: {name}={DEFAULTS[name]:g}"
        )
    return name, number


def parse_age(text: str) -> float:
    """Return a time in seconds; its unit must be written: `--older 7` hardly means seconds. Raises ValueError."""
    if text.strip()[-1:].isdigit():
        raise ValueError(f"{text!r} has no unit: {text.strip()}d (days), {text.strip()}h or {text.strip()}s")
    return TimeParser()(text)


def parse_user(text: str) -> str:
    """Return the name of an account; raises ValueError."""
    if not USER_NAME.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not the name of an account")
    return text


def parse_gpus(text: str) -> GpuCount:
    """Return a number of GPUs, or `all`; raises ValueError."""
    if text == "all":
        return "all"
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MOST_GPUS:
        raise ValueError(f"{text!r} is not a whole number from 0 to {MOST_GPUS}, or all")
    return int(text)
