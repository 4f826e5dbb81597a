"""`tflaunch report`: shows what a run did, from what this machine has kept of it; two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli import completion
from tflaunch.cli.arguments import JsonDocument, RecordedRun
from tflaunch.cli.output_file import OutputFile
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
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write timeline and curves as a Chrome trace, for ui.perfetto.dev, into this file.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--openmetrics",
            metavar="FILE",
            help="Write the newest values as OpenMetrics text, for Prometheus, into this file.",
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
    with reporting("nothing was written", json=json) as show:
        files = (("--html", html, _page), ("--trace", trace, _trace), ("--openmetrics", metrics, _metrics))
        if json and any(path for _, path, _ in files):
            raise UsageError("--json and a file: which form?", "leave one of them out")
        wanted = {OutputFile(path, option): text for option, path, text in files if path is not None}
        from tflaunch.documents.run_reports import report as report_on

        document = report_on([_record(run), *([_record(other)] if other is not None else [])])
        for file, text in wanted.items():
            _write(file, text(document))
            show.reporter.say(f"written to {file.path}")
        if not wanted:
            _print(document, json=json)


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


def _page(document: ReportDocument) -> str:
    from tflaunch.console.report_html import page

    return page(document)


def _trace(document: ReportDocument) -> str:
    from tflaunch.documents.chrome_trace import chrome_trace
    from tflaunch.documents.writer import to_json

    return to_json(chrome_trace(document), compact=True) + "\n"


def _metrics(document: ReportDocument) -> str:
    from tflaunch.documents.openmetrics import openmetrics

    return openmetrics(document)


def _write(file: OutputFile, text: str) -> None:
    try:
        file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {file.path}: {error.strerror}", "name another file") from error
