"""Everything that a person, or with `--json` a program, sees of a run.

For people: the logs of the tasks go to stdout, everything else to stderr, so that
`tflaunch run ... > train.log` keeps the training's own words only.  Of a task's log only whole lines are
shown, as `worker/0 | line`; nothing in it can act on the terminal.

For programs: stdout holds one JSON object a line, in ASCII.  Each has `event` and `time` (epoch seconds):

    event      fields
    plan       run_id, cluster (job -> addresses), notes, tasks: [task, host, address, port, gpus (UUIDs),
               gpu_indices, argv, env, setup, cwd (null: where the shipped code is)]
    phase      name, done, total, note (what is awaited, or missing); one for each step
    note       text            something that happened
    say        text            what tflaunch does now, because it was asked to
    warn       text            something to look at
    started    task, host, pid
    log        task, host, line; and partial: true while a line is being rewritten (a progress bar)
    gap        task, host, bytes       of the log that cannot be shown
    log_end    task            nothing more comes from it
    exited     task, host, code, signal (name), seconds, stopped (tflaunch had asked it to end)
    lost       host, reason
    failures   exit_code, message, hint, rows: [hosts, folded, cause, hint], unconfirmed (host -> why it
               could not be told to stop)
    error      kind (the class), message, hint, exit_code, problems: [where, line, column, message]
    report     run_id, status, exit_code, seconds, exits: [as in exited], first_failure (as in exited, with
               tail; or as in lost), unverified (host -> why), survivors (host -> processes), record,
               host_logs (task -> path on its host), hint
    stopped    run_id, hosts (host -> found, killed, survivors)

Tasks are written `worker/0`.  Bytes of a log that are not UTF-8 appear as `\\xff`; control sequences are
left in it.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import itertools
import json
import os
import re
import shlex
import signal
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tflaunch.command import endpoint
from tflaunch.errors import ConnectErrors, HostfileError, LaunchError, TflaunchError
from tflaunch.hosts import fold
from tflaunch.job import TaskId
from tflaunch.log_lines import LineAssembler, printable
from tflaunch.plan import ClusterPlan, TaskPlan
from tflaunch.runs import exit_data, outcome_data, signal_name
from tflaunch.supervise import HostLost, Outcome, TaskExit
from tflaunch.writer import Stream, Writer

if TYPE_CHECKING:
    from tflaunch.cluster import Finished

TAIL_LINES = 30
PROBLEMS_SHOWN = 20  # of a hostfile; a file that is no hostfile has one in every line
_RECENT = 128  # lines of the screen that are remembered: more than are ever looked at
_ROWS = 24  # of a terminal that does not tell
_TICK_S = 0.1  # of the one live line
_PROGRESS_S = (0.5, 8.0)  # a progress bar is shown this often at first, and at last
_ROOMY_COLUMNS = 60  # room for a bar of full length
_PIPE_COLUMNS = 200  # a table in a file has room

# Okabe and Ito's colours, told apart by colour-blind eyes; black left out, yellow and blue made to be read
# on white and on black.
_PALETTE = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#3b82c4", "#d55e00", "#b8a800", "#8c8cd9")

_TRAILING = re.compile(r" +\n")  # what pads the last column of a table

_PAST = {
    "connecting": "connected",
    "probing": "probed",
    "shipping": "shipped",
    "staging": "staged",
    "stopping": "stopped",
    "checking": "checked",
}


class Reporter(Protocol):
    """What a run tells to whoever watches it.  No method blocks; all may be called from a signal handler."""

    @property
    def broken(self) -> bool:
        """True when stdout can no longer be written: its reader went away, or its disk is full."""

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        """`name` ("connecting", "training") has come to `done` of `total`; equal means that it is over.

        `note` names what it waits for while that is little, and what is missing when it ends too early.
        """

    def note(self, text: str) -> None:
        """Say something that is good to know."""

    def warn(self, text: str) -> None:
        """Say something that should be looked at."""

    def say(self, text: str) -> None:
        """Say what tflaunch does now because the user asked for it; overtakes all that is queued."""

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        """Show the plan as the result that was asked for, or, `brief`, in a line per job beside the logs.

        Call it before the first log: it tells how wide the prefixes are, and which tasks there are.
        """

    def log(
        self, task: TaskId, host: str, offset: int, data: bytes, written: Callable[[int], None] | None = None
    ) -> None:
        """Take the bytes of a task's log that begin at `offset`.

        `written(len(data))` is called from another thread once they are not held here any more, whether
        they were shown or not.
        """

    def log_end(self, task: TaskId) -> None:
        """Show the task's last line even if it has no newline: nothing more comes."""

    def started(self, task: TaskId, host: str, pid: int) -> None:
        """A task runs."""

    def exited(self, exit: TaskExit) -> None:
        """A task has ended; of those that fail, the first is told at once, the others by `report`."""

    def lost(self, lost: HostLost) -> None:
        """A host is gone."""

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        """Show every host that failed, in one table, folded by identical cause."""

    def error(self, err: TflaunchError) -> None:
        """Show why tflaunch gives up, and the next step to take."""

    def report(self, outcome: Outcome) -> None:
        """Show how the run ended: the first failure first."""

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        """Show what ending a run from outside met on each host."""

    def close(self, wait: bool = True) -> None:
        """Write what is queued; with `wait=False` within 0.3 s, logs dropped, even on a stopped terminal."""


