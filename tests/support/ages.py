"""Files that seem to be old."""

from __future__ import annotations

import os
import time
from pathlib import Path

DAY_S = 86400.0


def make_old(path: Path, days: float = 30) -> None:
    """As if nobody had touched it for so long."""
    then = time.time() - days * DAY_S
    for place, links, names in os.walk(path, topdown=False):
        for name in (*links, *names, ""):
            os.utime(os.path.join(place, name), (then, then), follow_symlinks=False)  # noqa: PTH118
    if path.is_file():
        os.utime(path, (then, then))
