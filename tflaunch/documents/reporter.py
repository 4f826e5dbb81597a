"""The methods with which the rest of tflaunch shows a run to people or, with `--json`, to programs.

For people: the logs of the tasks go to stdout, everything else to stderr, so that
`tflaunch run ... > train.log` keeps only what the tasks print.  Of a task's log only whole lines are
shown, as `worker/0 | line`; nothing in it can act on the terminal.

For programs: one JSON object a line (tflaunch.documents.json_lines).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tflaunch.protocol.errors import ConnectErrors, LaunchError, TflaunchError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.launch.run_watcher import Turn
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.fetch_result import Fetched
    from tflaunch.runs.visits import Finished


class Reporter(Protocol):
    """Shows a run.

    No method but `settle`, `end_question` and `close` blocks; all may be called from a signal handler.
    """

    @property
    def broken(self) -> bool:
        """Whether stdout can no longer be written: its reader went away, or its disk is full."""

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
        """Show that step `name` ("connecting", "training") has reached `done` of `total`; equal means over.

        `note` names what it still waits for, and, when another step cuts it short, what is missing.
        `moved`: how many bytes have been sent or fetched, and how many there are.  `line`: the last line of the
        program on a host that does the work.
        """

    def settle(self) -> None:
        """End the step that is shown, and return once the live line is gone: stdout is free for a result."""

    def waiting(self, turn: Turn) -> None:
        """Show that the run waits for GPUs; when the wait is over, `phase("waiting", n, n)` follows."""

    def note(self, text: str) -> None:
        """Show a sentence that is good to know."""

    def warn(self, text: str) -> None:
        """Show a sentence about something that the user should look at."""

    def slowed(self, text: str) -> None:
        """Show, as a warning, what makes the run slower than it could be."""

    def warn_once(self, text: str) -> None:
        """Show a warning that is as true of the next run; a terminal gets it once, however many runs follow."""

    def say(self, text: str) -> None:
        """Show what tflaunch does now because the user wants it, ahead of everything that is queued."""

    @property
    def can_ask(self) -> bool:
        """Whether a user can see a question and answer it: stdin and stderr are terminals, and there is no `--json`."""

    def ask(self, question: str) -> None:
        """Show a question, which the user answers on the line where it ends, and keep it the last on the screen."""

    def end_question(self, typed: bool) -> None:
        """End the question, and go on below it; `typed`: the user's Enter has ended its line."""

    def code(self, data: Mapping[str, Any]) -> None:
        """Show programs which code is shipped and what is left out; people see `warn` and `note` instead."""

    def files(self, bundle: Bundle) -> None:
        """Show people each file that is shipped, and each that is not and why, on stdout; programs see `code`."""

    def shipped(self, bundle: Bundle, shipped: Shipped) -> None:
        """Show that the code is on the hosts: how much it is, and how much the hosts did not have before."""

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        """Show the plan, whole on stdout or, `brief`, in a line per job on stderr.

        Call it before the first log: the plan gives the reporter the tasks and the width of their names.
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
        """Show bytes of a task's log: those of this attempt from `offset` on.

        The reporter calls `written(len(data))`, from another thread, once it has shown the bytes or dropped
        them.
        """

    def log_end(self, task: TaskId) -> None:
        """Show the task's last line even if it has no newline: no more of the log comes."""

    def joined(self, tasks: int, since_s: float, output_s: float | None) -> None:
        """On a terminal, show from now on how a run of `tasks` tasks stands that began `since_s` ago.

        Call it once the logs so far have come; the last output among them was written `output_s` ago.
        """

    def started(self, started: TaskStarted) -> None:
        """Show that a task runs, or runs again."""

    def exited(self, exit: TaskExit) -> None:
        """Show that a task has ended; of failed tasks only the first: `report` shows the others."""

    def unreachable(self, host: str, reason: str) -> None:
        """Show that the launcher cannot reach a host for now; the host's tasks run on."""

    def back(self, host: str, away_s: float) -> None:
        """Show that the launcher reaches the host again, after `away_s` seconds."""

    def lost(self, lost: HostLost) -> None:
        """Show that the launcher has given up a host."""

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        """Show every host that failed, grouped by cause."""

    def error(self, err: TflaunchError) -> None:
        """Show why tflaunch gives up, and the next step to take."""

    def report(self, outcome: Outcome) -> None:
        """Show how the run ended, the first failure first."""

    def servers(self, plan: ClusterPlan) -> None:
        """Show on stdout how clients find the servers, which all listen now."""

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        """Show that a run goes on without the launcher, and how to watch and stop it; `host` coordinates it.

        A stdout that is no terminal gets the id alone.
        """

    def leaves(self, run_id: str, tasks: int, leave: Callable[[], None]) -> None:
        """Show that the command goes on without its terminal, on this machine, then call `leave`.

        A stdout that is no terminal gets the id alone.  tasks: how many are still to be started.
        """

    def handed_over(self, run_id: str, tasks: int, host: str) -> None:
        """The same of a run that the launcher has stayed with until now; nothing is written to stdout but for JSON."""

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        """Show what `tflaunch stop` has found and killed on each host."""

    def tensorboard(self, run_id: str, url: str, host: str, logdir: str) -> None:
        """Show the address of TensorBoard, which reads `logdir` on `host`."""

    def fetched(self, fetched: Fetched) -> None:
        """Show which outputs were fetched, where to, and which were not."""

    def close(self, wait: bool = True) -> None:
        """Write what is queued; with `wait=False` drop logs and take 0.3 s at most, even on a stopped terminal."""
