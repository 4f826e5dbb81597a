"""`tflaunch fetch`: copies files that the tasks of a run have written to this machine; the run may be alive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflaunch.api.requests.what_to_fetch import make_wish, parse_patterns
from tflaunch.api.requests.which_hosts import run_and_words
from tflaunch.cli.arguments import Run
from tflaunch.cli.attach import open_view
from tflaunch.cli.reporting import reporting
from tflaunch.inputs.options.declared import Part
from tflaunch.inputs.options.groups import OutputOptions, ReachOptions
from tflaunch.inputs.options.job_groups import FetchedOptions
from tflaunch.protocol.errors import ConnectErrors, FetchError


def fetch(
    run: Run = None,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN",
            help="As in .gitignore: 'checkpoints/**' '*.keras' '!*.tmp' [all that the tasks wrote]",
            show_default=False,
        ),
    ] = None,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Copy them into this directory [./RUN]", show_default=False),
    ] = None,
    most: Annotated[
        str, typer.Option("--max", metavar="SIZE", help="Copy nothing if it is more than this: 20GiB.")
    ] = "",
    files: FetchedOptions,
    output: Annotated[OutputOptions, Part("json")],
    reach: ReachOptions,
) -> None:
    """Copy to this machine what the tasks of a run have written in their working directories.

    Files of one name but different content on several hosts go to one directory per host.  A file is copied whole or
    not at all; the same command again continues where it stopped.  Unchanged shipped code, links, __pycache__ and
    .git are left out; so are names that begin with a dot, unless a pattern has the dot: '.cache/**'.
    """
    from tflaunch.inputs.patterns import EVERYTHING
    from tflaunch.runs.fetch import Fetch
    from tflaunch.runs.wanted import WantedLogs

    with reporting("stopped; the same command continues where it stopped", json=output.json) as show:
        run, words = run_and_words(run, patterns or [])
        wanted = parse_patterns(words or [EVERYTHING], option="")
        wish = make_wish(wanted, to=to, overwrite=files.overwrite, keep_mode=files.keep_mode, most=most)
        with open_view(run, reach, show, WantedLogs(), output.json) as view:
            fetched = Fetch(
                view.run.run_id,
                view.sessions,
                view.hosts,
                view.dial,
                show.reporter,
                wish=wish,
            ).run()
            show.reporter.fetched(fetched)
        if fetched.unreached:
            show.exit_code = ConnectErrors.exit_code
        elif not fetched.complete:
            show.exit_code = FetchError.exit_code
