"""Waiting for what must happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0  # for what must happen, on a busy machine


def until(happened: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait until `happened()` is true and return what it returned; fail with `what` when it never is."""
    deadline = time.monotonic() + patience_s
    while not (result := happened()):
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}"
        time.sleep(0.01)
    return result
