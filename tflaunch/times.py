"""Times as people write and read them."""

from __future__ import annotations

import re
import time

from tflaunch.errors import UsageError

FOR_EVER = "forever"  # a time that is left out where that is one, as of --wait alone
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(text: str) -> float:
    """How long `30s`, `10m`, `2h`, `1d` or `2w` is; raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([smhdw])", text.strip().lower())
    if found is None:
        raise UsageError(f"{text[:40]!r} is not a time", "write it with its unit: 30s, 10m, 2h, 1d")
    return float(found[1]) * _UNITS[found[2]]


def duration(seconds: float) -> str:
    """`4.2 s`, `12 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock_time(epoch_s: float) -> str:
    """`10:32`, or `Nov 21 10:32` when that was not today; "?" for what is no time."""
    try:
        then = time.localtime(epoch_s)
    except (ValueError, OverflowError, OSError):
        return "?"
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%b %d %H:%M", then)
