"""The layouts that are tried: every combination of what the user names; pure."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tflaunch.protocol.errors import UsageError

MOST = 64
_SHOWN = 40  # characters of what is wrong
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")  # the pools that compute


@dataclass(frozen=True)
class TaskLayout:
    """How many tasks there are, and where; None and "" leave it to `tflaunch run`."""

    ps: int | None = None
    workers: int | None = None
    ps_hosts: str = ""
    worker_hosts: str = ""
    place: str = ""
    threads: int | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `tflaunch run` that ask for it."""
        words: list[str] = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "threads" or value in (None, ""):
                continue
            words += [f"--{each.name.replace('_', '-')}", str(value)]
        for name, value in self.variables:
            words += ["--env", f"{name}={value}"]
        return tuple(words)

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """The variables that the tasks get for it."""
        return () if self.threads is None else tuple((name, str(self.threads)) for name in THREADS)

    def __str__(self) -> str:
        said = [
            f"{each.name.replace('_', '-')} {shlex.quote(str(value))}"
            for each in fields(self)
            if (value := getattr(self, each.name)) not in (None, "")
        ]
        return ", ".join(said) or "as tflaunch run has it"


@dataclass(frozen=True)
class Axes:
    """The values of each part of a layout; () where there is one only, the one that `tflaunch run` takes."""

    ps: Sequence[int] = ()
    workers: Sequence[int] = ()
    ps_hosts: Sequence[str] = ()
    worker_hosts: Sequence[str] = ()
    place: Sequence[str] = ()
    threads: Sequence[int] = ()

    def layouts(self) -> tuple[TaskLayout, ...]:
        """All combinations, in the order in which they are tried first; raises UsageError for too many."""
        axes = {each.name: tuple(getattr(self, each.name)) for each in fields(self)}
        axes = {name: values for name, values in axes.items() if values}
        if (count := math.prod(map(len, axes.values()))) > MOST:
            sizes = " x ".join(f"{len(values)} {name.replace('_', '-')}" for name, values in axes.items())
            raise UsageError(f"{sizes} are {count:,} layouts, more than {MOST}", "name fewer values")
        return tuple(
            TaskLayout(**dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())
        )


def numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    """The numbers of `1,2,4`, each once; raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", word) and int(word) >= least for word in words):
        raise UsageError(
            f"{option} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}: not numbers from {least} on",
            f"for example {option} 1,2,4",
        )
    return tuple(dict.fromkeys(map(int, words)))


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, up to `most`."""
    return tuple(itertools.takewhile(lambda number: number <= most, (2**power for power in range(32))))
