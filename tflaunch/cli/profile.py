"""`tflaunch profile`: a trace of a TensorFlow run that goes on, for TensorBoard."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.api.requests.which_hosts import run_and_words
from tflaunch.cli import completion
from tflaunch.cli.arguments import LivingRun
from tflaunch.cli.attach import open_view
from tflaunch.cli.reporting import reporting
from tflaunch.inputs.options.groups import OUTPUT, ReachOptions
from tflaunch.inputs.options.of_others import ProfileOptions
from tflaunch.protocol.errors import EXIT_CONNECT, UsageError

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.runs.profiling import Profiled


def profile(
    run: LivingRun = None,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK",
            help="worker/0 ps/1 [the first eight]",
            show_default=False,
            autocompletion=completion.tasks,
        ),
    ] = None,
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Write the traces below this directory [the run's record, or ./RUN]",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    length: ProfileOptions,
    reach: ReachOptions,
) -> None:
    """Take a trace of what TensorFlow does in a run just now, and write it as TensorBoard's profile plug-in opens it.

    TensorFlow's servers answer for it at the cluster's own ports: the program needs no change, and goes on.  A trace
    of some seconds costs the tasks a few percent meanwhile, and has some megabytes.  Without RUN: the only run alive.
    """
    from tflaunch.runs.profiling import ProfileError, Profiler, tasks_to_profile
    from tflaunch.runs.wanted import WantedLogs

    run, words = run_and_words(run, tasks or [])
    with (
        reporting("no trace was taken; the run goes on") as show,
        open_view(run, reach, show, WantedLogs(), json=False) as view,
    ):
        wanted = tasks_to_profile(view.run, words)
        directory = to or _record_of(view.run.run_id)
        profiler = Profiler(view, directory, show.reporter)
        if not words and len(wanted) < len(view.run.tasks):
            names = ", ".join(task.task for task in wanted)
            show.reporter.note(f"a trace of {names}; of others: tflaunch profile {view.run.run_id} TASK")
        made = profiler.run(wanted, length.seconds)
        _tell(made, show.reporter)
        if made.failed:
            show.exit_code = EXIT_CONNECT
        if not made.files:
            raise ProfileError("no trace came", _next_step(view.run.run_id))


def _record_of(run: str) -> Path:
    """The directory for the traces of that run."""
    from tflaunch.runs.record import Record

    try:
        return Record.open(run).path / "profile"
    except UsageError:
        return Path(run)


def _tell(made: Profiled, reporter: Reporter) -> None:
    from tflaunch.text.numbers import amount
    from tflaunch.text.safe import one_line

    for task, why in made.failed.items():
        reporter.warn(f"{task}: {one_line(why)}")
    for task, troubles in made.troubles.items():
        reporter.warn(f"{task}: its trace is not whole: {one_line('; '.join(troubles))}")
    if made.files:
        size = sum(path.stat().st_size for path in made.files.values())
        session = next(iter(made.files.values())).parent
        reporter.say(f"traces of {', '.join(made.files)} ({amount(size)}): {session}")
        reporter.say(
            f"  → tensorboard --logdir {shlex.quote(str(made.directory))}   (its profile plug-in: xprof)"
        )


def _next_step(run: str) -> str:
    return f"where its tasks are just now, whatever their framework: tflaunch stacks {run}"
