"""Everything that a person, or with `--json` a program, sees of a run.

For people: the logs of the tasks go to stdout, everything else to stderr, so that
`tflaunch run ... > train.log` keeps the training's own words only.  Of a task's log only whole lines are
shown, as `worker/0 | line`; nothing in it can act on the terminal.

For programs: one JSON object a line (tflaunch.console.json_lines).
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from tflaunch.console.logs import Options
from tflaunch.console.writer import Stream
from tflaunch.protocol.errors import ConnectErrors, LaunchError, TflaunchError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.launch.acquisition import Turn
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.fetch import Fetched
    from tflaunch.runs.visits import Finished

Style = Callable[[Options, Stream, Stream], "Reporter"]


class Reporter(Protocol):
    """What a run tells to whoever watches it.

    All but `settle` and `asked` never block and may be called from a signal handler.
    """

    @property
    def broken(self) -> bool:
        """True when stdout can no longer be written: its reader went away, or its disk is full."""

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        """`name` ("connecting", "training") has come to `done` of `total`; equal means that it is over.

        `note` names what it waits for while that is little, and what is missing when it ends too early.
        """

    def settle(self) -> None:
        """End the phases, and return once nothing of the live line is on the screen any more: stdout is free."""

    def waiting(self, turn: Turn) -> None:
        """The run waits for cards; at its end comes the phase of that name."""

    def note(self, text: str) -> None:
        """Say something that is good to know."""

    def warn(self, text: str) -> None:
        """Say something that should be looked at."""

    def say(self, text: str) -> None:
        """Say what tflaunch does now because the user asked for it; overtakes all that is queued."""

    @property
    def can_ask(self) -> bool:
        """Whether a user sees the questions, and can answer: stdin and stderr are terminals, and it is no program."""

    def ask(self, question: str) -> None:
        """Show a question that is answered on the line where it ends, and keep it the last on the screen."""

    def asked(self, typed: bool) -> None:
        """Leave the line of the question, which is over; `typed`: the user has ended it."""

    def code(self, data: Mapping[str, Any]) -> None:
        """Tell programs which code is shipped and what of it is not; people hear it from `warn` and `note`."""

    def files(self, bundle: Bundle) -> None:
        """Show each file that is shipped, and each that is not and why, as the result that was asked for.

        Programs hear it from `code`.
        """

    def shipped(self, bundle: Bundle, shipped: Shipped) -> None:
        """The code is on the hosts: tell how much it is, and how much of it they did not have."""

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        """Show the plan as the result that was asked for, or, `brief`, in a line per job beside the logs.

        Call it before the first log: it tells how wide the prefixes are, and which tasks there are.
        """

    def log(
        self,
        task: TaskId,
        host: str,
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None = None,
        *,
        attempt: int = 0,
    ) -> None:
        """Take the bytes of a task's log, of its attempt of that number, that begin at `offset`.

        `written(len(data))` is called from another thread once they are not held here any more, whether
        they were shown or not.
        """

    def log_end(self, task: TaskId) -> None:
        """Show the task's last line even if it has no newline: nothing more comes."""

    def started(self, started: TaskStarted) -> None:
        """A task runs, or runs again."""

    def exited(self, exit: TaskExit) -> None:
        """A task has ended; of those that fail, the first is told at once, the others by `report`."""

    def unreachable(self, host: str, reason: str) -> None:
        """A host cannot be reached for now; its tasks run on."""

    def back(self, host: str, away_s: float) -> None:
        """It can be reached again, after so long."""

    def lost(self, lost: HostLost) -> None:
        """A host is gone."""

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        """Show every host that failed, in one table, folded by identical cause."""

    def error(self, err: TflaunchError) -> None:
        """Show why tflaunch gives up, and the next step to take."""

    def report(self, outcome: Outcome) -> None:
        """Show how the run ended: the first failure first."""

    def servers(self, plan: ClusterPlan) -> None:
        """Show, as the result that was asked for, how clients find the servers that stand now."""

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        """Show that a run goes on without this command, and what can be done with it; `host` decides for it."""

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        """Show what ending a run from outside met on each host."""

    def board(self, run_id: str, url: str, host: str, logdir: str) -> None:
        """Show where TensorBoard is."""

    def fetched(self, told: Fetched) -> None:
        """Show which outputs have come, where to, and which have not."""

    def close(self, wait: bool = True) -> None:
        """Write what is queued; with `wait=False` within 0.3 s, logs dropped, even on a stopped terminal."""


def open_reporter(
    *,
    json: bool = False,
    quiet: bool = False,
    only: Collection[TaskId] | None = None,
    show_host: bool = False,
    grep: re.Pattern[str] | None = None,
    bare: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    styles: tuple[Style, Style] | None = None,
) -> Reporter:
    """Return the reporter for a terminal or pipe, or its JSON twin.

    styles: these instead, for people and for programs.
    quiet: show no logs.  only: show the logs of these tasks.  show_host: name the host in each line.
    grep: show only lines with it.  bare: put nothing in front of them.
    """
    options = Options(quiet, frozenset(only) if only else None, show_host, grep, bare)
    out = Stream(stdout or sys.stdout or io.StringIO())  # None: the shell closed it
    err = Stream(stderr or sys.stderr or io.StringIO())
    if styles is not None:
        return styles[json](options, out, err)
    if json:
        from tflaunch.console.json_lines import JsonReporter

        return JsonReporter(options, out, err)
    from tflaunch.console.terminal import TextReporter

    return TextReporter(options, out, err)
