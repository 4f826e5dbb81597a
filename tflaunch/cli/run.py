"""`tflaunch run`: makes a request from the command line, for tflaunch.launch.launch to carry out."""

from __future__ import annotations

import typer

from tflaunch.api.requests.run import request_of
from tflaunch.cli.command import command_line
from tflaunch.cli.reporting import calling_on_end, reporting
from tflaunch.cli.rerun import compared
from tflaunch.cli.verb_connections import connected
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.protocol.errors import TflaunchError, UsageError
from tflaunch.protocol.job import TaskId


def run(ctx: typer.Context, options: RunOptions) -> None:
    """Start TRAINER.py as ps, worker and other tasks on HOSTS, show what they print, stop when the work is done.

    A job file, job.yaml, in place of TRAINER.py can hold all options; those of the command line win.
    """
    from tflaunch.launch.launch import dry, launch

    output = options.output
    at_end, shown = (
        calling_on_end(options.end.on_end),
        reporting(
            "stopped; nothing was started, nothing is left",
            json=output.json,
            quiet=output.quiet,
            only=[_task_id(text) for text in output.only],
            show_host=output.show_host,
            fold=not output.raw,
            one_document=options.start.dry_run,
            repeat=options.start.dry_run,
        ),
    )
    with at_end as on_end, shown as show:
        if isinstance(ctx.obj, TflaunchError):  # what is wrong with the job file
            raise ctx.obj
        request = request_of(options, ctx.obj, show.reporter, command=command_line())
        show.reporter = compared(request, show.reporter)
        if not options.start.dry_run:
            show.reporter = on_end.begin(request.run_id, request.command, show.reporter)
        with connected(request.hostfile.hosts, options.connection, show.reporter) as connector:
            show.exit_code = (dry if options.start.dry_run else launch)(request, connector, show.reporter)


def _task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise UsageError(f"--only {text}: {error}") from None
