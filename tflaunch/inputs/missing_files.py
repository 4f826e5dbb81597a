"""The error for a file that an option names and that is not there."""

from __future__ import annotations

import difflib
from pathlib import Path

from tflaunch.protocol.errors import UsageError

_MOST = 10_000  # names of a directory that are looked at


def no_such_file(option: str, path: Path) -> UsageError:
    """Return the error, with files of similar names in the same directory."""
    directory = path.absolute().parent
    if not directory.is_dir():
        return UsageError(f"{option} {path}: there is no directory {directory}")
    try:
        names = [each.name for each, _ in zip(directory.iterdir(), range(_MOST), strict=False)]
    except OSError:  # it may be closed to us
        names = []
    near = difflib.get_close_matches(path.name, sorted(names), 3, 0.7)
    meant = " or ".join(str(path.with_name(name)) for name in near)
    return UsageError(
        f"{option} {path}: there is no such file in {directory}", f"did you mean {meant}?" if near else ""
    )
