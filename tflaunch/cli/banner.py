"""The banner of the configuration."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from tflaunch.api.requests.configured import configuration


def show_banner(params: Mapping[str, Any]) -> None:
    """Show the banner on a terminal, once, before anything else; never where programs read."""
    banner = configuration().get("banner")
    if banner is None or params.get("json") or sys.stderr is None or not sys.stderr.isatty():
        return
    from tflaunch.text.safe import one_line

    with contextlib.suppress(OSError):
        print("\n".join(map(one_line, str(banner.value).split("\n"))), file=sys.stderr, flush=True)
