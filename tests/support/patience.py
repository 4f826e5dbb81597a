"""Waiting for what must happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0  # for what must happen, on a machine that is busy with anything else


def until(happened: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait until `happened()` is true and return what it returned; fail with `what` when it never is."""
    began = asked = time.monotonic()
    while not (result := happened()):
        now = time.monotonic()
        assert now < began + patience_s, f"not within {patience_s:g} s: {what}"
        # What takes long to ask is asked less often, and so is what has been long in coming.
        time.sleep(min(max(0.01, 4 * (now - asked), (now - began) / 100), 0.1))
        asked = time.monotonic()
    return result


def written(path: Path, what: str) -> str:
    """Wait for what a process writes into a file, in one go, and return it: the file is there before its text."""
    return str(until(lambda: path.exists() and path.read_text(), what))
