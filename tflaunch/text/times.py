"""Times as they are shown."""

from __future__ import annotations

import time

UNITS_S = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_MOST_S = 1e11  # three thousand years: no real time


def written(seconds: float) -> str:
    """`90s`, `10m`, `1h`: a time as options and files have it, in the largest unit that makes it a whole number."""
    for name, size in UNITS_S.items():
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
