"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from tflaunch.protocol.errors import UsageError

_UNITS = {unit: 1 << 10 * power for power, unit in enumerate("KMGT", 1)}


def size(text: str, what: str = "an amount of memory") -> int:
    """Bytes of `40GiB`, `40G` (the same) or `40GB` (powers of 1,000); raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([KMGT])(iB|B|)", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"{text[:40]!r} is not {what}", "write it with its unit: 40GiB")
    number, unit, suffix = float(found[1]), found[2].upper(), found[3].lower()
    scale = 1000 ** " KMGT".index(unit) if suffix == "b" else _UNITS[unit]
    return int(number * scale)
