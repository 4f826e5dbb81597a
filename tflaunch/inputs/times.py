"""Times as people write and read them."""

from __future__ import annotations

import re
import time

FOR_EVER = "forever"  # what an option that takes a time means without one, as --wait alone
TIME = "90 (seconds), 90s, 15m, 12h or 2d"
MOST_S = 10 * 365 * 86400.0  # the system takes no time-outs of centuries
_UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}


def seconds(text: str) -> float:
    """How long `90` (seconds), `90s`, `15m`, `12h`, `2d` or `1w` is.

    Raises ValueError with a phrase that follows what was written: 'soon' is not a time.
    """
    found = re.fullmatch(r"([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})\s*([smhdw]?)", text.strip().lower())
    if found is None:
        raise ValueError(f"is not a time: {TIME}")
    if (time_s := float(found[1]) * _UNITS[found[2]]) > MOST_S:
        raise ValueError("is longer than ten years")
    return time_s


_MOST_S = 1e11  # three thousand years: no real time


def written(seconds: float) -> str:
    """`90s`, `10m`, `1h`: as `seconds` reads it, in the largest unit that it is a whole number of."""
    for name, size in _UNITS.items():
        if seconds and not seconds % size:
            return f"{seconds // size:g}{name}"
    return f"{seconds:g}s"


def duration(seconds: float) -> str:
    """`4.2 s`, `12 s`, `2 min 5 s`, `3 h 20 min`; "?" for what is no time."""
    if not seconds < _MOST_S:
        return "?"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def age(seconds: float) -> str:
    """`47s`, `12m`, `31h`, `12d`: how long ago; "?" for what is no time."""
    if not seconds < _MOST_S:
        return "?"
    seconds = max(0.0, seconds)
    for unit, length, most in (("s", 1, 60), ("m", 60, 60), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds // 86400:.0f}d"


def clock_time(epoch_s: float) -> str:
    """`10:32`, or `Nov 21 10:32` when that was not today; "?" for what is no time."""
    try:
        then = time.localtime(epoch_s)
    except (ValueError, OverflowError, OSError):
        return "?"
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%b %d %H:%M", then)
