"""`tflaunch tune`: tries layouts for real, and names the fastest."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import typer

from tflaunch.cli.reporting import Show, reporting
from tflaunch.cli.resumed_command import ResumedCommand, command_on_record
from tflaunch.cli.run_command import run_command
from tflaunch.inputs.options.declared import Group
from tflaunch.inputs.options.groups import ConnectionOptions
from tflaunch.inputs.options.job_groups import (
    GpuOptions,
    ProgramOptions,
    RoleOptions,
    TaskOptions,
)
from tflaunch.inputs.options.of_tune import TuneOptions

if TYPE_CHECKING:
    from types import FrameType

    from tflaunch.tuning.layouts import TaskLayout
    from tflaunch.tuning.tried import Tried, Try

_SILENT = "A search does not show what the tasks print; tflaunch logs RUN does, for the run of each layout"
_NO_RESULTS = "The runs of a search are not kept for their results; tflaunch run is"


class TuneCommand(ResumedCommand):
    """The class of the command `tune`."""

    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("--quiet", "-q", "--only", "--show-host", "--raw"), _SILENT),
        **dict.fromkeys(("--fetch", "--tensorboard", "--on-end", "--detach", "-d"), _NO_RESULTS),
        "--restarts": "A layout whose run fails is not measured; tflaunch run --restarts is for the run itself",
    }


class _Shown:
    """Shows people each layout as it is tried; programs get one document at the end."""

    def __init__(self, show: Show, *, json: bool) -> None:
        self._show, self._json = show, json
        self.name = ""  # of the search, once it has begun
        self.known: Tried | None = None

    def begins(self, run_id: str, tried: Tried) -> None:
        """See TuneWatcher."""
        self.name, self.known = run_id, tried
        self._show.stopped = "stopped; nothing is left running"
        if self._json:
            self._show.stopped += f"; this goes on: tflaunch tune --resume {run_id}"

    def trying(self, layout: TaskLayout, number: int, total: int) -> None:
        """See TuneWatcher."""
        if not self._json:
            self._show.reporter.phase("trying", number - 1, total, str(layout))

    def tried(self, layout: TaskLayout, tried: Try, number: int, total: int) -> None:
        """See TuneWatcher."""
        if not self._json:
            from tflaunch.console.tune_page import sentence

            self._show.reporter.note(sentence(layout, tried))
            self._show.reporter.phase("trying", number, total)


def tune(ctx: typer.Context, options: TuneOptions) -> None:
    """Try layouts of TRAINER.py for some seconds each: numbers of ps and workers, hosts, threads; name the fastest.

    Each layout is a run of its own, one after the other.  All are measured, then the faster half of them with twice as
    many steps, until two are left.  The steps are those that the tasks print, as `step 120`.
    """
    from tflaunch.api.requests.tune import request_of
    from tflaunch.api.tuning import planned
    from tflaunch.api.tuning import tune as search
    from tflaunch.protocol.errors import TflaunchError
    from tflaunch.sessions.group import Stopped

    json = options.output.json
    with reporting("stopped; nothing was started", json=json) as show:
        request = request_of(options, None if json else show.reporter, command=command_on_record(ctx))
        if options.start.dry_run:
            _print("", planned(request), options.measure.steps, (), json=json)
            return
        shown = _Shown(show, json=json)

        def show_all(tried: Tried, *, resume: bool) -> None:
            show.reporter.settle()
            best, own = tried.ranked()[:1], options.what.arguments
            command = (*run_command(ctx, _of_the_run(), best[0].options), *own) if best else ()
            _print(
                shown.name,
                tried,
                options.measure.steps,
                command if own else command[:-1],
                json=json,
                resume=resume,
            )

        try:
            with _stoppable():
                _, tried = search(request, shown, options.measure.resume)
        except (Stopped, TflaunchError) as error:
            known = shown.known
            if known is not None and not json and (isinstance(error, Stopped) or known.ranked()):
                show_all(known, resume=True)
            raise
        show_all(tried, resume=False)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM raise Stopped, so that the run of the layout is stopped, too."""
    from tflaunch.protocol.events import Interrupted
    from tflaunch.sessions.group import Stopped

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(Interrupted(number))

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _of_the_run() -> set[str]:
    """The options that the run itself has, too: those of a layout are added anew."""
    groups = (GpuOptions, ProgramOptions, TaskOptions, RoleOptions, ConnectionOptions)
    names = {option.name for each in groups for option in Group(each).options}
    names |= {"chief", "evaluator", "network", "grace", "ps_grace", "lease", "require_all", "dial_check"}
    return names - {"module", "connect_timeout"}


def _print(
    name: str, tried: Tried, steps: int, command: Sequence[str], *, json: bool, resume: bool = False
) -> None:
    from tflaunch.console.screen import Screen, reader_may_leave
    from tflaunch.console.tune_page import planned_page, stopped_page, tune_page
    from tflaunch.documents.tuned import tuned

    screen, document = Screen(), tuned(name, tried, steps, command)
    with reader_may_leave():
        if json:
            screen.write_json(document)
        elif resume:
            screen.show(stopped_page(document, screen))
        else:
            screen.show(tune_page(document, screen) if command else planned_page(document))
