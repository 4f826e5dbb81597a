"""What a person sees of a run: on a terminal with colours and one live line, in a pipe plain."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from tflaunch.console.lines import Text, paragraph
from tflaunch.console.logs import LogReporter, Options
from tflaunch.console.run_pages import (
    PIPE_COLUMNS,
    Pen,
    brief_plan_lines,
    detached_lines,
    error_lines,
    failures_lines,
    note_part,
    of,
    plan_lines,
    report_lines,
    servers_lines,
    stopped_lines,
    tail_lines,
    task_colour,
)
from tflaunch.console.writer import Stream
from tflaunch.inputs.times import duration
from tflaunch.protocol.errors import ConnectErrors, LaunchError, TflaunchError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit, how
from tflaunch.sessions.log_lines import LineAssembler, printable

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.launch.acquisition import Turn
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.fetch import Fetched
    from tflaunch.runs.visits import Finished

_RECENT = 128  # lines of the screen that are remembered: more than are ever looked at
_TICK_S = 0.1  # of the one live line
_SETTLE_S = 1.0  # for a terminal that takes nothing
_ROOMY_COLUMNS = 60  # room for a bar of full length


_PAST = {
    "connecting": "connected",
    "probing": "probed",
    "shipping": "shipped",
    "installing": "installed",
    "pulling": "pulled",
    "staging": "staged",
    "dialling": "dialled",
    "entrusting": "entrusted",
    "starting": "started",
    "stopping": "stopped",
    "checking": "checked",
    "waiting": "waited for cards",
    "measuring": "measured",
    "cleaning": "cleaned",
    "fetching": "fetched",
}


@dataclass
class _Phase:
    name: str
    began: float
    done: int = 0
    total: int = 0
    note: str = ""
    over: bool = False


@dataclass
class _Prefixes:
    """What stands before a task's lines: as wide for all, one colour for each."""

    hosts: dict[TaskId, str] = field(default_factory=dict)
    made: dict[TaskId, str] = field(default_factory=dict)

    def expect(self, hosts: Mapping[TaskId, str]) -> None:
        if not hosts.items() <= self.hosts.items():
            self.hosts.update(hosts)
            self.made.clear()  # another width, perhaps


