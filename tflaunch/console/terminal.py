"""Shows a run to people: with colours and live lines on a terminal, plain in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tflaunch.console.failure_page import error_lines, failures_lines
from tflaunch.console.run_pages import detached_lines, report_lines, stopped_lines, waiting_lines
from tflaunch.console.safe_text import Text, paragraph
from tflaunch.console.screen_lines import ScreenLines
from tflaunch.documents.log_keeping import Options
from tflaunch.documents.writer import Stream
from tflaunch.protocol.errors import ConnectErrors, LaunchError, TflaunchError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit, how
from tflaunch.text.safe import one_line
from tflaunch.text.times import duration

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.launch.run_watcher import Turn
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.fetch_result import Fetched
    from tflaunch.runs.visits import Finished

_SETTLE_S = 1.0  # at most, where the terminal takes no output


class TextReporter(ScreenLines):
    """Lines for people: on a terminal with colours and one live line until the training begins."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        super().__init__(options, stdout, stderr)
        self._failed: set[TaskId] = set()  # tasks that failed and have not been started again
        self._turn: Turn | None = None
        self._served = False  # stdout has the addresses of servers, and gets nothing else

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
        now = time.monotonic()

        def take() -> None:
            self._take_phase(name, done, total, note, now, moved=moved)
            self._phases.says(line)

        self._writer.put("message", take)

    def settle(self) -> None:
        now, settled = time.monotonic(), threading.Event()

        def leave() -> None:
            self._leave(now)
            self._wipe()
            settled.set()

        self._writer.put("message", leave)
        settled.wait(_SETTLE_S)

    def waiting(self, turn: Turn) -> None:
        now = time.monotonic()
        self._writer.put(
            "message", lambda: self._phases.wait(turn.free, turn.needed, turn.count, turn.parts, now)
        )
        if not self._live and turn != self._turn:
            self.note(f"waiting: {turn.count}; {turn}")
        self._turn = turn

    def note(self, text: str) -> None:
        self._message(paragraph(f"  {text}", style="dim"))

    def warn_once(self, text: str) -> None:
        if self._is_new(text):
            self.warn(text)

    def say(self, text: str) -> None:
        self._notice((text, "bold"))

    def files(self, bundle: Bundle) -> None:
        from tflaunch.console.code_page import files_lines

        lines = files_lines(bundle)
        self._writer.put("message", lambda: self._writer.out("".join(map(self._out.render, lines))))

    def shipped(self, bundle: Bundle, shipped: Shipped) -> None:
        from tflaunch.code.what_is_shipped import shipped_text

        if text := shipped_text(bundle, shipped):
            self._message(paragraph((f"{self._err.marks.ok} ", "green"), text))

    @property
    def can_ask(self) -> bool:
        return self._err.stream.terminal and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> None:
        def show() -> None:
            self._wipe()
            self._question.ask(question)

        self._writer.put("message", show)

    def end_question(self, typed: bool) -> None:
        left = threading.Event()

        def leave() -> None:
            self._question.end(typed)
            self._wipe()
            left.set()

        self._writer.put("message", leave)
        left.wait(_SETTLE_S)  # else a notice could be printed before it

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        self._writer.put("message", lambda: self._show_plan(plan, brief))
        for text in self._take_plan(plan):
            self._message(paragraph((f"{self._err.marks.warn} ", "yellow"), text))

    def joined(self, tasks: int, since_s: float, output_s: float | None) -> None:
        now = time.monotonic()
        output_at = None if output_s is None else now - output_s
        # Behind the logs so far, whose lines count as output of this moment.
        self._writer.put("log", lambda: self._footer.join(tasks, now - since_s, output_at))

    def started(self, started: TaskStarted) -> None:
        def note() -> None:
            self._prefixes.expect({started.task: started.host})
            self._footer.started(started.task)

        self._writer.put("message", note)
        if started.attempt:
            self._failed.discard(started.task)
            marks = self._err.marks
            again = f"{started.task} on {started.host} runs again (attempt {started.attempt + 1})"
            self._message(Text.assemble((f"{marks.ok} ", "green"), again))

    def exited(self, exit: TaskExit) -> None:
        self._writer.put("message", lambda: self._footer.exited(exit.task))
        if exit.stopped or (exit.exit_code and self._failed):
            return  # stopped by tflaunch; or a later failure: the report names all of those in one line
        if exit.exit_code:
            self._failed.add(exit.task)
        marks = self._err.marks
        mark, style = (marks.bad, "bold red") if exit.exit_code else (marks.ok, "green")
        ended = how(exit) if exit.exit_code else "finished"
        text = f"{exit.task} on {exit.host} {ended} after {duration(exit.seconds)}"

        def show(missing: int) -> None:
            self._tell_alike(of=exit.task)
            late = f"; {missing:,} bytes of its output are still to come" if missing else ""
            self._print(Text.assemble((f"{mark} ", style), text, (late, "dim")))

        self._behind_output(exit, show)

    def unreachable(self, host: str, reason: str) -> None:
        mark = (f"{self._err.marks.warn} ", "yellow")
        self._notice(
            mark,
            (f"{host} is out of reach", "bold"),
            f": {reason}; its tasks go on there if the host lives, and their output comes later",
        )

    def back(self, host: str, away_s: float) -> None:
        self._notice((f"{self._err.marks.ok} ", "green"), f"{host} is back after {duration(away_s)}")

    def lost(self, lost: HostLost) -> None:
        mark = (f"{self._err.marks.bad} ", "bold red")
        self._notice(mark, (f"{lost.host} is lost", "bold"), f": {lost.reason}")

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        self._ending(*failures_lines(errors, self._err.sheet))

    def error(self, err: TflaunchError) -> None:
        if isinstance(err, (ConnectErrors, LaunchError)):
            self.failures(err)
        else:
            self._ending(*error_lines(err, self._err.marks))

    def report(self, outcome: Outcome) -> None:
        now, step = time.monotonic(), self._next_step(outcome)

        def show() -> None:
            self._leave(now)
            first, recent = outcome.first_failure, self._recent
            above = recent is not None and isinstance(first, TaskExit) and recent.shows(first, self._err)
            self._print(*report_lines(outcome, self._err.marks, step, above))

        self._in_turn(show, last=True)

    def servers(self, plan: ClusterPlan) -> None:
        self._served = True
        self._writer.put("message", lambda: self._show_servers(plan))

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        if not self._writer.stdout.terminal and not self._served:  # for RUN=$(tflaunch run --detach ...)
            self._writer.put("message", lambda: self._writer.out(f"{one_line(run_id)}\n"))
        self._ending(*detached_lines(run_id, tasks, host, self._err.marks))

    def leaves(self, run_id: str, tasks: int, leave: Callable[[], None]) -> None:  # noqa: ARG002
        if not self._writer.stdout.terminal:
            self._writer.put("message", lambda: self._writer.out(f"{one_line(run_id)}\n"))
        self._ending(*self._left_lines(run_id))
        self._writer.put("message", lambda: self._writer.after(lambda: self._go(leave)))
        self._served = True  # the id is told

    def _left_lines(self, run_id: str) -> list[Text]:
        return waiting_lines(run_id, self._err.marks)

    def handed_over(self, run_id: str, tasks: int, host: str) -> None:
        self._ending(*detached_lines(run_id, tasks, host, self._err.marks))

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        self._ending(*stopped_lines(run_id, hosts, self._err.marks))

    def tensorboard(self, run_id: str, url: str, host: str, logdir: str) -> None:
        mark, source = (f"{self._err.marks.ok} ", "green"), f"  {run_id}, {logdir} on {host}"
        self._notice(mark, "TensorBoard: ", (url, "bold"), (source, "dim"))

    def fetched(self, fetched: Fetched) -> None:
        from tflaunch.console.fetch_page import fetched_lines

        self._ending(*fetched_lines(fetched, self._err.marks))

    def close(self, wait: bool = True) -> None:
        self._ending()
        super().close(wait)

    def _ending(self, *lines: Text) -> None:
        now = time.monotonic()
        self._writer.put("message", lambda: self._leave(now))
        self._message(*lines)

    def _message(self, *lines: Text) -> None:
        self._in_turn(lambda: self._print(*lines))
