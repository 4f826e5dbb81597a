"""Numbers of bytes as they are shown."""

from __future__ import annotations


def amount(size: float) -> str:
    """`12.1 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} EiB"