def open_reporter(
    *,
    json: bool = False,
    quiet: bool = False,
    only: Collection[TaskId] | None = None,
    show_host: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> Reporter:
    """Return the reporter for a terminal or pipe, or its JSON twin.

    quiet: show no logs.  only: show the logs of these tasks.  show_host: name the host in each line.
    """
    options = _Options(quiet, frozenset(only) if only else None, show_host)
    out = Stream(stdout or sys.stdout or io.StringIO())  # None: the shell closed it
    err = Stream(stderr or sys.stderr or io.StringIO())
    return JsonReporter(options, out, err) if json else TextReporter(options, out, err)


@dataclass(frozen=True)
class _Options:
    quiet: bool
    only: frozenset[TaskId] | None
    show_host: bool

    def shows(self, task: TaskId) -> bool:
        return not self.quiet and (self.only is None or task in self.only)


@dataclass
class _Log:
    """What is known of one task's log by the writer's thread."""

    host: str
    assembler: LineAssembler
    offset: int | None = None  # of the next byte
    show_progress_at: float = 0.0
    progress_every_s: float = _PROGRESS_S[0]


class _LogReporter:
    """What both styles do with logs: put lines together, and show progress bars now and then."""

    def __init__(self, options: _Options, stdout: Stream, stderr: Stream) -> None:
        self._options = options
        self._logs: dict[TaskId, _Log] = {}
        self._rewriting: set[TaskId] = set()
        self._interpreters: dict[TaskId, str] = {}
        self._writer = Writer(stdout, stderr, self._tick, self._break)

    @property
    def broken(self) -> bool:
        return self._writer.stdout.broken is not None

    def log(
        self, task: TaskId, host: str, offset: int, data: bytes, written: Callable[[int], None] | None = None
    ) -> None:
        self._writer.put("log", lambda: self._log(task, host, offset, data, written))

    def log_end(self, task: TaskId) -> None:
        self._writer.put("log", lambda: self._log_end(task))

    def _take_plan(self, plan: ClusterPlan) -> list[str]:
        """Remember what is needed of the plan; returns what does not fit it."""
        self._interpreters = {task.id: task.argv[0] for task in plan.tasks}
        strange = (self._options.only or frozenset()) - self._interpreters.keys()
        return [f"--only {task}: the plan has {_tasks_there(task.job, plan)}" for task in sorted(strange)]

    def _next_step(self, outcome: Outcome) -> str:
        first = outcome.first_failure
        return _advice(first, self._interpreters.get(first.task)) if isinstance(first, TaskExit) else ""

    def close(self, wait: bool = True) -> None:
        self._writer.close(wait)

    # From here on: in the writer's thread.

    def _assembler(self) -> LineAssembler:
        raise NotImplementedError

    def _show_lines(self, task: TaskId, host: str, lines: list[str], partial: bool = False) -> None:
        raise NotImplementedError

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        raise NotImplementedError

    def _log(
        self, task: TaskId, host: str, offset: int, data: bytes, written: Callable[[int], None] | None
    ) -> None:
        if written is not None:
            self._writer.after(lambda: written(len(data)))
        if self.broken or not self._options.shows(task):
            return
        log = self._logs.get(task)
        if log is None:
            log = self._logs[task] = _Log(host, self._assembler())
        if log.offset is not None and offset != log.offset:
            if offset > log.offset:
                self._log_end(task)
                self._show_gap(task, host, offset - log.offset)
            data = data[max(0, log.offset - offset) :]
            offset = max(offset, log.offset)
        log.offset = offset + len(data)
        lines = log.assembler.feed(data)
        if lines:
            log.progress_every_s = _PROGRESS_S[0]
            self._show_lines(task, host, lines)
        if log.assembler.rewriting:
            self._rewriting.add(task)
        else:
            self._rewriting.discard(task)

    def _log_end(self, task: TaskId) -> None:
        log = self._logs.get(task)
        if log is None:
            return
        self._rewriting.discard(task)
        if lines := log.assembler.end():
            self._show_lines(task, log.host, lines)

    def _tick(self) -> float | None:
        """Show the progress bars whose time has come; return when the next one's comes."""
        if not self._rewriting:
            return None
        now = time.monotonic()
        for task in list(self._rewriting):
            log = self._logs[task]
            if now < log.show_progress_at:
                continue
            state = log.assembler.progress()
            self._rewriting.discard(task)
            if state is not None:
                self._show_lines(task, log.host, [state], partial=True)
                log.show_progress_at = now + log.progress_every_s
                log.progress_every_s = min(2 * log.progress_every_s, _PROGRESS_S[1])
        if not self._rewriting:
            return None
        return max(0.01, min(self._logs[task].show_progress_at for task in self._rewriting) - now)

    def _break(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:  # `| head` has what it wanted; a full disk is news
            reason = os.strerror(error.errno or 0)
            self._writer.err(f"cannot write to stdout: {reason}; the run goes on, its logs are on record\n")


class JsonReporter(_LogReporter):
    """One JSON object a line on stdout; the module's docstring has the events."""

    def __init__(self, options: _Options, stdout: Stream, stderr: Stream) -> None:
        self._heads: dict[TaskId, str] = {}
        self._step: tuple[str, int, int] | None = None
        super().__init__(options, stdout, stderr)

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        if self._step != (name, done, total):
            self._step = (name, done, total)
            self._event("phase", name=name, done=done, total=total, note=note)

    def note(self, text: str) -> None:
        self._event("note", text=text)

    def warn(self, text: str) -> None:
        self._event("warn", text=text)

    def say(self, text: str) -> None:
        self._event("say", text=text)

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:  # noqa: ARG002  a program skips what it likes
        self._event("plan", **plan.to_json())
        for text in self._take_plan(plan):
            self.warn(text)

    def log_end(self, task: TaskId) -> None:
        super().log_end(task)
        self._event("log_end", task=str(task))

    def started(self, task: TaskId, host: str, pid: int) -> None:
        self._event("started", task=str(task), host=host, pid=pid)

    def exited(self, exit: TaskExit) -> None:
        self._event("exited", **exit_data(exit))

    def lost(self, lost: HostLost) -> None:
        self._event("lost", host=lost.host, reason=lost.reason)

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        rows = [
            {"hosts": row.hosts, "folded": row.folded, "cause": row.cause, "hint": row.hint}
            for row in _rows(errors)
        ]
        self._event(
            "failures",
            exit_code=errors.exit_code,
            message=_headline(errors),
            hint=errors.hint,
            rows=rows,
            unconfirmed=_unconfirmed(errors),
        )

    def error(self, err: TflaunchError) -> None:
        if isinstance(err, (ConnectErrors, LaunchError)):
            self.failures(err)
            return
        problems = err.problems if isinstance(err, HostfileError) else []
        self._event(
            "error",
            kind=type(err).__name__,
            message=err.message,
            hint=err.hint,
            exit_code=err.exit_code,
            problems=[vars(problem) for problem in problems],
        )

    def report(self, outcome: Outcome) -> None:
        first, told = outcome.first_failure, outcome_data(outcome)
        if isinstance(first, TaskExit):
            told["first_failure"]["tail"] = _tail(first.tail)
        hint = self._next_step(outcome)
        self._event("report", run_id=outcome.run_id, **told, record=outcome.record, hint=hint)

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        told = {host: dataclasses.asdict(end) for host, end in hosts.items()}
        self._event("stopped", run_id=run_id, hosts=told)

    def _event(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 6), **fields}) + "\n"
        self._writer.put("message", lambda: self._writer.out(line))

    def _assembler(self) -> LineAssembler:
        return LineAssembler(raw=True)

    def _show_lines(self, task: TaskId, host: str, lines: list[str], partial: bool = False) -> None:
        # Not json.dumps: this is the one event that comes a hundred thousand times a second.
        head = self._heads.get(task)
        if head is None:
            head = self._heads[task] = f', "task": {quoted(str(task))}, "host": {quoted(host)}, "line": '
        head = f'{{"event": "log", "time": {time.time():.6f}' + head
        end = ', "partial": true}\n' if partial else "}\n"
        self._writer.out(head + (end + head).join(map(quoted, lines)) + end)

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        event = {"event": "gap", "time": time.time(), "task": str(task), "host": host, "bytes": missing}
        self._writer.out(json.dumps(event) + "\n")


