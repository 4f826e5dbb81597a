"""Which reporter shows a run: that for people, or that for programs."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Collection
from typing import TextIO

from tflaunch.documents.log_keeping import Options
from tflaunch.documents.reporter import Reporter
from tflaunch.documents.writer import Stream
from tflaunch.protocol.job import TaskId

Style = Callable[[Options, Stream, Stream], Reporter]


def open_reporter(
    *,
    json: bool = False,
    quiet: bool = False,
    only: Collection[TaskId] | None = None,
    show_host: bool = False,
    grep: re.Pattern[str] | None = None,
    bare: bool = False,
    fold: bool = False,
    one_document: bool = False,
    repeat: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    styles: tuple[Style, Style] | None = None,
) -> Reporter:
    """Return the reporter for people or, with `json`, for programs.

    styles: make these reporters instead, the first for people, the second for programs.
    quiet: show no logs.  only: show the logs of these tasks.  show_host: name the host in each line.
    grep: show only lines that match.  bare: put nothing in front of them.  fold: on a terminal, leave out and count
    the lines that TensorFlow writes at each start, and those that several tasks write alike.  one_document: with
    `json`, print one object at the end instead of a line for each event, for a dry run.  repeat: show also the warnings
    that earlier runs have shown (Reporter.warn_once).
    """
    options = Options(
        quiet, frozenset(only) if only else None, show_host, grep, bare, fold, one_document, repeat
    )
    out = Stream(stdout or sys.stdout or io.StringIO())  # sys.stdout is None if the shell closed it
    err = Stream(stderr or sys.stderr or io.StringIO())
    if styles is not None:
        return styles[json](options, out, err)
    if json:
        from tflaunch.documents.json_lines import JsonReporter

        return JsonReporter(options, out, err)
    from tflaunch.console.terminal import TextReporter

    return TextReporter(options, out, err)
