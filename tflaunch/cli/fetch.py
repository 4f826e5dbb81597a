"""`tflaunch fetch`: what the tasks of a run have written, brought here; from a run that goes on, or has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli.attach import Hosts, Reach, Run, open_view
from tflaunch.cli.options import AcceptNew, ConnectTimeout, Json, SshConfig, reporting
from tflaunch.protocol.errors import ConnectErrors, FetchError, UsageError

if TYPE_CHECKING:
    from tflaunch.inputs.patterns import Pattern, Wish

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
    hosts: Hosts = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """Bring here what the tasks of a run have written in their working directory.

    What several hosts have by one name and with other content goes to a directory for each host.  A file comes whole or
    not at all; done again, it goes on where it was.  Shipped code that is as it came, links, __pycache__ and .git do
    not come; names that begin with a dot do where a pattern names the dot: '.cache/**'.

    Exit code: 0 all of it is here; 2 which run?; 69 hosts could not be reached, 74 something did not come, or nothing
    matches: the rest is here.
    """
    from tflaunch.runs.fetch import Fetch
    from tflaunch.runs.follow import Wanted

    with reporting("stopped; the same command goes on where it was", json=json) as show:
        wanted = patterns_of(patterns or [EVERYTHING], option="")
        wish = wish_of(wanted, to=to, overwrite=overwrite, keep_mode=keep_mode, most=most)
        reach = Reach(hosts, accept_new, connect_timeout, ssh_config)
        with open_view(run, reach, show, Wanted(), json) as view:
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


def patterns_of(texts: Sequence[str], option: str = "--fetch ") -> tuple[Pattern, ...]:
    """The patterns of a command line; raises UsageError."""
    from tflaunch.inputs.patterns import Pattern

    found = []
    for text in texts:
        try:
            found.append(Pattern.parse(text))
        except ValueError as error:
            hint = "a pattern is as in .gitignore: 'checkpoints/**'"
            raise UsageError(f"{option}{text}: it {error}", hint) from None
    if found and not any(pattern.wanted for pattern in found):
        raise UsageError(f"{texts[0]}: patterns with ! only take away", "add one without, such as '**'")
    return tuple(found)


def wish_of(
    patterns: tuple[Pattern, ...], *, to: Path | None, overwrite: bool, keep_mode: bool, most: str
) -> Wish:
    """How what they match is brought; raises UsageError for a directory that cannot be one, and for no size."""
    from tflaunch.inputs.patterns import Wish
    from tflaunch.inputs.sizes import size

    if to is not None and to.exists() and not to.is_dir():
        raise UsageError(f"{to} is not a directory", "name another one")
    return Wish(patterns, to, overwrite, keep_mode, size(most, "an amount of data") if most else None)