@dataclass
class _Phase:
    name: str
    began: float
    done: int = 0
    total: int = 0
    note: str = ""
    over: bool = False


@dataclass(frozen=True)
class _Marks:
    """The few signs in use, with what stands for them where the encoding has none."""

    ok: str = "✓"
    bad: str = "✗"
    warn: str = "!"
    bar: str = "│"
    dot: str = "·"
    more: str = "…"
    next: str = "→"
    spinner: str = "dots"


_ASCII = _Marks(ok="ok", bad="x", bar="|", dot="-", more="...", next="->", spinner="line")


class _Pen:
    """Turns rich's renderables into text for one stream, as wide and as colourful as that stream takes."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        # Not the stream's own file: to that rich would write, if only an empty string, and fail with it.
        page = io.TextIOWrapper(io.BytesIO(), encoding=stream.encoding)
        self.console = Console(
            file=page, force_terminal=stream.terminal or None, highlight=False, markup=False, emoji=False
        )
        self.marks = _Marks() if stream.can_show("✓✗│·…→━⠋") else _ASCII
        self.colour = self.console.color_system is not None and not self.console.no_color

    @property
    def columns(self) -> int:
        """How wide the terminal is now, for a window may be resized; 0 when there is none."""
        return self._stream.size()[0]

    @property
    def rows(self) -> int:
        """How high the terminal is."""
        return self._stream.size()[1] or _ROWS

    def render(self, renderable: RenderableType, spare: int = 0) -> str:
        """Return the text of `renderable`, in lines shorter than the terminal by `spare` columns."""
        columns = self.columns
        self.console.width = max(20, (columns or _PIPE_COLUMNS) - spare)
        whole = isinstance(renderable, Text) and (not columns or bool(renderable.no_wrap))
        with self.console.capture() as captured:
            self.console.print(renderable, soft_wrap=whole)
        return _TRAILING.sub("\n", captured.get())


@dataclass
class _Prefixes:
    """What stands before a task's lines: as wide for all, one colour for each."""

    hosts: dict[TaskId, str] = field(default_factory=dict)
    made: dict[TaskId, str] = field(default_factory=dict)

    def expect(self, hosts: Mapping[TaskId, str]) -> None:
        if not hosts.items() <= self.hosts.items():
            self.hosts.update(hosts)
            self.made.clear()  # another width, perhaps


