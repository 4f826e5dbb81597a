"""`tflaunch fetch`: what the tasks of a run have written, brought here; from a run that goes on, or has ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli.attach import Hosts, Reach, Run, open_view
from tflaunch.cli.options import AcceptNew, ConnectTimeout, Json, SshConfig, reporting
from tflaunch.errors import ConnectErrors, FetchError, UsageError

if TYPE_CHECKING:
    from tflaunch.patterns import Pattern

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
    hosts: Hosts = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """Bring here what the tasks of a run have written in their working directory.

    What several hosts have by one name and with other content goes to a directory for each host.  A file comes whole or
    not at all; done again, it goes on where it was.  Shipped code that is as it came, links and __pycache__ do not
    come.

    Exit code: 0 all of it is here; 2 which run?; 69 hosts could not be reached, 74 something did not come, or nothing
    matches: the rest is here.
    """
    from tflaunch.fetch import Fetch
    from tflaunch.view import Wanted

    with reporting("stopped; the same command goes on where it was", json=json) as show:
        wanted = parse(patterns or [EVERYTHING], to)
        reach = Reach(hosts, accept_new, connect_timeout, ssh_config)
        with open_view(run, reach, show, Wanted(), json) as view:
            told = Fetch(
                view.run.run_id,
                view.sessions,
                view.hosts,
                view.dial,
                show.reporter,
                patterns=wanted,
                directory=to or Path(view.run.run_id),
                overwrite=overwrite,
            ).run()
            show.reporter.fetched(told)
        if told.unreached:
            show.exit_code = ConnectErrors.exit_code
        elif not told.complete:
            show.exit_code = FetchError.exit_code


def parse(patterns: list[str], to: Path | None) -> tuple[Pattern, ...]:
    """The patterns of a command line, and whether that directory can be one; raises UsageError."""
    from tflaunch.patterns import Pattern

    if to is not None and to.exists() and not to.is_dir():
        raise UsageError(f"{to} is not a directory", "name another one")
    found = tuple(map(Pattern.parse, patterns))
    if found and not any(pattern.wanted for pattern in found):
        raise UsageError(f"{patterns[0]}: patterns with ! only take away", "add one without, such as '**'")
    return found
