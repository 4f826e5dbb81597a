"""Waiting for what must happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0  # for what must happen, on a machine that is busy with anything else


def until(happened: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait until `happened()` is true and return what it returned; fail with `what` when it never is."""
    deadline = time.monotonic() + patience_s
    while not (result := happened()):
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}"
        time.sleep(0.01)
    return result


def written(path: Path, what: str) -> str:
    """Wait for what a process writes into a file, in one go, and return it: the file is there before its text."""
    return str(until(lambda: path.exists() and path.read_text(), what))