class TextReporter(_LogReporter):
    """Lines for people: on a terminal with colours and one live line until the training begins."""

    def __init__(self, options: _Options, stdout: Stream, stderr: Stream) -> None:
        self._out = _Pen(stdout)
        self._err = _Pen(stderr)
        self._prefixes = _Prefixes()
        self._phase: _Phase | None = None
        self._live = stderr.terminal and not self._err.console.is_dumb_terminal
        self._live_shown = False
        self._training = False  # log lines may come at any moment: no live line any more
        self._told_failure = False
        # What stands above on the screen that both streams share: lines of a task, or (None) of tflaunch.
        self._one_screen = stdout.same_terminal(stderr)
        self._recent: deque[tuple[TaskId | None, str]] = deque(maxlen=_RECENT)
        super().__init__(options, stdout, stderr)

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        self._writer.put("message", lambda: self._show_phase(name, done, total, note, now))

    def note(self, text: str) -> None:
        self._message(Text(f"  {printable(text)}", "dim"))

    def warn(self, text: str) -> None:
        self._notice((f"{self._err.marks.warn} ", "yellow"), printable(text))

    def say(self, text: str) -> None:
        self._notice((printable(text), "bold"))

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        self._writer.put("message", lambda: self._show_plan(plan, brief))
        for text in self._take_plan(plan):
            self._message(Text.assemble((f"{self._err.marks.warn} ", "yellow"), text))

    def started(self, task: TaskId, host: str, pid: int) -> None:  # noqa: ARG002  the phase counts them
        self._writer.put("message", lambda: self._prefixes.expect({task: host}))

    def exited(self, exit: TaskExit) -> None:
        if exit.stopped or (exit.exit_code and self._told_failure):
            return  # as it was asked to; or the report tells all that follow the first in one line
        self._told_failure |= exit.exit_code != 0
        marks = self._err.marks
        mark, style = (marks.bad, "bold red") if exit.exit_code else (marks.ok, "green")
        how = _how(exit) if exit.exit_code else "finished"
        text = f"{exit.task} on {exit.host} {how} after {_duration(exit.seconds)}"
        self._message(Text.assemble((f"{mark} ", style), printable(text)))

    def lost(self, lost: HostLost) -> None:
        mark = (f"{self._err.marks.bad} ", "bold red")
        self._notice(mark, (f"{lost.host} is lost", "bold"), f": {printable(lost.reason)}")

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        self._ending(*_failures_lines(errors, self._err.marks))

    def error(self, err: TflaunchError) -> None:
        if isinstance(err, (ConnectErrors, LaunchError)):
            self.failures(err)
        else:
            self._ending(*_error_lines(err, self._err.marks))

    def report(self, outcome: Outcome) -> None:
        now, hint = time.monotonic(), self._next_step(outcome)

        def show() -> None:
            self._leave(now)
            first = outcome.first_failure
            above = isinstance(first, TaskExit) and self._still_above(first)
            self._print(*_report_lines(outcome, self._err.marks, hint, above))

        self._writer.put("message", show)

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        self._ending(*_stopped_lines(run_id, hosts, self._err.marks))

    def close(self, wait: bool = True) -> None:
        self._ending()
        super().close(wait)

    def _ending(self, *lines: RenderableType) -> None:
        now = time.monotonic()
        self._writer.put("message", lambda: self._leave(now))
        self._message(*lines)

    def _message(self, *lines: RenderableType) -> None:
        self._writer.put("message", lambda: self._print(*lines))

    def _notice(self, *parts: str | tuple[str, str]) -> None:
        line = Text.assemble(*parts)
        self._writer.put("notice", lambda: self._print(line))

    # From here on: in the writer's thread.

    def _print(self, *lines: RenderableType) -> None:
        self._wipe()
        text = "".join(map(self._err.render, lines))
        self._writer.err(text)
        if self._one_screen:
            self._recent.extend((None, row) for row in text.splitlines())

    def _wipe(self) -> None:
        if self._live_shown:
            self._writer.err("\r\x1b[K")
            self._live_shown = False

    def _tick(self) -> float | None:
        soonest = super()._tick()
        phase = self._phase
        if not self._live or self._training or phase is None or phase.over:
            return soonest
        self._live_shown = True
        self._writer.err("\r" + self._err.render(self._live_line(phase), spare=1).rstrip("\n") + "\x1b[K")
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
        note = f"{_duration(now - phase.began)}{_note(phase.note)}"
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
            if name == "training":
                self._training = True
                self._print(
                    Text.assemble(("training", "bold"), (_of(total, "task"), "dim"), (_note(note), "dim"))
                )
        if phase.over:
            return
        phase.done, phase.total, phase.note = done, total, note
        if done < total:
            return
        phase.over = True
        if name == "training":
            return  # the report says more
        took = "" if phase.began == now else f" in {_duration(now - phase.began)}"
        self._print(
            Text.assemble(
                (f"{self._err.marks.ok} ", "green"),
                f"{_PAST.get(name, name)} {done}/{total}" if total else _PAST.get(name, name),
                (took + _note(note), "dim"),
            )
        )

    def _leave(self, now: float) -> None:
        """End a phase that another one, or the end, cuts short."""
        phase = self._phase
        if phase is None or phase.over or phase.name == "training":
            return
        phase.over = True
        text = f"{_PAST.get(phase.name, phase.name)} {phase.done}/{phase.total}"
        took = f" after {_duration(now - phase.began)}"
        lacking = f", not {printable(phase.note)}" if phase.note else ""
        self._print(Text.assemble((f"{self._err.marks.warn} ", "yellow"), text, (took, "dim"), lacking))

    def _show_lines(self, task: TaskId, host: str, lines: list[str], partial: bool = False) -> None:  # noqa: ARG002
        self._training = True
        self._wipe()
        if self._one_screen:
            self._recent.extend(zip(itertools.repeat(task), lines[-_RECENT:]))
        prefix = self._prefix(task, host)
        self._writer.out(prefix + ("\n" + prefix).join(lines) + "\n")

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        more = self._out.marks.more
        self._show_lines(task, host, [f"{more} {missing:,} bytes are missing here {more}"])

    def _still_above(self, exit: TaskExit) -> bool:
        """Whether the task's last lines stand on the screen already, and little else among and below them."""
        if not self._one_screen:
            return False
        wanted, room, columns = _tail(exit.tail), self._err.rows // 2, self._err.columns or _PIPE_COLUMNS
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
            text = Text(str(task).ljust(max(len(str(other)) for other in hosts)), _colour(task))
            if self._options.show_host:
                text.append(" " + host.ljust(max(map(len, hosts.values()))), "dim")
            text.append(f" {self._out.marks.bar}", "dim")
            prefix = self._prefixes.made[task] = self._out.render(text).rstrip("\n") + " "
        return prefix

    def _show_plan(self, plan: ClusterPlan, brief: bool) -> None:
        self._prefixes.expect({task.id: task.host for task in plan.tasks})
        if brief:
            self._print(*_brief_plan_lines(plan, self._err.marks))
            return
        for line in _plan_lines(plan, self._out):
            self._writer.out(self._out.render(line))


