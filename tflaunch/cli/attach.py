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

from tflaunch.api.requests.which_hosts import hosts_of_newest, hosts_of_run, run_and_words
from tflaunch.cli import completion
from tflaunch.cli.arguments import Run
from tflaunch.cli.reporting import Patient, Show, reporting
from tflaunch.cli.verb_connections import way_to_ask
from tflaunch.inputs.options.groups import OUTPUT, LogOptions, OutputOptions, ReachOptions
from tflaunch.inputs.options.of_others import LinesOptions
from tflaunch.protocol.errors import ConnectErrors, UsageError
from tflaunch.protocol.job import TaskId

if TYPE_CHECKING:
    from tflaunch.api.following import View, Where
    from tflaunch.protocol.outcome import Outcome
    from tflaunch.runs.follow import Follower
    from tflaunch.runs.wanted import WantedLogs


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
    from tflaunch.api.following import tell_end

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
        show.exit_code = tell_end(view, outcome, show.reporter)


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
    output: LinesOptions,
    reach: ReachOptions,
) -> None:
    """Print what the tasks of a run have printed, also after its end.

    Without RUN: the only run alive, else the newest.  `tflaunch logs worker/0` prints that task of it.

    The lines of several tasks begin with the task's name, those of one task are as the task printed them.
    """
    run, words = run_and_words(run, tasks or [])
    wanted = _tasks(words)
    with reporting(
        "no more logs are printed; the run goes on" if follow else "not all logs were printed",
        bare=len(wanted) == 1,
        show_host=output.show_host,
        grep=_pattern(lines.grep),
        json=output.json,
    ) as show:
        part = _wanted(wanted, lines)
        if follow:
            view, _ = _follow(run, reach, show, part, output.json, events=False)
        else:
            with _open(run, reach, show, part, output.json) as view:
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
    run: str | None, reach: ReachOptions, show: Show, wanted: WantedLogs, json: bool, *, events: bool = True
) -> tuple[View, Outcome | None]:
    """Follow the run to its end; return (the last Follower, how the run ended if that is known)."""
    from tflaunch.api.following import follow_to_the_end

    @contextlib.contextmanager
    def opened(before: View | None) -> Iterator[View]:
        named = run if before is None else before.run.run_id
        with (
            _open(named, reach, show, wanted, json, before=before, wait=True) as view,
            _keys(view, show, wanted=events and not json),
        ):
            yield view

    return follow_to_the_end(opened, events=events)


@contextlib.contextmanager
def _keys(view: View, show: Show, *, wanted: bool) -> Iterator[None]:
    """Inside, the key `d` has the launcher of the run hand it over, where the run has a launcher that can."""
    from tflaunch.runs.detaching import why_not
    from tflaunch.runs.kept import KeptRun
    from tflaunch.sessions.group import Typed
    from tflaunch.sessions.typed_keys import reading_keys

    try:
        why_not(view.run)
    except UsageError:
        wanted = False
    if not wanted or isinstance(view, KeptRun) or view.run.detached or not sys.stderr.isatty():
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
    run: str | None, reach: ReachOptions, show: Show, wanted: WantedLogs, json: bool
) -> Iterator[Follower]:
    """Yield a Follower of the run, as tflaunch.api.following.open_run does.

    `run` is an id, a name or its first letters, None the only run alive, else the newest.
    """
    from tflaunch.api.following import open_run

    progress = Patient(show.reporter, json)
    with open_run(_where(run, reach), reach, show.reporter, progress, wanted, ask=way_to_ask()) as view:
        yield view
    if view.missed:
        show.exit_code = show.exit_code or ConnectErrors.exit_code


@contextlib.contextmanager
def _open(
    run: str | None,
    reach: ReachOptions,
    show: Show,
    wanted: WantedLogs,
    json: bool,
    *,
    before: View | None = None,
    wait: bool = False,
) -> Iterator[View]:
    """Yield the run, as `open_view` does; where its slots are over, what this machine has kept of it."""
    from tflaunch.api.following import open_run_or_kept

    where, progress, ask = _where(run, reach), Patient(show.reporter, json), way_to_ask()
    with open_run_or_kept(
        where, reach, show.reporter, progress, wanted, before=before, ask=ask, wait=wait
    ) as view:
        yield view
    if view.missed:
        show.exit_code = show.exit_code or ConnectErrors.exit_code


def _where(run: str | None, reach: ReachOptions) -> Where:
    from tflaunch.api.following import Where
    from tflaunch.runs.run_ids import check_run_id

    if run is None:
        return Where(None, *hosts_of_newest(reach.hosts, "attach"))
    return Where(*hosts_of_run(check_run_id(run), reach.hosts))


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


def _wanted(tasks: tuple[TaskId, ...], lines: LogOptions) -> WantedLogs:
    from tflaunch.runs.wanted import WantedLogs

    return WantedLogs(tasks, time.time() - lines.since if lines.since is not None else None, lines.tail)
