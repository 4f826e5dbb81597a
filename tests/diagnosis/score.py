"""From what tflaunch said to the score."""

from __future__ import annotations

import re

from tests.diagnosis.causes import Cause

STARTED = re.compile(r"^(training|serving|started|running) \d+ task", re.MULTILINE)
QUOTED = re.compile(r"^\s*│")
WARNING = re.compile(r"^\s*[!✗]", re.MULTILINE)


def score(cause: Cause, said: str) -> int:
    """The score of what was said on stderr."""
    told = said if prevented(said) else warnings(said)
    own = "\n".join(line for line in told.splitlines() if not QUOTED.match(line))
    if cause.misleading and _has(cause.misleading, own):
        return 0
    named = _has(cause.cause, told)
    if named and _has(cause.place, own) and (not cause.fix or _has(cause.fix, own)):
        return 2
    return int(named or _has(cause.place, own) or _has(cause.symptom, own))


def warnings(said: str) -> str:
    """The lines of warnings and failures, with the lines that continue them."""
    kept, keep = [], False
    for line in said.splitlines():
        if WARNING.match(line):
            keep = True
        elif not line.startswith("  "):
            keep = False
        if keep:
            kept.append(line)
    return "\n".join(kept)


def prevented(said: str) -> bool:
    """Whether tflaunch refused to start any task."""
    return not STARTED.search(said)


def _has(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE) is not None