def _colour(task: TaskId) -> str:
    """Return the task's colour: by its name alone, so that it has the same in every run.

    Workers count from the front of the palette and the other jobs from its end, so that the first few of
    each differ.
    """
    if task.job == "worker":
        return _PALETTE[task.index % len(_PALETTE)]
    first = -1 if task.job == "ps" else zlib.crc32(task.job.encode())
    return _PALETTE[(first - task.index) % len(_PALETTE)]


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _of(count: int, noun: str) -> str:
    return f" {count} {_plural(noun, count)}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 or noun == "ps" else f"{noun}s"


def _note(note: str) -> str:
    return f"  {printable(note)}" if note else ""


def _how(exit: TaskExit) -> str:
    if name := signal_name(exit):
        return f"was killed by {name}"
    return f"exited with code {exit.code}"


def _tail(data: bytes) -> list[str]:
    assembler = LineAssembler()
    return (assembler.feed(data) + assembler.end())[-TAIL_LINES:]


# The plan


def _plan_lines(plan: ClusterPlan, pen: _Pen) -> list[RenderableType]:
    places = dict.fromkeys(task.cwd or "the shipped code" for task in plan.tasks)
    columns, first = pen.columns, plan.tasks[0]
    lines: list[RenderableType] = [
        *_task_lines(plan, columns or _PIPE_COLUMNS),
        Text(),
        Text(f"{first.id} runs, in {printable(next(iter(places)))}:", "dim"),
        _whole(printable(_command(first.argv, columns or None))),
    ]
    if own := _differing(plan):
        lines.append(Text(f"and each task likewise, with its own {own}", "dim"))
    if others := list(places)[1:]:
        lines.append(Text(f"some in {printable(', '.join(others))}", "dim"))
    lines.append(Text("--json shows each task with its environment", "dim"))
    return lines + _plan_notes(plan, pen.marks)


