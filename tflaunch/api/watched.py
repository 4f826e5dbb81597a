"""What a thread of this program drives, and the program watches."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from tflaunch.api.event_feed import EventReporter, Events
from tflaunch.protocol.errors import TflaunchError
from tflaunch.sessions.interrupts import INTERRUPTER, Interrupter

if TYPE_CHECKING:
    from tflaunch.documents.json_events import Event
    from tflaunch.documents.reporter import Reporter
    from tflaunch.protocol.outcome import Outcome


class WatchedRun(ABC):
    """A run, driven or followed in a thread.  To iterate over it gives its events as they come, up to `report`."""

    id: str
    exit_code: int | None = None  # as of the command, once it is over

    def __init__(self, events: Events, reporter: EventReporter) -> None:
        self._events, self._reporter = events, reporter
        self._interrupter = Interrupter()
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, name=f"tflaunch {self.id}", daemon=True)

    def __repr__(self) -> str:
        how = "goes on" if self.running else f"exit code {self.exit_code}"
        return f"<{type(self).__name__} {self.id}: {how}>"

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @property
    def running(self) -> bool:
        """Whether it is not over yet."""
        return not self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Wait until it is over; return how it ended.  Events that nobody has read are lost.

        Raises TflaunchError for what kept it from its end, TimeoutError.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._events.discard()
        while not self._over.wait(0.2 if deadline is None else min(0.2, deadline - time.monotonic())):
            if deadline is not None and time.monotonic() >= deadline:
                self._events.keep()
                raise TimeoutError(f"{self.id} still runs after {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        if not self._reporter.outcomes:
            raise self._without_outcome()
        return self._reporter.outcomes[-1]

    @abstractmethod
    def _drive(self, reporter: Reporter) -> int:
        """Do the work in the thread; return the exit code.  Raises TflaunchError."""

    @abstractmethod
    def _without_outcome(self) -> TflaunchError:
        """Return the error for an end of which nothing is known."""

    def _go(self) -> None:
        INTERRUPTER.set(self._interrupter)
        try:
            self.exit_code = self._drive(cast("Reporter", self._reporter))
        except TflaunchError as error:
            self.exit_code, self._error = error.exit_code, error
            self._reporter.error(error)
        except BaseException as error:  # a defect: `wait` raises it
            self._error = error
        finally:
            # First: who waits has dropped the last events then, and none comes after `wait`.
            self._reporter.close()
            self._over.set()
            self._events.end()
