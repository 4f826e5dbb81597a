"""`tflaunch stop`: end a run from any terminal, whatever is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli.options import (
    AcceptNew,
    ConnectTimeout,
    Grace,
    Json,
    Show,
    SshConfig,
    connector,
    load_hosts,
    reporting,
)
from tflaunch.cli.where import default_or_none, hosts_of_run, nowhere, recorded_hosts
from tflaunch.protocol.errors import ConnectErrors, StopError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tflaunch.console.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.runs.states import RunState
    from tflaunch.runs.visits import Visits

LIST_TIMEOUT_S = 30.0


def stop(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="The run's id, or how it begins [the only one]", show_default=False
        ),
    ] = None,
    *,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", "-H", metavar="HOSTS", help="Where to look [this machine's record]"),
    ] = None,
    grace: Grace = 10.0,
    json: Json = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """End a run on all its hosts: also when its launcher, or its agents, are dead.

    Without RUN: the only one that is alive, or a list to choose from.  Again and again is fine.

    Exit code: 0 nothing of it is alive; 2 which run?; 69 hosts could not be asked; 76 something lives on.
    """
    from tflaunch.runs.record import note_stopped
    from tflaunch.runs.run_ids import check_run_id
    from tflaunch.runs.states import restarted_text
    from tflaunch.runs.visits import UNSURE, Visits

    with reporting(
        "not waiting; what was told to end goes on ending, look with: tflaunch stop", json=json
    ) as show:
        if run is not None:
            check_run_id(run)
        run, hostfile, known_config = _where(run, hosts)
        to_hosts = connector(hostfile.hosts, accept_new, connect_timeout, ssh_config or known_config)
        visits = Visits(to_hosts, show.reporter)
        try:
            with visits.interrupts():
                unreachable = visits.open(hostfile.hosts, connect_timeout)
                if len(unreachable) == len(hostfile.hosts):
                    raise ConnectErrors(unreachable, len(hostfile.hosts))
                listed = visits.runs(LIST_TIMEOUT_S)
                alive = listed.runs
                chosen = _choose(run, alive, visits, show)
                finished, failures = visits.finish(chosen, grace) if chosen else ({}, {})
                failures = {**listed.failures, **failures}
        finally:
            visits.close()
            to_hosts.close()
        if chosen is not None and not failures and not any(end.known for end in finished.values()):
            _refuse_unknown(chosen, alive)
        if chosen is not None:
            show.reporter.stopped(chosen, finished)
            for host, end in finished.items():
                if end.unsure:
                    show.reporter.warn(f"{host}: {UNSURE}")
                elif end.restarted:
                    show.reporter.note(restarted_text(host, end.restarted))
            if not failures and all(end.clean for end in finished.values()):
                note_stopped(chosen)
        if failures:
            show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
            show.exit_code = ConnectErrors.exit_code
        if not all(end.clean for end in finished.values()):
            show.exit_code = StopError.exit_code


def _where(run: str | None, source: str | None) -> tuple[str | None, Hostfile, Path | None]:
    """(full run id if it is known here, the hosts to look on, the ssh_config that leads there)."""
    if run is not None:
        return hosts_of_run(run, source)
    recorded, config = recorded_hosts(lively=True) if source is None else (None, None)
    if recorded is not None:
        return None, recorded, config
    hostfile = load_hosts(source) if source is not None else default_or_none()
    if hostfile is None:
        raise nowhere("stop")
    return None, hostfile, None


def _refuse_unknown(run: str, alive: Sequence[RunState]) -> None:
    """A typo must not look like a run that is stopped; one that this machine has a record of is none."""
    from tflaunch.runs.record import Record

    try:
        if Record.open(run).run_id == run:
            return
    except UsageError:
        pass
    names = ", ".join(each.run_id for each in alive)
    raise UsageError(
        f"these hosts know no run {run}", f"alive is: {names}" if names else "no run is alive there"
    )


def _choose(run: str | None, alive: Sequence[RunState], visits: Visits, show: Show) -> str | None:
    """The run that is meant; None when nothing is alive and no run was named."""
    if run is not None:
        matches = [each.run_id for each in alive if each.run_id.startswith(run)]
        if len(matches) > 1 and run not in matches:
            raise UsageError(
                f"{len(matches)} runs begin with {run}: {', '.join(matches)}", "write more of the id"
            )
        return matches[0] if len(matches) == 1 and run not in matches else run
    if not alive:
        show.reporter.note("no run is alive on these hosts")
        return None
    if len(alive) == 1:
        return alive[0].run_id
    if show.reporter.can_ask and (chosen := _ask_which(alive, visits, show.reporter)):
        return chosen
    raise UsageError(
        f"{len(alive)} runs are alive: {', '.join(each.run_id for each in alive)}",
        "say which: tflaunch stop RUN",
    )


def _ask_which(alive: Sequence[RunState], visits: Visits, reporter: Reporter) -> str | None:
    from tflaunch.sessions.asking import answer

    for number, each in enumerate(alive, 1):
        reporter.note(f"{number:3}  {each.run_id}  {len(each.tasks)} tasks on {len(each.hosts)} hosts")
    by_number = {str(number): each.run_id for number, each in enumerate(alive, 1)}
    question = "stop which?"
    while words := answer(visits.sessions, reporter, question):
        if chosen := by_number.get(words.strip()):
            return chosen
        question = f"stop which, 1 to {len(alive)}?"
    return None
