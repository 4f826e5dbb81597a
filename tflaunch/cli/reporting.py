"""What a verb shows and how it ends: its reporter, progress after a moment, errors, Ctrl-C, the exit code."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from tflaunch.errors import EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_UNCLEAN, TflaunchError

if TYPE_CHECKING:
    from tflaunch.console import Reporter

FAREWELL_S = 2.0  # for the last lines after Ctrl-C
PATIENT_S = 1.0  # what nobody needs to be told the reason of


class Show:
    """The reporter of this command, and the exit code that it will end with."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.exit_code = 0


class Patient:
    """Shows what is waited for, once that takes longer than a moment; in front of a JSON document never."""

    def __init__(self, reporter: Reporter, json: bool) -> None:
        self._reporter = reporter
        self._lock = threading.Lock()
        self._last = ("", 0, 0, "")
        self._shown = False
        if not json:  # a timer: a host that does not answer is no news
            timer = threading.Timer(PATIENT_S, self._show)
            timer.daemon = True
            timer.start()

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        """As the reporter's."""
        with self._lock:
            self._last = (name, done, total, note)
            if self._shown:
                self._reporter.phase(*self._last)

    def settle(self) -> None:
        """Leave the screen to the answer, until there is another phase."""
        with self._lock:
            self._last = ("", 0, 0, "")
        self._reporter.settle()

    def _show(self) -> None:
        with self._lock:
            _, done, total, _ = self._last
            self._shown = True
            if done < total:
                self._reporter.phase(*self._last)


@contextlib.contextmanager
def reporting(stopped: str, reporter: Reporter | None = None, /, **options: Any) -> Iterator[Show]:
    """Inside, errors are shown by the reporter that is given; at the end the command exits with its code.

    `stopped` is what Ctrl-C has done when it comes before there is a run to stop.
    """
    from tflaunch.console import open_reporter
    from tflaunch.session import Stopped

    show = Show(reporter or open_reporter(**options))
    wait = True
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # from here on there is something to clean up
        yield show
    except Stopped as error:
        show.exit_code = 128 + error.interrupted.signal
        if error.unconfirmed:  # which ones has been said
            show.exit_code = EXIT_UNCLEAN
        else:
            show.reporter.say(stopped)
    except TflaunchError as error:
        show.reporter.error(error)
        show.exit_code = error.exit_code
    except KeyboardInterrupt:
        show.exit_code = EXIT_INTERRUPTED
        wait = False
    finally:
        if show.exit_code in (EXIT_INTERRUPTED, EXIT_STOPPED):
            # Whoever pressed Ctrl-C does not wait for a terminal that takes nothing (Ctrl-S, a pager).
            hurry = threading.Timer(FAREWELL_S, show.reporter.close, kwargs={"wait": False})
            hurry.daemon = True
            hurry.start()
        try:
            show.reporter.close(wait)
        except KeyboardInterrupt:  # the terminal does not take what is left, and the user does not want it
            show.reporter.close(wait=False)
        signal.signal(signal.SIGINT, before)
    raise typer.Exit(show.exit_code)
