"""What reads the values of options: times, ages, numbers of GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from tflaunch.times import FOR_EVER, seconds, written

if TYPE_CHECKING:
    from tflaunch.job import Cards

MOST_GPUS = 1024  # of one task
TIME_WORD = r"[0-9]*\.?[0-9]+[a-z]*"  # of optional_values: meant as a time, right or wrong; 10.0.0.1 is none


def time_of(least_s: float = 0.0) -> Callable[[str], float]:
    """What reads an option whose metavar is TIME: how long, in seconds, and no less than `least_s`."""

    def read(text: str) -> float:
        try:
            time_s = seconds(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text[:40]!r} {error}") from None
        if time_s < least_s:
            raise typer.BadParameter(f"{text!r} is less than {written(least_s)}")
        return time_s

    return read


def patience_of(text: str) -> float:
    """A time in seconds, or without end."""
    return math.inf if text == FOR_EVER else time_of()(text)


def age_of(text: str) -> float:
    """A time with its unit: who removes what is older than 7 has hardly seconds in mind."""
    if text.strip()[-1:].isdigit():
        raise typer.BadParameter(
            f"{text!r} of what? {text.strip()}d (days), {text.strip()}h or {text.strip()}s"
        )
    return time_of()(text)


def gpus_of(text: str) -> Cards:
    """`2`, or `all`; raises BadParameter."""
    if text == "all":
        return "all"
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > MOST_GPUS:
        raise typer.BadParameter(f"{text!r} is not a whole number from 0 to {MOST_GPUS}, or all")
    return int(text)
