"""What this process has open."""

from __future__ import annotations

from pathlib import Path


def how_many() -> int:
    """How many descriptors it has."""
    return len(list(Path("/proc/self/fd").iterdir()))
