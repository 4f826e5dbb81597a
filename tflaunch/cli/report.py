"""`tflaunch report`: shows what a run did, from what this machine has kept of it; two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli import completion
from tflaunch.cli.arguments import JsonDocument, RecordedRun
from tflaunch.cli.reporting import reporting
from tflaunch.inputs.options.groups import OUTPUT
from tflaunch.protocol.errors import UsageError

if TYPE_CHECKING:
    from tflaunch.documents.json_documents import ReportDocument
    from tflaunch.runs.record import Record


def report(
    run: RecordedRun = None,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN2",
            help="Another run, to compare it with.",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None,
    *,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page with curves and heat maps into this file; it needs no network.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: JsonDocument = False,
) -> None:
    """Show what a run did: what stands out, what happened when, what each task used, how it ended.

    While it runs, and later: this machine keeps it until `tflaunch clean`.  With RUN2 the numbers of both stand side by
    side.  Without RUN: the newest.
    """
    from tflaunch.documents.run_reports import report as report_on

    with reporting("nothing was written", json=json) as show:
        if html is not None and json:
            raise UsageError("--html and --json: a page or a document?", "leave one of them out")
        document = report_on([_record(run), *([_record(other)] if other is not None else [])])
        if html is None:
            _print(document, json=json)
        else:
            _write(document, html)
            show.reporter.say(f"written to {html}")


def _record(run: str | None) -> Record:
    """The record of that run, else of the newest; raises UsageError, RecordError."""
    from tflaunch.runs.record import Record
    from tflaunch.runs.record_list import newest_run

    return Record.open(run if run is not None else newest_run().run_id)


def _print(document: ReportDocument, *, json: bool) -> None:
    from tflaunch.console.report_page import report_lines
    from tflaunch.console.screen import Screen, reader_may_leave

    screen = Screen()
    with reader_may_leave():
        if json:
            screen.write_json(document)
        else:
            screen.show(report_lines(document, screen))


def _write(document: ReportDocument, path: Path) -> None:
    """Write the page; raises UsageError where that cannot be."""
    from tflaunch.console.report_html import page

    try:
        path.write_text(page(document), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "name another file") from error
