"""`tflaunch attach` and `tflaunch logs`: watch a run from any terminal on any machine that reaches its hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tflaunch.api.options.declared import Part
from tflaunch.api.options.groups import OUTPUT, LogOptions, OutputOptions, ReachOptions
from tflaunch.api.requests.which_hosts import hosts_of_newest, hosts_of_run, run_and_words
from tflaunch.cli import completion
from tflaunch.cli.arguments import Run
from tflaunch.cli.connecting import connected
from tflaunch.cli.reporting import Patient, Show, reporting
from tflaunch.inputs.times import duration
from tflaunch.protocol.errors import EXIT_UNCLEAN, ConnectErrors, StopError, UsageError
from tflaunch.protocol.job import TaskId

if TYPE_CHECKING:
    from tflaunch.protocol.outcome import Outcome
    from tflaunch.remote import Connector
    from tflaunch.runs.follow import Follower, Wanted
    from tflaunch.runs.states import RunState
    from tflaunch.runs.visits import Visits
REPLAN_S = 120.0  # time for a launcher that has lost a host to look for tasks left there, and to plan again


def attach(
    run: Run = None,
    *,
    lines: LogOptions,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="On a terminal, of a run that is over: all that the tasks have printed [the last 30 lines].",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    output: OutputOptions,
    reach: ReachOptions,
) -> None:
    """Watch a run that is alive: what its tasks print, what happens to them, how the run ends.

    Ctrl-C stops watching, not the run; d has its launcher hand it over, as `tflaunch detach` does.  Several users may
    watch one run.  Of a run that is over, a terminal gets the last 30 lines, the same number of each task, and how it
    ended.
    """
    from tflaunch.runs.record import note_end

    tasks = _tasks(output.only)
    if everything and (lines.tail is not None or lines.since is not None):
        raise UsageError("--all and --tail or --since: how much?", "leave one of them out")
    brief = not (everything or output.json) and sys.stdout is not None and sys.stdout.isatty()
    wanted = dataclasses.replace(_wanted(tasks, lines), brief=brief)
    with reporting(
        "not watching any more; the run goes on: tflaunch attach",
        quiet=output.quiet,
        only=tasks,
        show_host=output.show_host,
        fold=not output.raw,
        grep=_pattern(lines.grep),
        json=output.json,
    ) as show:
        view, outcome = _follow(run, reach, show, wanted, output.json)
        for trouble in view.troubles:
            show.reporter.warn(trouble)
        if outcome is not None:
            note_end(outcome)
            show.reporter.report(outcome)
            show.exit_code = outcome.exit_code
        else:
            show.reporter.warn("no record says how this run ended: its launcher or coordinator is gone")
            show.exit_code = EXIT_UNCLEAN


def logs(
    run: Run = None,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK",
            help="worker/0 ps/1 [all]",
            show_default=False,
            autocompletion=completion.tasks,
        ),
    ] = None,
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new lines until the run ends.", rich_help_panel=OUTPUT),
    ] = False,
    lines: LogOptions,
    output: Annotated[OutputOptions, Part("show_host", "json")],
    reach: ReachOptions,
) -> None:
    """Print what the tasks of a run have printed, also after its end.

    Without RUN: the only run alive, else the newest.  `tflaunch logs worker/0` prints that task of it.

    The lines of several tasks begin with the task's name, those of one task are as the task printed them.
    """
    run, words = run_and_words(run, tasks or [])
    wanted = _tasks(words)
    with reporting(
        "stopped",
        bare=len(wanted) == 1,
        show_host=output.show_host,
        grep=_pattern(lines.grep),
        json=output.json,
    ) as show:
        part = _wanted(wanted, lines)
        if follow:
            view, _ = _follow(run, reach, show, part, output.json, events=False)
        else:
            with open_view(run, reach, show, part, output.json) as view:
                view.print_logs()
        if view.unreached:
            show.reporter.failures(ConnectErrors(view.unreached, len(view.unreached)))
            show.exit_code = ConnectErrors.exit_code
        for task in view.unknown:
            from tflaunch.console.alike import folded

            has = folded([TaskId.parse(each.task) for each in view.run.tasks])
            show.reporter.warn(f"{task}: the run has no such task" + (f"; it has {has}" if has else ""))
            show.exit_code = UsageError.exit_code


def _follow(
    run: str | None, reach: ReachOptions, show: Show, wanted: Wanted, json: bool, *, events: bool = True
) -> tuple[Follower, Outcome | None]:
    """Follow the run to its end, across new plans; return (the last Follower, how the run ended if that is known)."""
    with open_view(run, reach, show, wanted, json) as view, _keys(view, show, wanted=events and not json):
        outcome = view.follow(events)
    while outcome is None and view.replanned:
        with (
            open_view(view.run.run_id, reach, show, wanted, json, before=view) as view,
            _keys(view, show, wanted=events and not json),
        ):
            outcome = view.follow(events)
    return view, outcome


@contextlib.contextmanager
def _keys(view: Follower, show: Show, *, wanted: bool) -> Iterator[None]:
    """Inside, the key `d` has the launcher of the run hand it over, where the run has a launcher that can."""
    from tflaunch.runs.detaching import why_not
    from tflaunch.sessions.group import Typed
    from tflaunch.sessions.keys import reading_keys

    try:
        why_not(view.run)
    except UsageError:
        wanted = False
    if not wanted or view.run.detached or not sys.stderr.isatty():
        yield
        return
    with reading_keys(lambda key: view.sessions.put(Typed(key))) as typing:
        if typing:
            show.reporter.note(
                "d hands the run over to its hosts, so that its launcher can end; Ctrl-C stops watching"
            )
        yield


@contextlib.contextmanager
def open_view(
    run: str | None,
    reach: ReachOptions,
    show: Show,
    wanted: Wanted,
    json: bool,
    *,
    before: Follower | None = None,
) -> Iterator[Follower]:
    """Yield a Follower of the run, on all its hosts; show at the end which hosts could not be reached.

    `run` is an id, a name or its first letters, None the only run alive, else the newest.  With `before`, wait for a
    plan later than that Follower's.
    """
    from tflaunch.runs.follow import Follower
    from tflaunch.runs.run_ids import check_run_id
    from tflaunch.runs.states import failures_of, why_picked
    from tflaunch.runs.visits import Visits

    if run is None:
        hostfile, known_config = hosts_of_newest(reach.hosts, "attach")
    else:
        run, hostfile, known_config = hosts_of_run(check_run_id(run), reach.hosts)
    patient = Patient(show.reporter, json)
    with connected(hostfile.hosts, reach, known_config=known_config) as connector:
        visits = Visits(connector, patient)
        try:
            with visits.interrupts():
                failures = visits.open(hostfile.hosts, reach.connect_timeout)
                if len(failures) == len(hostfile.hosts):
                    raise ConnectErrors(failures, len(hostfile.hosts))
                state = _state(visits, run, before)
                if run is None:
                    patient.settle()
                    show.reporter.note(why_picked(state))
                if before is None and wanted.shortens(state):
                    run_id = state.run_id
                    show.reporter.note(
                        f"{run_id} is over; its last lines (all: tflaunch attach --all {run_id}):"
                    )
                shown = wanted.of(state)
                view = Follower(state, visits.sessions, hostfile, show.reporter, shown, before=before)
                failures.update(view.attach())
                patient.settle()
                yield view
                if view.lost:
                    view.troubles = _troubles(view, connector, patient, reach.connect_timeout)
            if failures := failures_of(state, failures):
                show.reporter.failures(ConnectErrors(failures, len(hostfile.hosts)))
                show.exit_code = show.exit_code or ConnectErrors.exit_code
        finally:
            visits.close()


def _troubles(view: Follower, connector: Connector, patient: Patient, connect_timeout: float) -> list[str]:
    """Return what is left of the run on hosts whose agent is gone, as far as they answer; raises Stopped."""
    from tflaunch.runs.states import pick_run
    from tflaunch.runs.visits import Visits

    visits = Visits(connector, patient)
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
    from tflaunch.runs.states import pick_run

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


def _tasks(texts: Sequence[str]) -> tuple[TaskId, ...]:
    try:
        return tuple(map(TaskId.parse, texts))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise UsageError(f"--grep {text}: {error}", "write a regular expression as Python has them") from None


def _wanted(tasks: tuple[TaskId, ...], lines: LogOptions) -> Wanted:
    from tflaunch.runs.follow import Wanted

    return Wanted(tasks, time.time() - lines.since if lines.since is not None else None, lines.tail)
