"""How far a task is, as its log tells: `step 402/1000`, `Epoch 3/10`, the bars of Keras and tqdm; pure."""

from __future__ import annotations

import re
from typing import NamedTuple

# `step 402/1000`, `Step: 402 of 1000`, `global_step=402/1000`, `Epoch 3/10`, `epoch [3/10]`.
_NAMED = re.compile(
    r"\b(?:global[ _]?)?(epoch|step|iteration|iter|batch)\b['\"]?[ :=#\[(]{0,4}(\d{1,12})(?:/| of | / )(\d{1,12})\b",
    re.IGNORECASE | re.ASCII,
)
# Keras: ` 45/469 \u2501\u2501\u2501 10s 22ms/step`, ` 45/469 [==>.....] - ETA: 10s`.
_BAR = re.compile(r"^\s{0,12}(\d{1,12})/(\d{1,12})\s{1,4}(?=[\[\u2501-\u257a])")
# ` 45%|####      | 45/100 [00:10<00:12,  4.50it/s]`
_TQDM = re.compile(
    r"(?<!\d)\d{1,3}%\|[^|\n]{0,400}\|\s{0,8}(\d{1,12})/(\d{1,12})\s{0,4}\[[\d:]{1,12}<([\d:]{1,12}|\?)",
    re.ASCII,
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_SEARCHED = 2000  # characters of a line


class Progress(NamedTuple):
    """How far a task is."""

    at: str  # `step 402/1000`, `epoch 3/10`
    share: float  # of all that its log tells of, from 0 to 1
    left_s: float | None = None  # how long it takes yet, if the log tells that

    def __str__(self) -> str:
        """`epoch 3/10, 24 %`."""
        return f"{self.at}, {self.share:.0%}".replace("%", " %")


def progress_of(tail: str) -> Progress | None:
    """The progress that the end of a log tells; None where it tells none.

    A bar of Keras is of the epoch whose line stands before it.
    """
    bar: tuple[int, int] | None = None
    for whole in reversed(re.split(r"[\r\n\b]+", _COLOUR.sub("", tail))):
        line = whole[:_SEARCHED]
        if (tqdm := _TQDM.search(line)) and (counts := _counts(tqdm[1], tqdm[2])):
            done, total = counts
            return Progress(f"{done}/{total}", done / total, _seconds(tqdm[3]))
        each_name = ((each[1].lower(), _counts(each[2], each[3])) for each in _NAMED.finditer(line))
        named = {name: counts for name, counts in each_name if counts}
        if named:
            return _of_names(named, bar, alone=_NAMED.fullmatch(line.strip()) is not None)
        if bar is None and (found := _BAR.search(line)):
            bar = _counts(found[1], found[2])
    return None if bar is None else Progress(f"step {bar[0]}/{bar[1]}", bar[0] / bar[1])


def _of_names(named: dict[str, tuple[int, int]], bar: tuple[int, int] | None, *, alone: bool) -> Progress:
    """alone: the line has nothing but the epoch, as Keras writes where it begins."""
    at = ", ".join(f"{name} {done}/{total}" for name, (done, total) in named.items())
    inner = next((each for name, each in named.items() if name != "epoch"), bar)
    if "epoch" not in named:
        name, (done, total) = next(iter(named.items()))
        return Progress(f"{name} {done}/{total}", done / total)
    done, total = named["epoch"]
    if inner is not None:
        return Progress(at, min(1.0, (max(0, done - 1) + inner[0] / inner[1]) / total))
    return Progress(at, max(0, done - alone) / total)


def _counts(done: str, total: str) -> tuple[int, int] | None:
    """Both as numbers; None where more is done than there is, as in a line that was cut in the middle of a number."""
    return (int(done), int(total)) if int(done) <= int(total) and int(total) else None


def _seconds(text: str) -> float | None:
    """`1:02:03` in seconds; None for `?`."""
    if text == "?" or not all(part.isdecimal() for part in text.split(":")):
        return None
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds
