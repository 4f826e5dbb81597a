"""What lies in a directory."""

from __future__ import annotations

from pathlib import Path

from tflaunch.code import fetched_mark


def files(directory: Path) -> set[str]:
    """All that is in it but the mark."""
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}
    return found - {fetched_mark.NAME}