def _task_lines(plan: ClusterPlan, columns: int) -> list[RenderableType]:
    """A table; or, where it is wider than the terminal, two lines a task, for an address is never broken."""
    rows = [(str(task.id), task.host, endpoint(task.address, task.port), _cards(task)) for task in plan.tasks]
    headings = ("task", "host", "address", "GPUs")
    width = sum(max(map(len, cells)) + 3 for cells in zip(headings, *rows, strict=True)) - 3
    if width > columns:
        return [
            _whole(line)
            for task, host, address, cards in rows
            for line in (f"{task} on {host}", f"  {address}" + (f", GPUs {cards}" if cards != "-" else ""))
        ]
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim", show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for task_plan, (task, *others) in zip(plan.tasks, rows, strict=True):
        table.add_row(Text(task, _colour(task_plan.id)), *map(Text, others))
    return [table]


def _cards(task: TaskPlan) -> str:
    return ",".join(map(str, task.gpu_indices)) or "-"


def _command(argv: Sequence[str], columns: int | None) -> str:
    """A command as a shell takes it, in lines of `columns` where its words are that short; None: in one."""
    lines = ["  " + shlex.quote(argv[0])]
    for word in map(shlex.quote, argv[1:]):
        if columns and len(lines[-1]) + len(word) + len("  \\") > columns:
            lines[-1] += " \\"
            lines.append("    " + word)
        else:
            lines[-1] += " " + word
    return "\n".join(lines)


def _differing(plan: ClusterPlan) -> str:
    """In which words the commands of the tasks differ: `--job_name and --task_index`."""
    first = plan.tasks[0].argv
    names: dict[str, None] = {}
    for task in plan.tasks[1:]:
        for number, (word, other) in enumerate(zip(first, task.argv, strict=False)):
            if word != other:
                names["interpreter" if number == 0 else word.partition("=")[0]] = None
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _brief_plan_lines(plan: ClusterPlan, marks: _Marks) -> list[RenderableType]:
    jobs: dict[str, list[TaskPlan]] = {}
    for task in plan.tasks:
        jobs.setdefault(task.id.job, []).append(task)
    sizes = [(job, len(tasks)) for job, tasks in jobs.items()]
    lines: list[RenderableType] = [Text.assemble(("run ", "dim"), (plan.run_id, "bold"))]
    for job, tasks in jobs.items():
        counts = sorted({len(task.gpus) for task in tasks})
        cards = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else str(counts[0])
        gpus = f"  {cards} GPU{'' if counts == [1] else 's'} each" if counts != [0] else ""
        where = fold(list(dict.fromkeys(task.host for task in tasks)))
        count = str(len(tasks)).rjust(max(len(str(len(others))) for others in jobs.values()))
        name = _plural(job, len(tasks)).ljust(max(len(_plural(*each)) for each in sizes))
        lines.append(Text.assemble(f"  {count} {name}", (f"  on {where}{gpus}", "dim")))
    return lines + _plan_notes(plan, marks)


def _plan_notes(plan: ClusterPlan, marks: _Marks) -> list[RenderableType]:
    return [Text.assemble((f"{marks.warn} ", "yellow"), printable(note)) for note in plan.notes]


def _tasks_there(job: str, plan: ClusterPlan) -> str:
    """The tasks of a job, else of all jobs, for who named one that is not there: `worker/0 to worker/3`."""
    jobs: dict[str, list[TaskId]] = {}
    for task in plan.tasks:
        jobs.setdefault(task.id.job, []).append(task.id)
    chosen = [jobs[job]] if job in jobs else jobs.values()
    return ", ".join(f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else str(ids[0]) for ids in chosen)


# Failures


@dataclass(frozen=True)
class _Row:
    hosts: list[str]
    folded: str
    cause: str
    hint: str


def _rows(errors: ConnectErrors | LaunchError) -> list[_Row]:
    """Return the failed hosts, those with one and the same cause together, the most frequent cause first."""
    causes: dict[str, dict[str, str]] = {}  # cause -> host -> hint
    for host, failure in errors.failures.items():
        cause, hint = (failure, "") if isinstance(failure, str) else (failure.message, failure.hint)
        causes.setdefault(cause, {})[host] = hint.replace("{host}", host)
    rows = []
    for cause, hints in causes.items():
        hint = next(iter(hints.values()))
        if len({each.replace(host, "") for host, each in hints.items()}) > 1:
            hint = f"{next(iter(hints))}: {hint}"  # the others' differ, a fingerprint for example
        rows.append(_Row(list(hints), fold(hints), cause, hint))
    return sorted(rows, key=lambda row: -len(row.hosts))


