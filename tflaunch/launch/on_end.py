"""--on-end: a shell command of the user's, on this machine, once a run is over and all is told."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from tflaunch.protocol.errors import StopError, TflaunchError
from tflaunch.protocol.outcome import HostLost, Outcome, Reclaimed, TaskExit, how, signal_named
from tflaunch.text.safe import one_line

LONGEST = 20_000  # characters of a variable: Linux takes 128 KiB of one, and hosts have a say in it
LIMIT_S = 60.0  # for the command; then it is killed
INTERRUPTED_FROM = 128  # exit codes of commands that a signal has ended

R = TypeVar("R")


class OnEnd:
    """Learns how a run ends from what is told to its reporter, and calls the command."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._run = ""
        self._line: Sequence[str] = ()
        self._outcome: Outcome | None = None
        self._error: TflaunchError | None = None
        self._goes_on = ""  # what the run does without this command

    def begin(self, run_id: str, line: Sequence[str], reporter: R) -> R:
        """The run of that command line begins; return what is to be its reporter."""
        self._run, self._line = run_id, line
        return cast("R", _Heard(self, reporter)) if self._command else reporter

    def left_alone(self) -> None:
        """The run goes on without this launcher."""
        self._goes_on = "goes on"

    def heard(self, told: Outcome | TflaunchError) -> None:
        """That was told to the reporter."""
        if isinstance(told, Outcome):
            self._outcome = told
        else:
            self._error = told
            if isinstance(told, StopError) and told.may_go_on:
                self._goes_on = "may go on"

    def call(self, exit_code: int) -> None:
        """Call the command, if the run is over; what it prints goes to stderr, and what is wrong with it, too.

        A run that goes on without this launcher is not over.  How the command ends changes nothing for the run.
        """
        if not self._command or not self._run:
            return
        if self._goes_on:
            why = f"the run {self._goes_on} without this command"
            print(f"tflaunch: --on-end is not called: {why}", file=sys.stderr)
            return
        environment = {**os.environ, **self._variables(exit_code)}
        if why := _run(self._command, environment):
            print(f"tflaunch: --on-end {one_line(self._command)}: {why}", file=sys.stderr)

    def _variables(self, exit_code: int) -> Mapping[str, str]:
        outcome = self._outcome
        status = "succeeded" if not exit_code else "interrupted" if exit_code > INTERRUPTED_FROM else "failed"
        if outcome is not None and (outcome.status != "succeeded" or not exit_code):
            status = outcome.status
        return {
            "TFLAUNCH_RUN": self._run if outcome is None else outcome.run_id,
            "TFLAUNCH_STATUS": status,
            "TFLAUNCH_EXIT_CODE": str(exit_code),
            "TFLAUNCH_FAILURE": one_line(self._failure())[:LONGEST],
            "TFLAUNCH_SECONDS": "" if outcome is None else f"{outcome.seconds:.1f}",
            "TFLAUNCH_COMMAND": shlex.join(self._line)[:LONGEST],
        }

    def _failure(self) -> str:
        """What failed first, in words; "" where nothing has."""
        if self._outcome is None:
            return self._error.message if self._error is not None else ""
        first = self._outcome.first_failure
        if isinstance(first, TaskExit):
            return f"{first.task} on {first.host} {how(first)}"
        if isinstance(first, HostLost):
            return f"{first.host} is lost: {first.reason}"
        if isinstance(first, Reclaimed):
            return f"{first.host}: {first.reason}"
        return first.reason if first is not None else ""


class _Heard:
    """A reporter that passes everything on, and lets an OnEnd hear of the run's end."""

    def __init__(self, on_end: OnEnd, reporter: Any) -> None:
        self._on_end, self._reporter = on_end, reporter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reporter, name)

    def report(self, outcome: Outcome) -> None:
        self._on_end.heard(outcome)
        self._reporter.report(outcome)

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        self._on_end.left_alone()
        self._reporter.detached(run_id, tasks, host)

    def handed_over(self, run_id: str, tasks: int, host: str) -> None:
        self._on_end.left_alone()
        self._reporter.handed_over(run_id, tasks, host)

    def error(self, error: TflaunchError) -> None:
        self._on_end.heard(error)
        self._reporter.error(error)


def _run(command: str, environment: Mapping[str, str]) -> str:
    """Run it, with all that it starts in one process group; return why it failed, or ""."""
    from concurrent.futures import ThreadPoolExecutor

    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        words = ["/bin/sh", "-c", command]
        started.append(
            subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
            )
        )

    starter = ThreadPoolExecutor(1)  # Ctrl-C meets the main thread alone, and leaves none half started
    try:
        starter.submit(start).result()
        code = started[0].wait(LIMIT_S)
    except (OSError, ValueError) as error:  # a null character, or too long
        return str(error)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        starter.shutdown()  # Ctrl-C may have come before it was started
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        slow = isinstance(error, subprocess.TimeoutExpired)
        return f"killed, since it did not end within {LIMIT_S:.0f} s" if slow else "killed by Ctrl-C"
    finally:
        starter.shutdown()
    if code < 0:
        return f"it was killed by {signal_named(-code)}"
    return f"it ended with exit code {code}" if code else ""
