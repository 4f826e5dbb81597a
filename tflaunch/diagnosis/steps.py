"""The step that a line of a log names: `step 120 of worker 1`, `global_step = 40`, `Step: 7/100`, `step 1,200`.

Shipped to hosts: the agents read it, so that the rules know it where they are not told what a task prints.
"""

from __future__ import annotations

WORD = "step"
BETWEEN = " \t=:#([{'\""
NUMBER = "0123456789,_"
DIGITS = 15  # a longer number is no step
LINE = 400  # characters of a line that are looked at


def last_step(text: str) -> int | None:
    """The step of the last of these lines that names one; None if none does."""
    for line in reversed(text.splitlines()):
        step = step_in(line[:LINE])
        if step is not None:
            return step
    return None


def step_in(line: str) -> int | None:
    """The first number that stands behind the word `step`, which may be the end of a longer name."""
    lowered = line.lower()
    at = lowered.find(WORD)
    while at >= 0:
        at += len(WORD)
        rest = lowered[at : at + 48].lstrip(BETWEEN)
        digits, after = whole(rest)
        # "steps/s: 12" and "step-2" name none; "step 1.5" is no count.
        decimal = after[:1] == "." and after[1:2].isdigit()
        if digits and len(digits) <= DIGITS and not decimal:
            return int(digits)
        at = lowered.find(WORD, at)
    return None


def whole(text: str) -> tuple[str, str]:
    """(digits of the whole number that a text begins with, what follows it): `1,200` and `1_200` are one number."""
    found = text[: len(text) - len(text.lstrip(NUMBER))].rstrip(",_")
    first, *groups = found.replace("_", ",").split(",")
    # "7,0.5", "0,300" and "2000,100" are lists.
    if first[:1] not in ("", "0") and len(first) <= 3 and all(len(each) == 3 for each in groups):
        after = text[len(found) :]
        if "," not in found or not _goes_on(after):
            return first + "".join(groups), after
    return first, text[len(first) :]


def _goes_on(after: str) -> bool:
    """Whether a list goes on behind what may be one number: `12,345.67`, `12,345,loss=1` and `12,345ms` are lists."""
    if after[:1] in (",", "."):
        return bool(after[1:2].strip())
    return after[:1].isascii() and after[:1].isalpha()
