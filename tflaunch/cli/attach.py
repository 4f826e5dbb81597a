"""`tflaunch attach` and `tflaunch logs`: a run seen from any terminal, on any machine that reaches its hosts."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.cli.options import (
    OUTPUT,
    AcceptNew,
    ConnectTimeout,
    Json,
    Patient,
    Show,
    SshConfig,
    connector,
    reporting,
)
from tflaunch.cli.values import time_of
from tflaunch.cli.where import hosts_of_all, hosts_of_run
from tflaunch.inputs.times import duration
from tflaunch.protocol.errors import EXIT_UNCLEAN, ConnectErrors, StopError, UsageError
from tflaunch.protocol.job import TaskId

if TYPE_CHECKING:
    from tflaunch.protocol.outcome import Outcome
    from tflaunch.remote import Connector
    from tflaunch.runs.follow import Follower, Wanted
    from tflaunch.runs.states import RunState
    from tflaunch.runs.visits import Visits

LIST_TIMEOUT_S = 30.0
REPLAN_S = 120.0  # for a launcher that has lost a host: it looks whether anything is left there, and plans

Run = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]", help="The run's id, or how it begins [the only one alive]", show_default=False
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option("--hosts", "-H", metavar="HOSTS", help="Where to look [this machine's record]"),
]
Since = Annotated[
    float | None,
    typer.Option(
        parser=time_of(),
        metavar="TIME",
        help="What was written in the last 10m (to within 5 s).",
        rich_help_panel=OUTPUT,
    ),
]
Tail = Annotated[
    int | None,
    typer.Option(
        "--tail", "-n", min=0, metavar="N", help="The last N lines of each task.", rich_help_panel=OUTPUT
    ),
]
Grep = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Only lines with this regular expression.", rich_help_panel=OUTPUT),
]
ShowHost = Annotated[
    bool, typer.Option("--show-host", help="Name the host in each line.", rich_help_panel=OUTPUT)
]


@dataclass(frozen=True)
class Reach:
    """How the hosts are found and reached."""

    hosts: str | None
    accept_new: bool
    connect_timeout: float
    ssh_config: Path | None


def attach(
    run: Run = None,
    *,
    hosts: Hosts = None,
    since: Since = None,
    tail: Tail = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK", help="Show the output of worker/0 only; repeatable.", rich_help_panel=OUTPUT
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no output of the tasks.", rich_help_panel=OUTPUT)
    ] = False,
    grep: Grep = None,
    show_host: ShowHost = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """Watch a run that goes on: what its tasks print, what happens to them, how it ends.

    Ctrl-C only stops watching.  Several may watch one run.

    Exit code: the run's, as of `tflaunch run`; 130 when you left before its end; 2 which run?; 69 hosts could not
    be reached; 76 how it ended cannot be told.
    """
    from tflaunch.runs.record import note_end

    tasks = _tasks(only or [])
    options = {"quiet": quiet, "only": tasks, "show_host": show_host, "grep": _pattern(grep), "json": json}
    with reporting("not watching any more; the run goes on: tflaunch attach", **options) as show:
        reach = Reach(hosts, accept_new, connect_timeout, ssh_config)
        view, outcome = _follow(run, reach, show, _wanted(tasks, since, tail), json)
        for trouble in view.troubles:
            show.reporter.warn(trouble)
        if outcome is not None:
            note_end(outcome)
            show.reporter.report(outcome)
            show.exit_code = outcome.exit_code
        else:
            show.reporter.warn("nobody has noted how this run ended: who decided is gone")
            show.exit_code = EXIT_UNCLEAN


def logs(
    run: Run = None,
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK...]", help="worker/0 ps/1 [all]", show_default=False)
    ] = None,
    *,
    hosts: Hosts = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends.", rich_help_panel=OUTPUT)
    ] = False,
    since: Since = None,
    tail: Tail = None,
    grep: Grep = None,
    show_host: ShowHost = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    connect_timeout: ConnectTimeout = 30.0,
    ssh_config: SshConfig = None,
) -> None:
    """Print what the tasks of a run have written; also of one that has ended.

    One task alone is printed as it is, several with the task's name in front of each line.

    Exit code: 0; 2 which run, which task?; 69 hosts could not be reached (what the others have is printed).
    """
    wanted = _tasks(tasks or [])
    options = {"bare": len(wanted) == 1, "show_host": show_host, "grep": _pattern(grep), "json": json}
    with reporting("stopped", **options) as show:
        reach = Reach(hosts, accept_new, connect_timeout, ssh_config)
        part = _wanted(wanted, since, tail)
        if follow:
            view, _ = _follow(run, reach, show, part, json, events=False)
        else:
            with open_view(run, reach, show, part, json) as view:
                view.print_logs()
        if view.unreached:
            show.reporter.failures(ConnectErrors(view.unreached, len(view.unreached)))
            show.exit_code = ConnectErrors.exit_code
        for task in view.unknown:
            show.reporter.warn(f"{task}: the run has no such task")
            show.exit_code = UsageError.exit_code


def _follow(
    run: str | None, reach: Reach, show: Show, wanted: Wanted, json: bool, *, events: bool = True
) -> tuple[Follower, Outcome | None]:
    """See the run to its end, also when it is planned anew meanwhile; the last view of it, and how it ended."""
    with open_view(run, reach, show, wanted, json) as view:
        outcome = view.follow(events)
    while outcome is None and view.replanned:
        with open_view(view.run.run_id, reach, show, wanted, json, before=view) as view:
            outcome = view.follow(events)
    return view, outcome


@contextlib.contextmanager
def open_view(
    run: str | None,
    reach: Reach,
    show: Show,
    wanted: Wanted,
    json: bool,
    *,
    before: Follower | None = None,
) -> Iterator[Follower]:
    """The run that is meant, on all of its hosts; hosts that cannot be reached are told at the end.

    After `before` it is the run by a later plan, which is waited for.
    """
    from tflaunch.runs.follow import Follower
    from tflaunch.runs.run_ids import check_run_id
    from tflaunch.runs.states import failures_of
    from tflaunch.runs.visits import Visits

    if run is None:
        hostfile, known_config = hosts_of_all(reach.hosts, "attach", everything=False)
    else:
        run, hostfile, known_config = hosts_of_run(check_run_id(run), reach.hosts)
    to_hosts = connector(
        hostfile.hosts, reach.accept_new, reach.connect_timeout, reach.ssh_config or known_config
    )
    patient = Patient(show.reporter, json)
    visits = Visits(to_hosts, patient)
    try:
        with visits.interrupts():
            failures = visits.open(hostfile.hosts, reach.connect_timeout)
            if len(failures) == len(hostfile.hosts):
                raise ConnectErrors(failures, len(hostfile.hosts))
            state = _state(visits, run, before)
            view = Follower(state, visits.sessions, hostfile, show.reporter, wanted, before=before)
            failures.update(view.attach())
            patient.settle()
            yield view
            if view.lost:
                view.troubles = _troubles(view, to_hosts, patient, reach.connect_timeout)
        if failures := failures_of(state, failures):
            show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
            show.exit_code = show.exit_code or ConnectErrors.exit_code
    finally:
        visits.close()
        to_hosts.close()


def _troubles(view: Follower, to_hosts: Connector, patient: Patient, connect_timeout: float) -> list[str]:
    """What is there, now, on hosts whose agent is gone: of those that can be asked. Raises Stopped."""
    from tflaunch.runs.states import pick_run
    from tflaunch.runs.visits import Visits

    visits = Visits(to_hosts, patient)
    try:
        with visits.interrupts():
            visits.open([view.host(name) for name in view.lost], connect_timeout)
            found = visits.runs(LIST_TIMEOUT_S, everything=True, only=view.run.run_id).runs
        return pick_run(view.run.run_id, found).troubles
    except UsageError:  # none of them could be asked
        return []
    finally:
        visits.close()


def _state(visits: Visits, run: str | None, before: Follower | None) -> RunState:
    """How the run is; raises UsageError when it is not clear which one is meant, StopError, Stopped."""
    from tflaunch.runs.states import pick_run

    deadline = time.monotonic() + REPLAN_S
    while True:
        listed = visits.runs(LIST_TIMEOUT_S, everything=True, only=run or "")  # also what has ended on some
        state = pick_run(run, listed.runs)
        if before is None or (state.planned > before.run.planned and state.running):
            return state
        if time.monotonic() > deadline:
            raise StopError(
                f"{run}: a host was lost, and nobody has planned it anew within {duration(REPLAN_S)}",
                f"tflaunch status {run} tells what became of it",
            )
        visits.wait(1.0)


def _tasks(texts: list[str]) -> tuple[TaskId, ...]:
    try:
        return tuple(map(TaskId.parse, texts))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise UsageError(f"--grep {text}: {error}", "it is a regular expression of Python's") from None


def _wanted(tasks: tuple[TaskId, ...], since: float | None, tail: int | None) -> Wanted:
    from tflaunch.runs.follow import Wanted

    return Wanted(tasks, time.time() - since if since is not None else None, tail)
