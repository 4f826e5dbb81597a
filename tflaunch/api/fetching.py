"""Fetch the outputs of a run that this program has started."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.api.known_runs import SILENT
from tflaunch.api.requests.outputs import make_wish, parse_patterns
from tflaunch.protocol.errors import ConnectErrors
from tflaunch.runs.fetch import Fetch
from tflaunch.runs.fetch_result import Fetched
from tflaunch.runs.follow import Follower, Wanted
from tflaunch.runs.states import pick_run
from tflaunch.runs.visits import Visits

if TYPE_CHECKING:
    from tflaunch.launch.request import Request
    from tflaunch.remote import Connector

EVERYTHING = "**"


def fetch(
    run_id: str,
    request: Request,
    connector: Connector,
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
    visits = Visits(connector, SILENT)
    hosts = request.hostfile.hosts
    with contextlib.closing(visits):
        failures = visits.open(hosts, request.connect_s)
        if len(failures) == len(hosts):
            raise ConnectErrors(failures, len(hosts))
        state = pick_run(run_id, visits.runs(everything=True, only=run_id).runs)
        view = Follower(state, visits.sessions, request.hostfile, SILENT, Wanted())
        view.attach()
        return Fetch(run_id, view.sessions, view.hosts, view.dial, SILENT, wish=wish).run()
