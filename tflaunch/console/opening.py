"""Which reporter shows a run: that for people, or that for programs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, TextIO

from tflaunch.documents.log_keeping import Options
from tflaunch.documents.reporter import Reporter
from tflaunch.documents.writer import Stream

Style = Callable[[Options, Stream, Stream], Reporter]


def open_reporter(
    *,
    json: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    styles: tuple[Style, Style] | None = None,
    **shown: Any,
) -> Reporter:
    """Return the reporter for people or, with `json`, for programs.

    styles: make these reporters instead, the first for people, the second for programs.
    shown: fields of Options, which say what is shown.
    """
    options = Options(**shown)
    out = Stream(stdout or sys.stdout or io.StringIO())  # sys.stdout is None if the shell closed it
    err = Stream(stderr or sys.stderr or io.StringIO())
    if styles is not None:
        return styles[json](options, out, err)
    if json:
        from tflaunch.documents.json_lines import JsonReporter

        return JsonReporter(options, out, err)
    from tflaunch.console.terminal import TextReporter

    return TextReporter(options, out, err)
