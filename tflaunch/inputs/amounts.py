"""Times and numbers of bytes, as people write them."""

from __future__ import annotations

import re

from tflaunch.protocol.errors import UsageError
from tflaunch.text.times import UNITS_S

FOR_EVER = "forever"  # what an option that takes a time means without one, as --wait alone
TIME = "90 (seconds), 90s, 15m, 12h or 2d"
MOST_S = 10 * 365 * 86400.0  # the system takes no time-outs of centuries
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate("KMGT", 1)}


def seconds(text: str) -> float:
    """How long `90` (seconds), `90s`, `15m`, `12h`, `2d` or `1w` is.

    Raises ValueError with a phrase that follows what was written: 'soon' is not a time.
    """
    found = re.fullmatch(r"([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})\s*([smhdw]?)", text.strip().lower())
    if found is None:
        raise ValueError(f"is not a time: {TIME}")
    if (time_s := float(found[1]) * UNITS_S[found[2] or "s"]) > MOST_S:
        raise ValueError("is longer than ten years")
    return time_s


def size(text: str, what: str = "an amount of memory", option: str = "") -> int:
    """Bytes of `40GiB`, `40G` (the same) or `40GB` (powers of 1,000); raises UsageError, which names the option."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([KMGT])(iB|B|)", text.strip(), re.IGNORECASE)
    if found is None:
        bare = re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,3})?", text.strip())
        fault = "has no unit" if bare else f"is not {what}"
        written = " ".join(filter(None, (option, f"{bare[0]}GiB" if bare else "40GiB")))
        raise UsageError(
            f"{f'{option}: ' if option else ''}{text[:40]!r} {fault}", f"write it with its unit: {written}"
        )
    number, unit, suffix = float(found[1]), found[2].upper(), found[3].lower()
    scale = 1000 ** " KMGT".index(unit) if suffix == "b" else _UNITS[unit]
    return int(number * scale)