def _headline(errors: ConnectErrors | LaunchError) -> str:
    if isinstance(errors, ConnectErrors):
        return "the only host could not be used" if errors.total == 1 else errors.message
    count = len(errors.failures)
    hosts = "1 host could not start its tasks" if count == 1 else f"{count} hosts could not start their tasks"
    return hosts if errors.unconfirmed else f"{hosts}; nothing is left running"


def _unconfirmed(errors: ConnectErrors | LaunchError) -> dict[str, str]:
    return errors.unconfirmed if isinstance(errors, LaunchError) else {}


def _failures_lines(errors: ConnectErrors | LaunchError, marks: _Marks) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=28)
    table.add_column(overflow="fold")
    for row in _rows(errors):
        told = Text(printable(row.cause))
        if row.hint:
            told.append(f"\n{marks.next} {printable(row.hint)}", "cyan")
        table.add_row(Text(printable(row.folded), "bold"), told)
    lines: list[RenderableType] = [
        Text.assemble((f"{marks.bad} ", "bold red"), (_headline(errors), "bold")),
        Padding(table, (0, 0, 0, 2)),
        *_unchecked_lines(_unconfirmed(errors), marks),
    ]
    if errors.hint:
        lines.append(_hint(errors.hint, marks))
    return lines


def _error_lines(err: TflaunchError, marks: _Marks) -> list[RenderableType]:
    bad = (f"{marks.bad} ", "bold red")
    lines: list[RenderableType]
    if isinstance(err, HostfileError):
        count = len(err.problems)
        headline = f"{count} problem{'' if count == 1 else 's'} in the hosts; nothing was contacted"
        lines = [Text.assemble(bad, (headline, "bold"))]
        for problem in err.problems[:PROBLEMS_SHOWN]:
            where = printable(str(problem).removesuffix(problem.message))
            lines.append(Text.assemble("  ", (where, "bold"), printable(problem.message)))
        if more := count - PROBLEMS_SHOWN if count > PROBLEMS_SHOWN else 0:
            lines.append(Text(f"  and {more} more", "dim"))
    else:
        lines = [Text.assemble(bad, printable(err.message))]
    if err.hint:
        lines.append(_hint(err.hint, marks))
    return lines


def _hint(text: str, marks: _Marks) -> Text:
    return _whole(f"  {marks.next} {printable(text)}", "cyan")


def _whole(text: str, style: str = "") -> Text:
    """Text that only the terminal wraps: a path or a command that is to be copied in one piece."""
    return Text(text, style, no_wrap=True)


# The end of a run


def _report_lines(outcome: Outcome, marks: _Marks, hint: str, above: bool) -> list[RenderableType]:
    """`above`: the last lines of the task that failed first stand on the screen, and are not repeated."""
    first = outcome.first_failure
    others = [*_other_failures(outcome, marks), *_unclean_lines(outcome, marks)]
    if not isinstance(first, TaskExit):
        return [*_lost_lines(first, marks), *others, *_last_lines(outcome, marks)]
    where = _log_lines(first, outcome)
    if hint:
        sentence = Table.grid(padding=(0, 1, 0, 0))
        sentence.add_row(Text(f"  {marks.next}", "cyan"), Text(printable(hint), "cyan"))
        where.append(sentence)
    if above:
        return [_last_line(outcome, marks, f": {first.task} on {first.host} {_how(first)}"), *where, *others]
    return [*_first_failure_lines(first, marks), *where, *others, *_last_lines(outcome, marks)]


def _lost_lines(lost: HostLost | None, marks: _Marks) -> list[RenderableType]:
    if lost is None:
        return []
    headline = Text.assemble((f"{marks.bad} ", "bold red"), (f"{lost.host} was lost", "bold"))
    return [headline, Text(f"  {printable(lost.reason)}")]


def _first_failure_lines(first: TaskExit, marks: _Marks) -> list[RenderableType]:
    tail = _tail(first.tail)
    headline = Text.assemble(
        (f"{marks.bad} ", "bold red"),
        (f"{first.task} on {first.host} {_how(first)}", "bold"),
        (f" after {_duration(first.seconds)}" + ("; its last lines:" if tail else ""), "dim"),
    )
    bar = (f"  {marks.bar} ", "red")
    return [headline, *(Text.assemble(bar, line, no_wrap=True) for line in tail)]


def _log_lines(exit: TaskExit, outcome: Outcome) -> list[RenderableType]:
    """Where the task's whole log is: the launcher's copy, then its host's."""
    if not exit.tail:
        return [Text("  it wrote nothing", "dim")]
    there = outcome.host_logs.get(exit.task, "")
    if not outcome.record:
        return [_whole(f"  its whole log: {printable(f'{exit.host}:{there}')}", "dim")] if there else []
    here = f"{outcome.record}/logs/{exit.task.job}-{exit.task.index}.log"
    lines: list[RenderableType] = [_whole(f"  its whole log: {printable(here)}", "dim")]
    if there:
        lines.append(_whole(f"  and on {exit.host}: {printable(there)}", "dim"))
    return lines


