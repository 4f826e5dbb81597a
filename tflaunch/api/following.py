"""Follow a run that any machine has started, over connections that are opened here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tflaunch.api.connecting import connected
from tflaunch.api.hostfiles import Hosts, load_known
from tflaunch.protocol.errors import EXIT_UNCLEAN, ConnectErrors, RecordError, StopError, UsageError
from tflaunch.sessions.watcher import ProgressWatcher
from tflaunch.text.times import duration

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.hosts import Hostfile
    from tflaunch.inputs.options.groups import SshOptions
    from tflaunch.protocol.outcome import Outcome
    from tflaunch.remote import Connector
    from tflaunch.runs.follow import Follower
    from tflaunch.runs.kept import KeptRun
    from tflaunch.runs.run_states import RunState
    from tflaunch.runs.visits import Visits
    from tflaunch.runs.wanted import WantedLogs

    View = Follower | KeptRun

REPLAN_S = 120.0  # time for a launcher that has lost a host to look for tasks left there, and to plan again


class SlotsOver(UsageError):
    """There is no host to ask: the slots of that run are over, or its launcher still waits for them."""

    def __init__(self, run: str) -> None:
        self.waits = _launcher_lives(run)
        if self.waits:
            super().__init__(f"{run} waits for its slots", f"how it stands: tflaunch status {run}")
        else:
            super().__init__(
                f"the slots of {run} are over, and what was there with them",
                f"what this machine has of it: tflaunch logs {run}, tflaunch status {run}",
            )
        self.run = run


def _newest_on_slots() -> str:
    """The newest run on record here, if it is one on slots; else ""."""
    from tflaunch.runs.record_list import list_runs

    newest = next(iter(list_runs()), None)
    return newest.run_id if newest is not None and newest.on_slots else ""


def _launcher_lives(run: str) -> bool:
    from tflaunch.runs.record import Record

    with contextlib.suppress(UsageError, RecordError):
        return Record.open(run).running()
    return False


class ConnectingProgress(ProgressWatcher, Protocol):
    """Shows how far the connecting is, until `settle`."""

    def settle(self) -> None: ...


class Where(NamedTuple):
    """Which run is meant, and where it may be."""

    run: str | None  # an id, a name or its first letters; None: the only run alive, else the newest
    hostfile: Hostfile
    known_config: Path | None  # the ssh_config of its record


def where_is(run: str | None, hosts: Hosts) -> Where:
    """Return which run is meant, and where it may be; raises UsageError."""
    from tflaunch.api.requests.which_hosts import hosts_of_newest, hosts_of_run
    from tflaunch.runs.run_ids import check_run_id

    if hosts is not None:
        return Where(check_run_id(run) if run is not None else None, load_known(hosts), None)
    if run is None:
        return Where(None, *hosts_of_newest(None, "attach"))
    return Where(*hosts_of_run(check_run_id(run), None))


@contextlib.contextmanager
def open_run(
    where: Where,
    ssh: SshOptions,
    reporter: Reporter,
    progress: ConnectingProgress,
    wanted: WantedLogs,
    *,
    before: Follower | None = None,
    ask: Callable[[str], str] | None = None,
    again: bool = True,
) -> Iterator[Follower]:
    """Yield a Follower of the run, on all its hosts; show at the end which hosts could not be reached: its `missed`.

    With `before`, wait for a plan later than that Follower's.  ask: as for tflaunch.api.connecting.connected.  again:
    where the run ends before any of its agents has taken the connection, open it once more.
    """
    from tflaunch.runs.follow import Follower
    from tflaunch.runs.run_states import failures_of, why_picked
    from tflaunch.runs.visits import Visits

    hosts, run = where.hostfile.hosts, where.run
    if not hosts and run is not None:
        raise SlotsOver(run)
    with (
        connected(hosts, ssh, known_config=where.known_config, ask=ask) as connector,
        contextlib.closing(Visits(connector, progress)) as visits,
    ):
        with visits.interrupts():
            failures = visits.open(hosts, ssh.connect_timeout)
            if run is not None and len(visits.gone) == len(hosts):
                raise SlotsOver(run)
            if failures and len(failures) == len(hosts):
                if before is not None and any(host.slot for host in hosts):
                    raise SlotsOver(before.run.run_id)  # they are being given back
                raise ConnectErrors(failures, len(hosts))
            try:
                state = _state(visits, run, before)
            except UsageError:
                if before is not None and any(host.slot for host in hosts):
                    raise SlotsOver(before.run.run_id) from None
                if run is None and (newest := _newest_on_slots()):
                    raise SlotsOver(newest) from None
                raise
            if run is None:
                progress.settle()
                reporter.note(why_picked(state))
            if before is None and wanted.shortens(state):
                run_id = state.run_id
                reporter.note(f"{run_id} is over; its last lines (all: tflaunch attach --all {run_id}):")
            view = Follower(state, visits.sessions, where.hostfile, reporter, wanted.of(state), before=before)
            failures.update(view.attach())
            ended = again and state.alive and not view.hosts and bool(visits.sessions.ended)
            progress.settle()
            if not ended:
                yield view
                if view.lost:
                    view.troubles = _troubles(view, connector, progress, ssh.connect_timeout)
        if not ended:
            view.missed = failures_of(state, failures)
            if view.missed:
                reporter.failures(ConnectErrors(view.missed, len(hosts)))
    if ended:  # what its agents have left says how
        where = where._replace(run=state.run_id)
        with open_run(where, ssh, reporter, progress, wanted, before=before, ask=ask, again=False) as view:
            yield view


@contextlib.contextmanager
def open_run_or_kept(
    where: Where,
    ssh: SshOptions,
    reporter: Reporter,
    progress: ConnectingProgress,
    wanted: WantedLogs,
    *,
    before: View | None = None,
    ask: Callable[[str], str] | None = None,
    wait: bool = False,
) -> Iterator[View]:
    """Open the run as `open_run` does; where its slots are over, what this machine has kept of it.

    wait: where its launcher waits for slots, wait with it.  Raises UsageError for such a run without `wait`.
    """
    from tflaunch.runs.kept import KeptRun

    assert not isinstance(before, KeptRun)  # noqa: S101 - such a run has no later plan
    with contextlib.ExitStack() as stack:
        view: View | None = None
        while view is None:
            try:
                opened = open_run(where, ssh, reporter, progress, wanted, before=before, ask=ask)
                view = stack.enter_context(opened)
            except SlotsOver as over:
                progress.settle()
                if over.waits and not wait:
                    raise
                given = _when_given(over.run, where, reporter) if over.waits else None
                if given is None:
                    view = KeptRun(over.run, reporter, wanted)
                else:
                    where = given
        yield view


def _when_given(run: str, where: Where, reporter: Reporter) -> Where | None:
    """Where the run is, once its launcher has slots for it, other ones than before; None if it ends before."""
    from tflaunch.runs.record import Record, hostfile_from

    reporter.note(f"{run} waits for its slots")
    before = [host.slot for host in where.hostfile.hosts]
    while True:
        lives = Record.open(run).running()  # asked first: it may note its slots, hand over and end
        hostfile = hostfile_from(Record.open(run))
        if hostfile.hosts and [host.slot for host in hostfile.hosts] != before:
            return where._replace(hostfile=hostfile)
        if not lives:
            return None
        time.sleep(1.0)


def follow_to_the_end(
    opened: Callable[[View | None], AbstractContextManager[View]], *, events: bool = True
) -> tuple[View, Outcome | None]:
    """Follow a run to its end, across new plans; return (the last Follower, how the run ended if that is known).

    opened: opens the run by the plan after that of the Follower that it gets.
    """
    with opened(None) as view:
        outcome = view.follow(events)
    while outcome is None and view.replanned:
        with opened(view) as view:
            outcome = view.follow(events)
    return view, outcome


def tell_end(view: View, outcome: Outcome | None, reporter: Reporter) -> int:
    """Show how a run that was followed to its end has ended, and note it here; return the exit code."""
    from tflaunch.runs.record import end_on_record, note_end

    for trouble in view.troubles:
        reporter.warn(trouble)
    # Where its launcher or coordinator is gone, `tflaunch stop` may have ended it from here.
    outcome = outcome or end_on_record(view.run.run_id, view.exits)
    if outcome is None:
        reporter.warn("no record says how this run ended: its launcher or coordinator is gone")
        return EXIT_UNCLEAN
    note_end(outcome)
    reporter.report(outcome)
    return outcome.exit_code


def _troubles(
    view: Follower, connector: Connector, progress: ConnectingProgress, connect_timeout: float
) -> list[str]:
    """Return what is left of the run on hosts whose agent is gone, as far as they answer; raises Stopped."""
    from tflaunch.runs.run_states import pick_run
    from tflaunch.runs.visits import Visits

    visits = Visits(connector, progress)
    try:
        with visits.interrupts():
            visits.open([view.host(name) for name in view.lost], connect_timeout)
            found = visits.runs(everything=True, only=view.run.run_id).runs
        return pick_run(view.run.run_id, found).troubles
    except UsageError:  # no host answered
        return []
    finally:
        visits.close()


def _state(visits: Visits, run: str | None, before: Follower | None) -> RunState:
    """Return the state of the run; raises UsageError if several runs or none match, StopError, Stopped."""
    from tflaunch.runs.run_states import pick_run

    deadline = time.monotonic() + REPLAN_S
    while True:
        listed = visits.runs(everything=True, only=run or "")  # on some hosts it may have ended
        state = pick_run(run, listed.runs)
        if before is None or (state.planned > before.run.planned and state.running):
            return state
        if time.monotonic() > deadline:
            raise StopError(
                f"{run}: a host was lost, and its launcher has made no new plan within {duration(REPLAN_S)}",
                f"tflaunch status {run} shows its state",
            )
        visits.wait(1.0)
