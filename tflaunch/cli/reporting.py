"""What every verb does around its work: show progress and errors, end on Ctrl-C, set the exit code."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_UNCLEAN, TflaunchError

if TYPE_CHECKING:
    from tflaunch.documents.reporter import Reporter
    from tflaunch.launch.on_end import OnEnd

FAREWELL_S = 2.0  # to write the last lines after Ctrl-C
PATIENT_S = 1.0  # a shorter wait needs no explanation
_NOTHING = ("", 0, 0, "", None, "")


class Show:
    """The reporter of this command, the exit code that the command will end with, and what Ctrl-C now means."""

    def __init__(self, reporter: Reporter, stopped: str) -> None:
        self.reporter = reporter
        self.stopped = stopped
        self.exit_code = 0


class Patient:
    """Shows progress once a phase takes longer than PATIENT_S; never where a JSON document is printed."""

    def __init__(self, reporter: Reporter, json: bool) -> None:
        self._reporter = reporter
        self._lock = threading.Lock()
        self._last: tuple[str, int, int, str, tuple[int, int] | None, str] = _NOTHING
        self._shown = False
        if not json:  # a timer, for a host that does not answer causes no call of `phase`
            timer = threading.Timer(PATIENT_S, self._show)
            timer.daemon = True
            timer.start()

    def phase(
        self,
        name: str,
        done: int,
        total: int,
        note: str = "",
        *,
        moved: tuple[int, int] | None = None,
        line: str = "",
    ) -> None:
        """Note how far a phase is, and show it if the wait is long already."""
        with self._lock:
            self._last = (name, done, total, note, moved, line)
            if self._shown:
                self._show_last()

    def settle(self) -> None:
        """Clear the progress line, so that the answer can be printed."""
        with self._lock:
            self._last = _NOTHING
        self._reporter.settle()

    def _show_last(self) -> None:
        name, done, total, note, moved, line = self._last
        self._reporter.phase(name, done, total, note, moved=moved, line=line)

    def _show(self) -> None:
        with self._lock:
            _, done, total, *_ = self._last
            self._shown = True
            if done < total:
                self._show_last()


@contextlib.contextmanager
def reporting(stopped: str, reporter: Reporter | None = None, /, **options: Any) -> Iterator[Show]:
    """Yield a Show; show errors of the block by its reporter, and raise typer.Exit with its exit code at the end.

    `stopped` is the sentence to show after Ctrl-C, until the block sets another one.  `options` go to `open_reporter`
    where no reporter is given.
    """
    from tflaunch.console.opening import open_reporter
    from tflaunch.sessions.group import Stopped

    show = Show(reporter or open_reporter(**options), stopped)
    wait = True
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # from here on there is something to clean up
        yield show
    except Stopped as error:
        show.exit_code = 128 + error.interrupted.signal
        if error.unconfirmed:  # the reporter has named these hosts
            show.exit_code = EXIT_UNCLEAN
        else:
            show.reporter.settle()  # how far the step has come is told first
            show.reporter.say(show.stopped)
    except TflaunchError as error:
        show.reporter.error(error)
        show.exit_code = error.exit_code
    except KeyboardInterrupt:
        show.exit_code = EXIT_INTERRUPTED
        wait = False
    except RuntimeError as error:
        # Before 3.12, Python says by this that Ctrl-C came while it made a class of a module that it imports.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        show.exit_code = EXIT_INTERRUPTED
        wait = False
    finally:
        if show.exit_code in (EXIT_INTERRUPTED, EXIT_STOPPED):
            # After Ctrl-C, do not wait for a terminal that takes no output (Ctrl-S, a pager).
            hurry = threading.Timer(FAREWELL_S, show.reporter.close, kwargs={"wait": False})
            hurry.daemon = True
            hurry.start()
        try:
            show.reporter.close(wait)
        except KeyboardInterrupt:  # the terminal is stuck, and the user does not want the rest
            show.reporter.close(wait=False)
        signal.signal(signal.SIGINT, before)
    raise typer.Exit(show.exit_code)


@contextlib.contextmanager
def calling_on_end(command: str) -> Iterator[OnEnd]:
    """Yield what calls the user's command once the block, a `reporting`, has ended, if the run is over then."""
    from tflaunch.launch.on_end import OnEnd

    on_end = OnEnd(command)
    try:
        yield on_end
    except typer.Exit as end:
        on_end.call(end.exit_code)
        raise
    except Exception:  # a defect, or a disk that is full
        on_end.call(1)
        raise
