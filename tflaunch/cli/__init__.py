"""The command line: one file per verb; whatever is heavy is imported inside the verbs."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from typing import Annotated

import typer

import tflaunch
from tflaunch.cli import (
    attach,
    check,
    clean,
    fetch,
    gpus,
    ps,
    run,
    schema,
    status,
    stop,
    sweep,
    tensorboard,
    up,
)
from tflaunch.cli.job_options import JobCommand
from tflaunch.cli.values import Command
from tflaunch.errors import EXIT_INTERRUPTED, TflaunchError

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    name="tflaunch",
    help="Start distributed TensorFlow on machines that have SSH and Python, and leave nothing behind.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)
app.command("run", cls=run.RunCommand)(run.run)
app.command("up", cls=JobCommand)(up.up)
app.command("sweep", cls=sweep.SweepCommand)(sweep.sweep)
app.command("attach", cls=Command)(attach.attach)
app.command("logs", cls=Command)(attach.logs)
app.command("fetch", cls=Command)(fetch.fetch)
app.command("tensorboard", cls=Command)(tensorboard.tensorboard)
app.command("stop", cls=Command)(stop.stop)
app.command("gpus", cls=gpus.GpusCommand)(gpus.gpus)
app.command("check", cls=Command)(check.check)
app.command("ps", cls=Command)(ps.ps)
app.command("status", cls=Command)(status.status)
app.command("clean", cls=Command)(clean.clean)
app.command("schema", cls=Command)(schema.schema)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tflaunch {tflaunch.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The `tflaunch` command: every error that a user can see ends here, as a sentence and an exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except TflaunchError as error:
        from tflaunch.console import open_reporter

        reporter = open_reporter(json="--json" in sys.argv)
        reporter.error(error)
        reporter.close()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        with contextlib.suppress(OSError):
            print(f"tflaunch: the output cannot be written: {error.strerror}", file=sys.stderr)
        os._exit(1)  # the interpreter would try to write the rest again