# How Python ends when an import fails, and when `-m` names what is not there.
_NO_MODULE = re.compile(r"^\S+: (?:.*: )?No module named '?(\w+(?:\.\w+)*)", re.MULTILINE)


def _advice(exit: TaskExit, interpreter: str | None) -> str:
    """The next step to take after a failure of the likely kinds, or ""."""
    if exit.signal == signal.SIGKILL and not exit.stopped:
        return f"ssh {exit.host} 'dmesg -T | grep -i oom' tells whether memory ran out, if nobody killed it"
    if exit.code and (modules := _NO_MODULE.findall("\n".join(_tail(exit.tail)))):
        return (
            f"{interpreter or 'the interpreter'} on {exit.host} has no {modules[-1]}: name another by `python:` "
            "in the hostfile, or activate its environment in `setup:`; if the module is yours, see --code-dir"
        )
    return ""


def _other_failures(outcome: Outcome, marks: _Marks) -> list[RenderableType]:
    folded: dict[str, list[str]] = {}
    for exit in outcome.exits.values():
        if exit.exit_code and not exit.stopped and exit != outcome.first_failure:
            folded.setdefault(_how(exit), []).append(str(exit.task))
    then = "then " if outcome.first_failure else ""
    return [
        Text.assemble((f"{marks.bad} ", "red"), (f"{then}{_some(tasks, marks)} {how}", "dim"))
        for how, tasks in folded.items()
    ]


def _some(names: Sequence[str], marks: _Marks, most: int = 8) -> str:
    more = f" {marks.more} ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _unclean_lines(outcome: Outcome, marks: _Marks) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for host, left in outcome.survivors.items():
        text = f"{host}: still alive: {printable(_some(left, marks))}"
        lines.append(Text.assemble((f"{marks.bad} ", "bold red"), text))
    lines += _unchecked_lines(outcome.unverified, marks)
    if lines:
        lines.append(_hint(f"tflaunch stop {outcome.run_id}", marks))
    return lines


def _unchecked_lines(hosts: Mapping[str, str], marks: _Marks) -> list[RenderableType]:
    reasons: dict[str, list[str]] = {}
    for host, reason in hosts.items():
        reasons.setdefault(reason, []).append(host)
    return [
        Text.assemble(
            (f"{marks.warn} ", "yellow"),
            f"{fold(names)}: could not check that nothing is left: {printable(reason)}",
        )
        for reason, names in reasons.items()
    ]


def _stopped_lines(run_id: str, hosts: Mapping[str, Finished], marks: _Marks) -> list[RenderableType]:
    by_fate: dict[str, list[str]] = {}
    for host, end in hosts.items():
        if end.survivors:
            fate = f"still alive: {_some(end.survivors, marks)}"
        elif end.killed:
            fate = f"stopped; had to be killed: {_some(end.killed, marks)}"
        else:
            fate = "stopped" if end.found else "nothing of it was there"
        by_fate.setdefault(fate, []).append(host)
    alive = any(end.survivors for end in hosts.values())
    mark = (f"{marks.bad} ", "bold red") if alive else (f"{marks.ok} ", "bold green")
    text = (
        "is not all gone"
        if alive
        else f"is stopped:{_of(len(hosts), 'host')} checked, nothing of it is alive"
    )
    lines: list[RenderableType] = [Text.assemble(mark, (run_id, "bold"), f" {text}")]
    for fate, names in by_fate.items():
        lines.append(Text.assemble("  ", (fold(names), "bold"), f" {printable(fate)}"))
    return lines


def _last_lines(outcome: Outcome, marks: _Marks) -> list[RenderableType]:
    line = _last_line(outcome, marks)
    return [line, _whole(f"  logs: {printable(outcome.record)}/logs", "dim")] if outcome.record else [line]


def _last_line(outcome: Outcome, marks: _Marks, cause: str = "") -> Text:
    took = _duration(outcome.seconds)
    if outcome.status == "succeeded":
        mark, text = (f"{marks.ok} ", "bold green"), f"succeeded:{_of(len(outcome.exits), 'task')} in {took}"
    elif outcome.status == "interrupted":
        # SIGTERM, or `tflaunch stop`: the line in which it was obeyed tells which.
        how = "by Ctrl-C" if outcome.exit_code == 128 + signal.SIGINT else "from outside"
        mark, text = (f"{marks.warn} ", "yellow"), f"stopped {how} after {took}"
    else:
        cause = cause or f", exit code {outcome.exit_code}"
        mark, text = (f"{marks.bad} ", "bold red"), f"failed after {took}{cause}"
    line = Text.assemble(mark, (outcome.run_id, "bold"), f" {printable(text)}")
    if not (outcome.survivors or outcome.unverified):
        line.append("; nothing is left running", "dim")
    return line
