"""`tflaunch run`: makes a request from the command line, for tflaunch.launch.launch to carry out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from tflaunch.api.carrying_out import carry_out, show_plan
from tflaunch.api.requests.run import request_of
from tflaunch.api.requests.which_hosts import load_hosts
from tflaunch.cli.background import behind_the_terminal
from tflaunch.cli.command import command_line
from tflaunch.cli.reporting import calling_on_end, reporting
from tflaunch.cli.rerun import compared
from tflaunch.cli.verb_connections import way_to_ask
from tflaunch.inputs.options.of_run import RunOptions
from tflaunch.protocol.errors import TflaunchError, UsageError
from tflaunch.protocol.job import TaskId

if TYPE_CHECKING:
    from tflaunch.launch.request import Request


def run(ctx: typer.Context, options: RunOptions) -> None:
    """Start TRAINER.py as ps, worker and other tasks on HOSTS, show what they print, stop when the work is done.

    A job file, job.yaml, in place of TRAINER.py can hold all options; those of the command line win.
    """
    from tflaunch.launch.launch import launch

    leave = behind_the_terminal() if _waits_for_slots(options, ctx.obj) else None
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
        if options.start.dry_run:
            request = _with_keras_told(request)
            show.exit_code = show_plan(request, options.connection, show.reporter, way_to_ask())
            return
        show.reporter = on_end.begin(request.run_id, request.command, show.reporter)
        show.exit_code = carry_out(
            request, options.connection, show.reporter, launch, ask=way_to_ask(), leave=leave
        )


def _with_keras_told(request: Request) -> Request:
    """What a start would find out on the hosts, and warn of: a dry run does not look which Keras they have."""
    job = request.job
    if not job.keras_fit or "TF_USE_LEGACY_KERAS" in job.env:
        return request
    note = f"if the hosts have Keras 3: it has no {job.keras_fit}"
    return replace(request, job=replace(job, notes=(*job.notes, note)))


def _waits_for_slots(options: RunOptions, file: object) -> bool:
    """Whether the run is to wait for slots of an engine without this command."""
    if not options.end.detach or options.start.dry_run or isinstance(file, TflaunchError):
        return False
    try:
        hostfile = load_hosts(options.what.hosts, options.connection.connection)
    except TflaunchError:  # told later
        return False
    from tflaunch.engines.taken_slots import why_it_stays

    return hostfile.wanted is not None and not why_it_stays(hostfile)


def _task_id(text: str) -> TaskId:
    try:
        return TaskId.parse(text)
    except ValueError as error:
        raise UsageError(f"--only {text}: {error}") from None
