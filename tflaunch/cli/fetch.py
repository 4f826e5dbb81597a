"""`tflaunch fetch`: what the tasks of a run have written, brought here; from a run that goes on, or has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflaunch.cli.attach import open_view
from tflaunch.cli.option_groups import OutputOptions, ReachOptions, Run
from tflaunch.cli.options import Part
from tflaunch.cli.outputs import patterns_of, wish_of
from tflaunch.cli.reporting import reporting
from tflaunch.errors import ConnectErrors, FetchError

EVERYTHING = "**"


def fetch(
    run: Run = None,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN...]",
            help="As in .gitignore: 'checkpoints/**' '*.keras' '!*.tmp' [all that they wrote]",
            show_default=False,
        ),
    ] = None,
    *,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Where to [./RUN]", show_default=False)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also over files here that have other content.")
    ] = False,
    most: Annotated[
        str, typer.Option("--max", metavar="SIZE", help="Bring nothing if it is more: 20GiB.")
    ] = "",
    keep_mode: Annotated[
        bool, typer.Option("--keep-mode", help="What is executable there is so here.")
    ] = False,
    output: Annotated[OutputOptions, Part("json")],
    reach: ReachOptions,
) -> None:
    """Bring here what the tasks of a run have written in their working directory.

    What several hosts have by one name and with other content goes to a directory for each host.  A file comes whole or
    not at all; done again, it goes on where it was.  Shipped code that is as it came, links, __pycache__ and .git do
    not come; names that begin with a dot do where a pattern names the dot: '.cache/**'.

    Exit code: 0 all of it is here; 2 which run?; 69 hosts could not be reached, 74 something did not come, or nothing
    matches: the rest is here.
    """
    from tflaunch.fetch import Fetch
    from tflaunch.view import Wanted

    with reporting("stopped; the same command goes on where it was", json=output.json) as show:
        wanted = patterns_of(patterns or [EVERYTHING], option="")
        wish = wish_of(wanted, to=to, overwrite=overwrite, keep_mode=keep_mode, most=most)
        with open_view(run, reach, show, Wanted(), output.json) as view:
            told = Fetch(
                view.run.run_id,
                view.sessions,
                view.hosts,
                view.dial,
                show.reporter,
                wish=wish,
            ).run()
            show.reporter.fetched(told)
        if told.unreached:
            show.exit_code = ConnectErrors.exit_code
        elif not told.complete:
            show.exit_code = FetchError.exit_code
