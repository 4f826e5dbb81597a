"""Shows a run to people: with colours and live lines on a terminal, plain in a pipe."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tflaunch.console.alike import Alike
from tflaunch.console.failure_page import error_lines, failures_lines
from tflaunch.console.footer import Footer
from tflaunch.console.live import LiveLines, Question
from tflaunch.console.pen import Pen
from tflaunch.console.phases import Phases
from tflaunch.console.plan_page import brief_plan_lines, plan_lines
from tflaunch.console.run_pages import detached_lines, report_lines, servers_lines, stopped_lines
from tflaunch.console.safe_text import Text, paragraph
from tflaunch.console.task_lines import Prefixes, Recent
from tflaunch.documents.log_keeping import LogReporter, Options
from tflaunch.documents.startup_lines import Folded
from tflaunch.documents.writer import Stream
from tflaunch.protocol.errors import ConnectErrors, LaunchError, TflaunchError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit, how
from tflaunch.text.lines import LineAssembler
from tflaunch.text.numbers import counted
from tflaunch.text.safe import one_line
from tflaunch.text.times import duration

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.launch.run_watcher import Turn
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.fetch_result import Fetched
    from tflaunch.runs.visits import Finished

_TICK_S = 0.1  # of the live line
_SETTLE_S = 1.0  # at most, where the terminal takes no output


class TextReporter(LogReporter):
    """Lines for people: on a terminal with colours and one live line until the training begins."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        self._out = Pen(stdout)
        self._err = Pen(stderr)
        self._live = stderr.terminal and not self._err.console.is_dumb_terminal
        self._live_lines = LiveLines(self._write_err)
        self._question = Question(self._err, self._write_err)
        self._phases = Phases(self._err, self._print)
        self._footer = Footer(self._err)
        self._prefixes = Prefixes(self._out, options.show_host)
        self._recent = Recent() if stdout.same_terminal(stderr) else None
        self._folded = Folded() if options.fold and stdout.terminal else None
        self._alike = Alike(self._out.marks.more) if options.fold and stdout.terminal else None
        self._failed: set[TaskId] = set()  # tasks that failed and have not been started again
        self._turn: Turn | None = None
        self._as_before = 0  # warnings that are not shown: earlier runs had them
        self._served = False  # stdout has the addresses of servers, and gets nothing else
        super().__init__(options, stdout, stderr)
        # A file or a program gets a single log byte for byte; a terminal gets lines that are safe to show.
        self._raw = options.bare and options.grep is None and not stdout.terminal

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

    def warn(self, text: str) -> None:
        self._notice((f"{self._err.marks.warn} ", "yellow"), text)

    def warn_once(self, text: str) -> None:
        if self._is_new(text):
            self.warn(text)

    def _is_new(self, text: str) -> bool:
        """Whether to show what is as true of the next run: a file or a pipe, which is read alone, has it every time."""
        from tflaunch.runs.told import is_new

        if self._options.repeat or not self._err.stream.terminal or is_new(text):
            return True
        self._as_before += 1
        return False

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

    def _notice(self, *parts: str | tuple[str, str]) -> None:
        line = paragraph(*parts)
        self._writer.put("notice", lambda: self._print(line))

    # From here on: in the writer's thread.

    def _leave(self, now: float) -> None:
        """End what is live."""
        self._tell_alike(over=True)
        if text := self._what_was_folded(over=True):
            self._print(Text(text, "dim"))
        self._phases.leave(now)
        self._footer.end()

    def _take_phase(
        self, name: str, done: int, total: int, note: str, now: float, *, moved: tuple[int, int] | None
    ) -> None:
        if name == "training":
            self._footer.begin(total, now)
        elif name == "fetching":
            self._footer.end()
        self._phases.take(name, done, total, note, now, moved=moved)

    def _print(self, *lines: Text) -> None:
        self._wipe()
        text = "".join(map(self._err.render, lines))
        self._writer.err(text)
        if text and self._recent is not None:
            self._recent.add(None, text)
        if self._alike is not None:
            self._alike.printed(text.count("\n"))

    def _tell_alike(self, *, of: TaskId | None = None, over: bool = False) -> float | None:
        """Tell which lines other tasks have written, too, if it is time; return in how many seconds it will be."""
        if self._alike is None:
            return None
        for text in self._alike.told(time.monotonic(), of=of, over=over):
            self._print(Text(f"  {text}", "dim"))
        return self._alike.wait_s(time.monotonic())

    def _write_err(self, text: str, before: str = "", after: str = "") -> None:
        self._writer.err(text, before, after)

    def _wipe(self) -> None:
        self._question.leave_line()
        self._live_lines.wipe()

    def _tick(self) -> float | None:
        soonest = super()._tick()
        if text := self._what_was_folded():  # stdout has been written: at once
            self._print(Text(text, "dim"))
        if (alike_s := self._tell_alike()) is not None:
            soonest = alike_s if soonest is None else min(soonest, alike_s)
        if (slow_s := self._phases.tell_slow(time.monotonic())) is not None:
            soonest = slow_s if soonest is None else min(soonest, slow_s)
        if self._question.open:
            self._live_lines.wipe()
            self._question.draw()
            return soonest
        lines, every_s = self._what_is_live() if self._live else ([], 0.0)
        if not lines:
            return soonest
        self._live_lines.draw("".join(map(self._err.render, lines)).rstrip("\n"))
        return every_s if soonest is None else min(soonest, every_s)

    def _what_is_live(self) -> tuple[list[Text], float]:
        """Return the lines that are drawn again and again, and every how many seconds."""
        if lines := self._phases.live_lines():
            return lines, _TICK_S
        line = self._footer.line(time.monotonic())
        return [line] if line is not None else [], _TICK_S

    def _log(
        self,
        task: TaskId,
        host: str,
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None,
        *,
        attempt: int,
    ) -> None:
        if data:
            self._footer.heard(time.monotonic())
        super()._log(task, host, offset, data, written, attempt=attempt)

    def _show_lines(self, task: TaskId, host: str, lines: str, partial: bool = False) -> None:
        self._phases.training = True
        self._footer.output(task, lines, time.monotonic())
        if self._folded is not None:
            lines = self._folded.rest(task, lines)
        if not lines:
            return
        if text := self._what_was_folded():
            self._print_out(text)
        if self._recent is not None:  # also what is left out: it is on the screen, as another task's
            self._recent.add(task, lines)
        if self._alike is not None and not partial:
            lines = self._alike.rest(task, lines, time.monotonic())
            if not lines:
                return
        elif self._alike is not None:
            self._alike.printed(1)
        self._wipe()
        prefix = "" if self._options.bare else self._prefixes.of(task, host)
        self._writer.out_lines(prefix, lines)

    def _print_out(self, text: str) -> None:
        """Print a line of tflaunch's own between those of tasks, which are not written yet."""
        self._wipe()
        self._writer.out(self._out.render(Text(text, "dim")))
        if self._alike is not None:
            self._alike.printed(1)

    def _what_was_folded(self, *, over: bool = False) -> str:
        return self._folded.told(over=over) if self._folded is not None else ""

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        if self._raw:
            self.warn(f"{task} on {host}: {missing:,} bytes are missing")
            return
        more = self._out.marks.more
        self._show_lines(task, host, f"{more} {missing:,} bytes are missing here {more}\n")

    def _assembler(self) -> LineAssembler:
        return LineAssembler(colour=self._out.colour)

    def _show_plan(self, plan: ClusterPlan, brief: bool) -> None:
        self._prefixes.expect({task.id: task.host for task in plan.tasks})
        if self._alike is not None:
            self._alike.expect(Counter(task.id.job for task in plan.tasks))
        if brief:
            from tflaunch.planning.cluster_plan import Standing

            notes = [note for note in plan.notes if not isinstance(note, Standing) or self._is_new(note)]
            self._print(*brief_plan_lines(dataclasses.replace(plan, notes=tuple(notes)), self._err.marks))
            if self._as_before:
                what = f"{counted(self._as_before, 'warning')} as in earlier runs: --dry-run tells them"
                self._print(Text(f"  {what}", "dim"))
            return
        for line in plan_lines(plan, self._out.sheet):
            self._writer.out(self._out.render(line))

    def _show_servers(self, plan: ClusterPlan) -> None:
        self._wipe()
        for line in servers_lines(plan):
            self._writer.out(self._out.render(line))
