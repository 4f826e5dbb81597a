"""Fetch the outputs of a run."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tflaunch.api.following import Where, open_run, where_is
from tflaunch.api.hostfiles import Hosts
from tflaunch.api.known_runs import SILENT, signals_alone, ssh_options
from tflaunch.api.requests.what_to_fetch import make_wish, parse_patterns
from tflaunch.inputs.patterns import EVERYTHING
from tflaunch.runs.fetch import Fetch
from tflaunch.runs.fetch_result import Fetched
from tflaunch.runs.wanted import WantedLogs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tflaunch.inputs.options.groups import SshOptions


def fetch(
    run: str,
    *patterns: str,
    to: str | PathLike[str] | None = None,
    overwrite: bool = False,
    hosts: Hosts = None,
    timeout_s: float = 30.0,
    ssh_config: str | PathLike[str] | None = None,
) -> Fetched:
    """Copy what the tasks of a run have written here, as `tflaunch fetch` does; it may be alive.

    run, hosts, timeout_s: as for `attach`.  patterns: as in .gitignore; none: all that the tasks wrote.
    to: this directory; None: ./RUN.  `complete` of the result says whether everything is here.
    Raises TflaunchError.
    """
    where, ssh = where_is(run, hosts), ssh_options(timeout_s, ssh_config)
    return fetch_from(where, ssh, patterns, to, overwrite=overwrite)


def fetch_from(
    where: Where,
    ssh: SshOptions,
    patterns: Sequence[str],
    to: str | PathLike[str] | None,
    *,
    overwrite: bool,
) -> Fetched:
    """Copy the files that match from the hosts of the run; raises TflaunchError."""
    wish = make_wish(
        parse_patterns(list(patterns) or [EVERYTHING], option=""),
        to=None if to is None else Path(to),
        overwrite=overwrite,
        keep_mode=False,
        most="",
    )
    silent = cast("Any", SILENT)
    with signals_alone(), open_run(where, ssh, silent, silent, WantedLogs()) as view:
        return Fetch(view.run.run_id, view.sessions, view.hosts, view.dial, silent, wish=wish).run()
