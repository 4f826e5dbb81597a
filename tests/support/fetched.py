"""What fetch has brought."""

from __future__ import annotations

import os
from pathlib import Path

from tflaunch.code import fetched_mark
from tflaunch.runs.fetch_destination import Destination

MARK = fetched_mark.NAME


def bring(directory: Path, *paths: str, come: bool = True) -> Destination:
    """As fetch does, of files that are not here."""
    destination = Destination(directory)
    destination.mark(paths)
    for path in paths if come else ():
        with destination.beside(path) as (folder, name):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    destination.settle(paths if come else ())
    return destination


def named(directory: Path) -> set[str] | None:
    names = fetched_mark.read(str(directory))
    return None if names is None else set(names)
