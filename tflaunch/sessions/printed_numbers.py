"""Numbers that programs print with their names, as `step 10 loss 0.1358`: read for the live line and for sweeps."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tflaunch.diagnosis.steps import whole

_SEARCHED = 4000  # characters of a line
# None is `1,234.5` or `0,31`: what its comma means, nobody says.
_NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,30}|(?!,\d))|\.\d{1,30})(?:e[-+]?\d{1,3})?|nan|[-+]?inf"
# What stands between a name and its number: `loss: 0.5`, `loss = nan`, `"loss": 0.5`, `(loss) 0.5`, `loss 0.5`.
_BETWEEN = r"['\")\]]?[ \t]{0,4}[:=(]?[ \t]{0,4}"
_NAMED = re.compile(
    rf"(?<![\w./-])([A-Za-z_][\w./-]{{0,38}})(?=[^\w./-]){_BETWEEN}(?:{_NUMBER})(?!\w)",
    re.IGNORECASE | re.ASCII,
)

# As programs print them, up to the number: `step 402`, `Step: 1,402`, `global_step=402`; `Epoch 3/10`.
_STEP = re.compile(r"\b(?:global[ _]?)?(step|epoch)\b['\"]?[ :=#]{0,4}(?=\d)", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"\w", re.ASCII)
_DIGITS = 12  # a longer number is no step
_READ = 48  # characters of `402/1,000`


@lru_cache(maxsize=64)
def _pattern(name: str) -> re.Pattern[str]:
    # ASCII: an `inf` with a dotless i is one without it, and no float.
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w){_BETWEEN}({_NUMBER})(?!\w)", re.IGNORECASE | re.ASCII)


def number_of(line: str, name: str) -> float | None:
    """The number of that name in a line; the last one where there are several, NaN and infinity as they are.

    In a line that is a JSON object only a key of that name counts, as it is spelt; elsewhere `Loss` is `loss`.  A name
    that is the end of a longer one (`val-loss`, `train/loss`) counts where the line does not have the name by itself.
    """
    if line.lstrip().startswith('{"'):  # also one that was cut off, whose last number may lack its end
        return _float(_json(line).get(name))
    found = list(_pattern(name).finditer(line[:_SEARCHED]))
    alone = [each for each in found if each.start() == 0 or line[each.start() - 1] not in "./-"]
    return _float((alone or found)[-1][1]) if found else None


def step_in(line: str) -> tuple[str, str] | None:
    """(`step` or `epoch`, `402` or `3/10`): the first in a line; None where it has none."""
    line = line[:_SEARCHED]
    for found in _STEP.finditer(line):
        count, after = _count(line[found.end() : found.end() + _READ])
        if count:
            total = _count(after[1:])[0] if after.startswith("/") else ""
            return found[1].lower(), f"{count}/{total}" if total else count
    return None


def _count(text: str) -> tuple[str, str]:
    """The digits of the number that a text begins with, "" for none, and what follows it."""
    digits, after = whole(text)
    fits = len(digits) <= _DIGITS and not _WORD.match(after)
    return (digits if fits else ""), after


def names_in(line: str) -> Iterator[str]:
    """The names that have numbers in a line."""
    if line.lstrip().startswith('{"'):
        for key, value in _json(line).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield key
        return
    for match in _NAMED.finditer(line[:_SEARCHED]):
        yield match[1]


def _json(line: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(line)
        return data if isinstance(data, dict) else {}
    return {}


def _float(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def finite(value: float | None) -> float | None:
    """That number, or None where it is none that can be compared."""
    return value if value is not None and math.isfinite(value) else None
