"""Everything that a person, or with `--json` a program, sees of a run.

For people: the logs of the tasks go to stdout, everything else to stderr, so that
`tflaunch run ... > train.log` keeps the training's own words only.  Of a task's log only whole lines are
shown, as `worker/0 | line`; nothing in it can act on the terminal.

For programs: stdout holds one JSON object a line, in ASCII.  Each has `event` and `time` (epoch seconds):

    event      fields
    plan       run_id, cluster (job -> addresses), notes, tasks: [task, host, address, port
               (null: not part of the cluster), gpus (UUIDs),
               gpu_labels (the same as people see them: "3", or "3.1" for MIG instance 1 of card 3), argv,
               env, setup, cwd (null: where the shipped code is)]
    phase      name, done, total, note (what is awaited, or missing); one for each step
    waiting    place (in the queue), behind, free, needed, held: [cards, why], lost; one for each change
    note       text            something that happened
    say        text            what tflaunch does now, because it was asked to
    warn       text            something to look at
    started    task, host, pid, attempt (0, and more after restarts)
    log        task, host, line; and partial: true while a line is being rewritten (a progress bar)
    gap        task, host, bytes       of the log that cannot be shown
    log_end    task            nothing more comes from it
    exited     task, host, code, signal (name), seconds, stopped (tflaunch had asked it to end), attempt
    unreachable  host, reason  its tasks run on, and what they print comes later
    back       host, seconds   it was out of reach for so long
    lost       host, reason    for good
    failures   exit_code, message, hint, rows: [hosts, folded, cause, hint], unconfirmed (host -> why it
               could not be told to stop)
    error      kind (the class), message, hint, exit_code, problems: [where, line, column, message]
    report     run_id, status, exit_code, seconds, exits: [as in exited], first_failure (as in exited, with
               tail; or as in lost; or reason, tasks, states, stacks (task -> lines)), unverified (host -> why),
               survivors (host -> processes), cards (host -> [text, own] of each card that is not free again; own:
               the run itself is on it), record, host_logs (task -> path on its host), restarts, hint
    servers    run_id, cluster (job -> addresses), targets (task -> grpc://address), flags; all of them listen
    detached   run_id, tasks (how many), host (whose agent decides from now on)
    stopped    run_id, hosts (host -> found, killed, survivors, cards)
    tensorboard  run_id, url, host, logdir
    fetched    run_id, directory, files, bytes, same (were here already), complete, apart, kept, failed, left,
               unmatched, there, unreached   (tflaunch.fetch.Fetched)

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
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tflaunch.console_pages import (
    PIPE_COLUMNS,
    Pen,
    advice,
    brief_plan_lines,
    detached_lines,
    error_lines,
    failure_rows,
    failures_lines,
    headline,
    note_part,
    of,
    plan_lines,
    report_lines,
    servers_lines,
    stopped_lines,
    stuck_lines,
    tail_lines,
    task_colour,
    tasks_there,
    unconfirmed_hosts,
)
from tflaunch.errors import ConnectErrors, DocumentError, LaunchError, TflaunchError
from tflaunch.fetch_page import fetched_data, fetched_lines
from tflaunch.job import TaskId
from tflaunch.log_lines import LineAssembler, printable
from tflaunch.outcome import HostLost, Outcome, TaskExit, TimedOut, exit_data, how, outcome_data
from tflaunch.plan import ClusterPlan
from tflaunch.supervise import TaskStarted
from tflaunch.times import duration
from tflaunch.writer import Stream, Writer

if TYPE_CHECKING:
    from tflaunch.fetch import Fetched
    from tflaunch.visits import Finished
    from tflaunch.waiting import Turn

_RECENT = 128  # lines of the screen that are remembered: more than are ever looked at
_TICK_S = 0.1  # of the one live line
_SETTLE_S = 1.0  # for a terminal that takes nothing
_PROGRESS_S = (0.5, 8.0)  # a progress bar is shown this often at first, and at last
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


class Reporter(Protocol):
    """What a run tells to whoever watches it.  All but `settle` never block and may be called from a signal handler."""

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
    styles: tuple[type[TextReporter], type[JsonReporter]] | None = None,
) -> Reporter:
    """Return the reporter for a terminal or pipe, or its JSON twin; of these `styles`, if given.

    quiet: show no logs.  only: show the logs of these tasks.  show_host: name the host in each line.
    grep: show only lines with it.  bare: put nothing in front of them.
    """
    options = _Options(quiet, frozenset(only) if only else None, show_host, grep, bare)
    out = Stream(stdout or sys.stdout or io.StringIO())  # None: the shell closed it
    err = Stream(stderr or sys.stderr or io.StringIO())
    text_style, json_style = styles or (TextReporter, JsonReporter)
    return json_style(options, out, err) if json else text_style(options, out, err)


@dataclass(frozen=True)
class _Options:
    quiet: bool
    only: frozenset[TaskId] | None
    show_host: bool
    grep: re.Pattern[str] | None
    bare: bool

    def lines(self, lines: list[str]) -> list[str]:
        """Those that are wanted."""
        return [line for line in lines if self.grep.search(line)] if self.grep else lines

    def shows(self, task: TaskId) -> bool:
        return not self.quiet and (self.only is None or task in self.only)


@dataclass
class _Log:
    """What is known of one task's log by the writer's thread."""

    host: str
    assembler: LineAssembler
    attempt: int = 0
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
        self,
        task: TaskId,
        host: str,
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None = None,
        *,
        attempt: int = 0,
    ) -> None:
        self._writer.put("log", lambda: self._log(task, host, offset, data, written, attempt=attempt))

    def log_end(self, task: TaskId) -> None:
        self._writer.put("log", lambda: self._log_end(task))

    def _take_plan(self, plan: ClusterPlan) -> list[str]:
        """Remember what is needed of the plan; returns what does not fit it."""
        self._interpreters = {task.id: task.argv[0] for task in plan.tasks}
        strange = (self._options.only or frozenset()) - self._interpreters.keys()
        return [f"--only {task}: the plan has {tasks_there(task.job, plan)}" for task in sorted(strange)]

    def _next_step(self, outcome: Outcome) -> str:
        first = outcome.first_failure
        return advice(first, self._interpreters.get(first.task)) if isinstance(first, TaskExit) else ""

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
        self,
        task: TaskId,
        host: str,
        offset: int,
        data: bytes,
        written: Callable[[int], None] | None,
        *,
        attempt: int,
    ) -> None:
        if written is not None:
            self._writer.after(lambda: written(len(data)))
        if self.broken or not self._options.shows(task):
            return
        log = self._logs.get(task)
        if log is not None and log.attempt != attempt:
            self._log_end(task)
            log = None
        if log is None:
            log = self._logs[task] = _Log(host, self._assembler(), attempt)
        if log.offset is not None and offset != log.offset:
            if offset > log.offset:
                self._log_end(task)
                self._show_gap(task, host, offset - log.offset)
            data = data[max(0, log.offset - offset) :]
            offset = max(offset, log.offset)
        log.offset = offset + len(data)
        lines = self._options.lines(log.assembler.feed(data))
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
        if lines := self._options.lines(log.assembler.end()):
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
            if state is not None and self._options.lines([state]):
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
        self._turn: Turn | None = None
        super().__init__(options, stdout, stderr)

    def phase(self, name: str, done: int, total: int, note: str = "") -> None:
        if self._step != (name, done, total):
            self._step = (name, done, total)
            self._event("phase", name=name, done=done, total=total, note=note)

    def settle(self) -> None:
        pass

    def waiting(self, turn: Turn) -> None:
        if turn != self._turn:
            self._turn = turn
            self._event("waiting", **dataclasses.asdict(turn))

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

    def started(self, started: TaskStarted) -> None:
        told = {"host": started.host, "pid": started.pid, "attempt": started.attempt}
        self._event("started", task=str(started.task), **told)

    def exited(self, exit: TaskExit) -> None:
        self._event("exited", **exit_data(exit))

    def unreachable(self, host: str, reason: str) -> None:
        self._event("unreachable", host=host, reason=reason)

    def back(self, host: str, away_s: float) -> None:
        self._event("back", host=host, seconds=round(away_s, 3))

    def lost(self, lost: HostLost) -> None:
        self._event("lost", host=lost.host, reason=lost.reason)

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        rows = [
            {"hosts": row.hosts, "folded": row.folded, "cause": row.cause, "hint": row.hint}
            for row in failure_rows(errors)
        ]
        self._event(
            "failures",
            exit_code=errors.exit_code,
            message=headline(errors),
            hint=errors.hint,
            rows=rows,
            unconfirmed=unconfirmed_hosts(errors),
        )

    def error(self, err: TflaunchError) -> None:
        if isinstance(err, (ConnectErrors, LaunchError)):
            self.failures(err)
            return
        problems = err.problems if isinstance(err, DocumentError) else []
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
            told["first_failure"]["tail"] = tail_lines(first.tail)
        if isinstance(first, TimedOut):
            told["first_failure"]["stacks"] = {
                str(task): lines
                for task in first.tasks
                if task in outcome.exits and (lines := stuck_lines(outcome.exits[task].tail))
            }
        hint = self._next_step(outcome)
        self._event("report", run_id=outcome.run_id, **told, record=outcome.record, hint=hint)

    def servers(self, plan: ClusterPlan) -> None:
        self._event(
            "servers", run_id=plan.run_id, cluster=plan.cluster, targets=plan.targets, flags=plan.flags
        )

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        self._event("detached", run_id=run_id, tasks=tasks, host=host)

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        told = {host: dataclasses.asdict(end) for host, end in hosts.items()}
        self._event("stopped", run_id=run_id, hosts=told)

    def board(self, run_id: str, url: str, host: str, logdir: str) -> None:
        self._event("tensorboard", run_id=run_id, url=url, host=host, logdir=logdir)

    def fetched(self, told: Fetched) -> None:
        self._event("fetched", **fetched_data(told))

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
        self._out = Pen(stdout)
        self._err = Pen(stderr)
        self._prefixes = _Prefixes()
        self._phase: _Phase | None = None
        self._live = stderr.terminal and not self._err.console.is_dumb_terminal
        self._live_shown = False
        self._training = False  # log lines may come at any moment: no live line any more
        self._failed: set[TaskId] = set()  # and have not been started again
        self._turn: Turn | None = None
        # What stands above on the screen that both streams share: lines of a task, or (None) of tflaunch.
        self._one_screen = stdout.same_terminal(stderr)
        self._recent: deque[tuple[TaskId | None, str]] = deque(maxlen=_RECENT)
        super().__init__(options, stdout, stderr)

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
        self._message(Text(f"  {printable(text)}", "dim"))

    def warn(self, text: str) -> None:
        self._notice((f"{self._err.marks.warn} ", "yellow"), printable(text))

    def say(self, text: str) -> None:
        self._notice((printable(text), "bold"))

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:
        self._writer.put("message", lambda: self._show_plan(plan, brief))
        for text in self._take_plan(plan):
            self._message(Text.assemble((f"{self._err.marks.warn} ", "yellow"), text))

    def started(self, started: TaskStarted) -> None:
        self._writer.put("message", lambda: self._prefixes.expect({started.task: started.host}))
        if started.attempt:
            self._failed.discard(started.task)
            marks = self._err.marks
            again = f"{started.task} on {started.host} runs again (attempt {started.attempt + 1})"
            self._message(Text.assemble((f"{marks.ok} ", "green"), printable(again)))

    def exited(self, exit: TaskExit) -> None:
        if exit.stopped or (exit.exit_code and self._failed):
            return  # as it was asked to; or the report tells all that follow the first in one line
        if exit.exit_code:
            self._failed.add(exit.task)
        marks = self._err.marks
        mark, style = (marks.bad, "bold red") if exit.exit_code else (marks.ok, "green")
        ended = how(exit) if exit.exit_code else "finished"
        text = f"{exit.task} on {exit.host} {ended} after {duration(exit.seconds)}"
        self._message(Text.assemble((f"{mark} ", style), printable(text)))

    def unreachable(self, host: str, reason: str) -> None:
        mark = (f"{self._err.marks.warn} ", "yellow")
        self._notice(mark, (f"{host} is out of reach", "bold"), f", its tasks run on: {printable(reason)}")

    def back(self, host: str, away_s: float) -> None:
        self._notice((f"{self._err.marks.ok} ", "green"), f"{host} is back after {duration(away_s)}")

    def lost(self, lost: HostLost) -> None:
        mark = (f"{self._err.marks.bad} ", "bold red")
        self._notice(mark, (f"{lost.host} is lost", "bold"), f": {printable(lost.reason)}")

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

        self._writer.put("message", show)

    def servers(self, plan: ClusterPlan) -> None:
        self._writer.put("message", lambda: self._show_servers(plan))

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        self._ending(*detached_lines(run_id, tasks, host, self._err.marks))

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        self._ending(*stopped_lines(run_id, hosts, self._err.marks))

    def board(self, run_id: str, url: str, host: str, logdir: str) -> None:
        mark, of_it = (f"{self._err.marks.ok} ", "green"), f"  {run_id}, {logdir} on {host}"
        self._notice(mark, "TensorBoard: ", (url, f"bold link {url}"), (printable(of_it), "dim"))

    def fetched(self, told: Fetched) -> None:
        self._ending(*fetched_lines(told, self._err.marks))

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
        if name in ("training", "fetching"):
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
        lacking = f", not {printable(phase.note)}" if phase.note else ""
        self._print(Text.assemble((f"{self._err.marks.warn} ", "yellow"), text, (took, "dim"), lacking))

    def _show_lines(self, task: TaskId, host: str, lines: list[str], partial: bool = False) -> None:  # noqa: ARG002
        self._training = True
        self._wipe()
        if self._one_screen:
            self._recent.extend(zip(itertools.repeat(task), lines[-_RECENT:]))
        prefix = "" if self._options.bare else self._prefix(task, host)
        self._writer.out(prefix + ("\n" + prefix).join(lines) + "\n")

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        more = self._out.marks.more
        self._show_lines(task, host, [f"{more} {missing:,} bytes are missing here {more}"])

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