class TextReporter(LogReporter):
    """Lines for people: on a terminal with colours and one live line until the training begins."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        self._out = Pen(stdout)
        self._err = Pen(stderr)
        self._prefixes = _Prefixes()
        self._phase: _Phase | None = None
        self._live = stderr.terminal and not self._err.console.is_dumb_terminal
        self._live_shown = False
        self._question = ""
        self._question_shown = False
        self._training = False  # log lines may come at any moment: no live line any more
        self._failed: set[TaskId] = set()  # and have not been started again
        self._turn: Turn | None = None
        # What stands above on the screen that both streams share: lines of a task, or (None) of tflaunch.
        self._one_screen = stdout.same_terminal(stderr)
        self._recent: deque[tuple[TaskId | None, str]] = deque(maxlen=_RECENT)
        super().__init__(options, stdout, stderr)
        # For a file or a program one log is what it is; for a terminal it is lines that do not act on it.
        self._raw = options.bare and options.grep is None and not stdout.terminal

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        self._writer.put("message", lambda: self._show_phase(name, done, total, note, now))

    def settle(self) -> None:
        now, settled = time.monotonic(), threading.Event()

        def leave() -> None:
            self._leave(now)
            self._wipe()
            settled.set()

        self._writer.put("message", leave)
        settled.wait(_SETTLE_S)

    def waiting(self, turn: Turn) -> None:
        # Enough cards may be free, and yet not where they fit: what is full looks like what is over.
        self.phase("waiting", min(turn.free, turn.needed - 1), turn.needed, str(turn))
        if not self._live and turn != self._turn:
            self.note(f"waiting: {turn.free} of {turn.needed} cards are free; {turn}")
        self._turn = turn

    def note(self, text: str) -> None:
        self._message(paragraph(f"  {text}", style="dim"))

    def warn(self, text: str) -> None:
        self._notice((f"{self._err.marks.warn} ", "yellow"), text)

    def say(self, text: str) -> None:
        self._notice((text, "bold"))

    def files(self, bundle: Bundle) -> None:
        from tflaunch.console.code_page import files_lines

        lines = files_lines(bundle)
        self._writer.put("message", lambda: self._writer.out("".join(map(self._out.render, lines))))

    def shipped(self, bundle: Bundle, shipped: Shipped) -> None:
        from tflaunch.console.code_page import shipped_text

        if text := shipped_text(bundle, shipped):
            self._message(paragraph((f"{self._err.marks.ok} ", "green"), text))

    @property
    def can_ask(self) -> bool:
        return self._err.stream.terminal and sys.stdin is not None and sys.stdin.isatty()

    def ask(self, question: str) -> None:
        def show() -> None:
            self._wipe()  # also the same question: the shell has written behind it
            self._question = question

        self._writer.put("message", show)

    def asked(self, typed: bool) -> None:
        left = threading.Event()

        def leave() -> None:
            self._question_shown &= not typed
            self._wipe()
            self._question = ""
            left.set()

        self._writer.put("message", leave)
        left.wait(_SETTLE_S)  # a notice would overtake it

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        self._writer.put("message", lambda: self._show_plan(plan, brief))
        for text in self._take_plan(plan):
            self._message(paragraph((f"{self._err.marks.warn} ", "yellow"), text))

    def started(self, started: TaskStarted) -> None:
        self._writer.put("message", lambda: self._prefixes.expect({started.task: started.host}))
        if started.attempt:
            self._failed.discard(started.task)
            marks = self._err.marks
            again = f"{started.task} on {started.host} runs again (attempt {started.attempt + 1})"
            self._message(Text.assemble((f"{marks.ok} ", "green"), again))

    def exited(self, exit: TaskExit) -> None:
        if exit.stopped or (exit.exit_code and self._failed):
            return  # as it was asked to; or the report tells all that follow the first in one line
        if exit.exit_code:
            self._failed.add(exit.task)
        marks = self._err.marks
        mark, style = (marks.bad, "bold red") if exit.exit_code else (marks.ok, "green")
        ended = how(exit) if exit.exit_code else "finished"
        text = f"{exit.task} on {exit.host} {ended} after {duration(exit.seconds)}"

        def show(missing: int) -> None:
            late = f"; {missing:,} bytes of its output are still to come" if missing else ""
            self._print(Text.assemble((f"{mark} ", style), text, (late, "dim")))

        self._behind_output(exit, show)

    def unreachable(self, host: str, reason: str) -> None:
        mark = (f"{self._err.marks.warn} ", "yellow")
        self._notice(mark, (f"{host} is out of reach", "bold"), f", its tasks run on: {reason}")

    def back(self, host: str, away_s: float) -> None:
        self._notice((f"{self._err.marks.ok} ", "green"), f"{host} is back after {duration(away_s)}")

    def lost(self, lost: HostLost) -> None:
        mark = (f"{self._err.marks.bad} ", "bold red")
        self._notice(mark, (f"{lost.host} is lost", "bold"), f": {lost.reason}")

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        self._ending(*failures_lines(errors, self._err.marks))

    def error(self, err: TflaunchError) -> None:
        if isinstance(err, (ConnectErrors, LaunchError)):
            self.failures(err)
        else:
            self._ending(*error_lines(err, self._err.marks))

    def report(self, outcome: Outcome) -> None:
        now, hint = time.monotonic(), self._next_step(outcome)

        def show() -> None:
            self._leave(now)
            first = outcome.first_failure
            above = isinstance(first, TaskExit) and self._still_above(first)
            self._print(*report_lines(outcome, self._err.marks, hint, above))

        self._in_turn(show, last=True)

    def servers(self, plan: ClusterPlan) -> None:
        self._writer.put("message", lambda: self._show_servers(plan))

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        self._ending(*detached_lines(run_id, tasks, host, self._err.marks))

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        self._ending(*stopped_lines(run_id, hosts, self._err.marks))

    def board(self, run_id: str, url: str, host: str, logdir: str) -> None:
        mark, of_it = (f"{self._err.marks.ok} ", "green"), f"  {run_id}, {logdir} on {host}"
        self._notice(mark, "TensorBoard: ", (url, "bold"), (of_it, "dim"))

    def fetched(self, told: Fetched) -> None:
        from tflaunch.console.fetch_page import fetched_lines

        self._ending(*fetched_lines(told, self._err.marks))

    def close(self, wait: bool = True) -> None:
        self._ending()
        super().close(wait)

    def _ending(self, *lines: RenderableType) -> None:
        now = time.monotonic()
        self._writer.put("message", lambda: self._leave(now))
        self._message(*lines)

    def _message(self, *lines: RenderableType) -> None:
        self._in_turn(lambda: self._print(*lines))

    def _notice(self, *parts: str | tuple[str, str]) -> None:
        line = paragraph(*parts)
        self._writer.put("notice", lambda: self._print(line))

    # From here on: in the writer's thread.

    def _print(self, *lines: RenderableType) -> None:
        self._wipe()
        text = "".join(map(self._err.render, lines))
        self._writer.err(text)
        if self._one_screen:
            self._recent.extend((None, row) for row in text.splitlines())

    def _wipe(self) -> None:
        if self._question_shown:
            self._writer.err("\n")
            self._question_shown = False
        if self._live_shown:
            self._writer.err("", before="\r\x1b[K")
            self._live_shown = False

    def _tick(self) -> float | None:
        soonest = super()._tick()
        if self._question:
            if not self._question_shown:
                self._wipe()
                self._writer.err(self._err.render(Text(self._question, "bold")).rstrip("\n") + " ")
                self._question_shown = True
            return soonest
        phase = self._phase
        if not self._live or self._training or phase is None or phase.over:
            return soonest
        self._live_shown = True
        line = self._err.render(self._live_line(phase), spare=1).rstrip("\n")
        self._writer.err(line, before="\r", after="\x1b[K")
        return _TICK_S if soonest is None else min(soonest, _TICK_S)

    def _live_line(self, phase: _Phase) -> RenderableType:
        now = time.monotonic()
        bar = ProgressBar(
            total=max(1, phase.total),
            completed=phase.done,
            width=24 if self._err.columns >= _ROOMY_COLUMNS else 4,
            style="dim",
            complete_style="cyan",
            finished_style="cyan",
        )
        note = f"{duration(now - phase.began)}{note_part(phase.note)}"
        parts: list[RenderableType] = [
            Spinner(self._err.marks.spinner, style="cyan").render(now),
            phase.name,
            bar,
            f"{phase.done}/{phase.total}",
            Text(note, "dim", no_wrap=True, overflow="ellipsis"),
        ]
        line = Table.grid(padding=(0, 1))
        for part in parts:
            line.add_column(no_wrap=part is not parts[-1])  # rich shortens those that may wrap
        line.add_row(*parts)
        return line

    def _show_phase(self, name: str, done: int, total: int, note: str, now: float) -> None:
        phase = self._phase
        if phase is None or phase.name != name or (phase.over and done < total):
            self._leave(now)
            phase = self._phase = _Phase(name, now)
            self._training &= name != "fetching"  # no log comes any more
            if name == "training":
                self._training = True
                self._print(
                    Text.assemble(("training", "bold"), (of(total, "task"), "dim"), (note_part(note), "dim"))
                )
        if phase.over:
            return
        phase.done, phase.total, phase.note = done, total, note
        if done < total:
            return
        phase.over = True
        if name in ("training", "fetching", "shipping"):
            return  # what follows says more
        took = "" if phase.began == now else f" in {duration(now - phase.began)}"
        self._print(
            Text.assemble(
                (f"{self._err.marks.ok} ", "green"),
                f"{_PAST.get(name, name)} {done}/{total}" if total else _PAST.get(name, name),
                (took + note_part(note), "dim"),
            )
        )

    def _leave(self, now: float) -> None:
        """End a phase that another one, or the end, cuts short."""
        phase = self._phase
        if phase is None or phase.over or phase.name == "training":
            return
        phase.over = True
        if phase.name == "waiting":
            return  # why it has not come to its end is an error's to say
        text = f"{_PAST.get(phase.name, phase.name)} {phase.done}/{phase.total}"
        took = f" after {duration(now - phase.began)}"
        missing = "" if phase.name == "fetching" else "not "  # its note is how much has come
        lacking = f", {missing}{phase.note}" if phase.note else ""
        self._print(Text.assemble((f"{self._err.marks.warn} ", "yellow"), text, (took, "dim"), lacking))

    def _show_lines(self, task: TaskId, host: str, lines: str, partial: bool = False) -> None:  # noqa: ARG002
        self._training = True
        self._wipe()
        if self._one_screen:
            self._recent.extend(zip(itertools.repeat(task), lines[:-1].rsplit("\n", _RECENT)[-_RECENT:]))
        prefix = "" if self._options.bare else self._prefix(task, host)
        self._writer.out_lines(prefix, lines)

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        if self._raw:
            self.warn(f"{task} on {host}: {missing:,} bytes are missing")
            return
        more = self._out.marks.more
        self._show_lines(task, host, f"{more} {missing:,} bytes are missing here {more}\n")

    def _still_above(self, exit: TaskExit) -> bool:
        """Whether the task's last lines stand on the screen already, and little else among and below them."""
        if not self._one_screen:
            return False
        wanted, room, columns = tail_lines(exit.tail), self._err.rows // 2, self._err.columns or PIPE_COLUMNS
        for task, line in reversed(self._recent):
            if wanted and task == exit.task and printable(line) == wanted[-1]:
                wanted.pop()
            elif wanted:
                room -= 1 + len(line) // columns
        return not wanted and room >= 0

    def _assembler(self) -> LineAssembler:
        return LineAssembler(colour=self._out.colour)

    def _prefix(self, task: TaskId, host: str) -> str:
        prefix = self._prefixes.made.get(task)
        if prefix is None:
            self._prefixes.expect({task: host})
            hosts = self._prefixes.hosts
            text = Text(str(task).ljust(max(len(str(other)) for other in hosts)), task_colour(task))
            if self._options.show_host:
                text.append(" " + host.ljust(max(map(len, hosts.values()))), "dim")
            text.append(f" {self._out.marks.bar}", "dim")
            prefix = self._prefixes.made[task] = self._out.render(text).rstrip("\n") + " "
        return prefix

    def _show_plan(self, plan: ClusterPlan, brief: bool) -> None:
        self._prefixes.expect({task.id: task.host for task in plan.tasks})
        if brief:
            self._print(*brief_plan_lines(plan, self._err.marks))
            return
        for line in plan_lines(plan, self._out):
            self._writer.out(self._out.render(line))

    def _show_servers(self, plan: ClusterPlan) -> None:
        self._wipe()
        for line in servers_lines(plan):
            self._writer.out(self._out.render(line))
