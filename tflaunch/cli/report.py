"""`tflaunch report`: shows what a run did, from what this machine has kept of it; two runs side by side.

Of a detached run, first what its hosts have kept is brought here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.api.requests.which_hosts import hosts_of_run
from tflaunch.cli import completion
from tflaunch.cli.arguments import JsonDocument, RecordedRun
from tflaunch.cli.output_file import OutputFile
from tflaunch.cli.reporting import Patient, reporting
from tflaunch.cli.verb_connections import visiting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import OUTPUT, SshOptions
from tflaunch.protocol.errors import ConnectErrors, TflaunchError, UsageError

if TYPE_CHECKING:
    from tflaunch.cli.reporting import Show
    from tflaunch.documents.json_documents import ReportDocument
    from tflaunch.runs.record import Record


def report(
    run: RecordedRun = None,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN2|TASK",
            help="Another run, to compare it with; or a task of RUN, as trial/7: only that.",
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
    ssh: Annotated[SshOptions, Part(default={"connect_timeout": 15.0})],
) -> None:
    """Show what a run did: what stands out, what happened when, what each task used, how it ended.

    While it runs, and later: this machine keeps it until `tflaunch clean`; of a detached run, its hosts are asked.
    With RUN2 the numbers of both stand side by side; with a task, as trial/7 of a sweep, it is about that alone.
    Without RUN: the newest.
    """
    with reporting("nothing was written", json=json) as show:
        files = (("--html", html, _page), ("--trace", trace, _trace), ("--openmetrics", metrics, _metrics))
        if json and any(path for _, path, _ in files):
            raise UsageError("--json and a file: which form?", "leave one of them out")
        wanted = {OutputFile(path, option): text for option, path, text in files if path is not None}
        from tflaunch.documents.run_reports import report as report_on

        records, only = _meant(run, other)
        unasked = {record.run_id: why for record in records if (why := _bring(record, ssh, show, json=json))}
        document = report_on(records, unasked, only)
        for file, text in wanted.items():
            _write(file, text(document))
            show.reporter.say(f"written to {file.path}")
        if not wanted:
            _print(document, json=json)


def _meant(run: str | None, other: str | None) -> tuple[list[Record], str]:
    """(The records of one run, or of two, "" or the one task that is meant); raises UsageError, RecordError."""
    if run is not None and other is None and "/" in run:  # no name of a run has one
        return [_record(None)], run
    if other is None or "/" in other:
        return [_record(run)], other or ""
    first, second = _record(run), _record(other)
    if first.run_id == second.run_id:
        raise UsageError(f"{run} and {other} are the same run", "name another one: tflaunch ps -a")
    return [first, second], ""


def _record(run: str | None) -> Record:
    """The record of that run, else of the newest; raises UsageError, RecordError."""
    from tflaunch.runs.record import Record
    from tflaunch.runs.record_list import newest_run

    return Record.open(run if run is not None else newest_run().run_id)


def _bring(record: Record, ssh: SshOptions, show: Show, *, json: bool) -> str:
    """Bring the samples that the hosts of a detached run have, unless all are here; return why they did not come."""
    from tflaunch.runs.host_samples import HOST_SAMPLES, bring, read_host_samples

    if not record.about.get("detached"):
        return ""
    kept = read_host_samples(record.path / HOST_SAMPLES, set())
    if kept is not None and kept.over:
        return ""
    patient = Patient(show.reporter, json)
    try:
        _, hostfile, known_config = hosts_of_run(record.run_id, None)
        if not hostfile.hosts:
            return "its slots are over"
        with (
            visiting(hostfile.hosts, ssh, patient, known_config=known_config) as visits,
            visits.interrupts(),
        ):
            visits.open(hostfile.hosts, ssh.connect_timeout)
            bring(visits, record.run_id, record.path)
    except ConnectErrors as error:
        host, why = next(iter(error.failures.items()))
        return f"{host}: {why.message}"
    except TflaunchError as error:
        return error.message
    finally:
        patient.settle()
    return ""


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
