"""Output compared in its shape: names, numbers, times and paths may be anything of their kind."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TOKENS = (  # the first that matches a part of a word takes it
    (r"…|\.\.\.", r".*?"),
    (r"\b[a-z][\w.]*-[a-z0-9]{6}\b", r"[\w.]+-[a-z0-9]{6}"),  # a run's id
    (r"\b(?:worker|ps|chief|evaluator|trial|data|dispatcher|reader)/\d+", r"\w+/\d+"),
    (r"(?:~|(?<![\w/])/|\b\w[\w.]*/)[\w./~*-]+", r"\S+"),  # a path
    (r"\b(?:gpu|host|local|node|vm|cpu)\d+\b|\bstorage\b", r"[\w.-]+"),
    (r"\b(?:ada|root)\b", r"\w+"),
    (r"\b\d+\.\d+\.\d+\.\d+\b", r"[\w.-]+"),  # an address is a name, too
    (r"\b\d+(?:[.,:]\d+)*(?=(?:s|ms|min|h|d)?\b)", r"[\d.,:]+"),
    (r"\b(?:KiB|MiB|GiB|TiB|B)\b", r"(?:B|KiB|MiB|GiB|TiB)"),
    (r"[─━═┄]{2,}", r"[─━═┄]+"),
    (r"[█▇▆▅▄▃▂▁▏▎▍▌▋▊▉░·]{2,}", r"[█▇▆▅▄▃▂▁▏▎▍▌▋▊▉░· ]+"),
)
_EITHER = re.compile("|".join(f"({pattern})" for pattern, _ in _TOKENS))
_TOGETHER = 6  # a sentence may be broken over so many lines on a page


def pattern(text: str) -> re.Pattern[str]:
    """What text of this shape matches, wherever its lines are broken."""
    words = []
    for word in text.split():
        parts, end = [], 0
        for found in _EITHER.finditer(word):
            parts += [re.escape(word[end : found.start()]), _TOKENS[int(found.lastindex or 1) - 1][1]]
            end = found.end()
        words.append("".join([*parts, re.escape(word[end:])]))
    return re.compile(r"\s+".join(words), re.DOTALL)


def missing(shown: Sequence[str], real: str) -> str:
    """The first line of `shown` that `real` has nothing like, in this order; "" if it has all of it."""
    # Marks below a line of source are those of some Pythons only.
    lines = [line for line in shown if line.strip(" │^~") and line.strip() not in ("…", "...")]
    at = number = 0
    while number < len(lines):
        for count in range(1, _TOGETHER + 1):
            if found := pattern(" ".join(lines[number : number + count])).search(real, at):
                # A longer sentence that begins so is the one that the page shows.
                at, number = found.end(), number + count
                break
        else:
            return lines[number]
    return ""
