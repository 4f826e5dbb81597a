"""What stands on the screen of a run, or comes out of a pipe: the lines of tasks, tflaunch's own, and the live ones."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from tflaunch.console.alike import Alike
from tflaunch.console.footer import Footer
from tflaunch.console.live import LiveLines, Question
from tflaunch.console.pen import Pen
from tflaunch.console.phases import Phases
from tflaunch.console.plan_page import brief_plan_lines, plan_lines
from tflaunch.console.run_pages import servers_lines
from tflaunch.console.safe_text import Text, paragraph
from tflaunch.console.task_lines import Prefixes, Recent
from tflaunch.documents.log_keeping import LogReporter, Options
from tflaunch.documents.startup_lines import Folded
from tflaunch.documents.writer import Stream, dumb
from tflaunch.protocol.job import TaskId
from tflaunch.text.lines import LineAssembler
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from tflaunch.planning.cluster_plan import ClusterPlan

_TICK_S = 0.1  # of the live line


class ScreenLines(LogReporter):
    """Writes and draws, in the writer's thread; only a warning may come from any thread."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        self._out = Pen(stdout)
        self._err = Pen(stderr)
        self._live = stderr.terminal and not dumb()
        self._live_lines = LiveLines(self._write_err)
        self._question = Question(self._err, self._write_err)
        self._phases = Phases(self._err, self._print)
        self._footer = Footer(self._err)
        self._prefixes = Prefixes(self._out, options.show_host)
        self._recent = Recent() if stdout.same_terminal(stderr) else None
        self._folded = Folded() if options.fold and stdout.terminal else None
        self._alike = Alike(self._out.marks.more) if options.fold and stdout.terminal else None
        self._as_before = 0  # warnings that are not shown: earlier runs had them
        super().__init__(options, stdout, stderr)
        # A file or a program gets a single log byte for byte; a terminal gets lines that are safe to show.
        self._raw = options.bare and options.grep is None and not stdout.terminal

    def warn(self, text: str) -> None:
        self._notice((f"{self._err.marks.warn} ", "yellow"), text)

    def slowed(self, text: str) -> None:
        self.warn(text)

    def _notice(self, *parts: str | tuple[str, str]) -> None:
        line = paragraph(*parts)
        self._writer.put("notice", lambda: self._print(line))

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

    def _is_new(self, text: str) -> bool:
        """Whether to show what is as true of the next run: a file or a pipe, which is read alone, has it every time."""
        from tflaunch.runs.told import is_new

        if self._options.repeat or not self._err.stream.terminal or is_new(text):
            return True
        self._as_before += 1
        return False

    def _go(self, leave: Callable[[], None]) -> None:
        self._wipe()
        leave()
        for pen in (self._out, self._err):
            pen.stream.look_again()
            pen.look_again()
        self._live = False
