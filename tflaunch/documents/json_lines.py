"""What a program sees of a run, with `--json`.

Stdout holds one JSON object a line, in ASCII.  Each has `event` and `time` (epoch seconds), and the fields that
tflaunch.documents.json_events declares.  `--dry-run --json` prints one object instead: see `one_document`.

Tasks are written `worker/0`.  Bytes of a log that are not UTF-8 appear as `\\xff`; control sequences stay
in the line.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any

from tflaunch.documents.failed_hosts import headline, unconfirmed_hosts
from tflaunch.documents.json_events import AT_ONCE
from tflaunch.documents.log_keeping import LogReporter, Options
from tflaunch.documents.log_tail import error_of, stuck_lines, tail_lines
from tflaunch.documents.writer import Stream, to_json
from tflaunch.hosts import fold
from tflaunch.protocol.errors import ConnectErrors, DocumentError, LaunchError, TflaunchError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import (
    HostLost,
    Outcome,
    TaskExit,
    TimedOut,
    exit_code_of,
    exit_data,
    outcome_data,
)
from tflaunch.sessions.watcher import SLOTS
from tflaunch.ssh.refused_keys import together
from tflaunch.text.lines import LineAssembler

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.launch.run_watcher import Turn
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.fetch_result import Fetched
    from tflaunch.runs.visits import Finished


def one_document(events: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """What a dry run prints: its plan, or why there is none, and what else was said."""
    main: dict[str, Any] = {"event": "nothing"}
    for name, fields in events:
        if name in ("plan", "error", "failures"):
            main = {"event": name, **fields}
    said = {name: [f["text"] for event, f in events if event == name] for name in ("note", "say", "warn")}
    code = next((fields for name, fields in events if name == "code"), None)
    return {
        **main,
        "time": round(time.time(), 6),
        "notes": [*main.get("notes", ()), *said["note"], *said["say"]],
        "warnings": said["warn"],
        "code": code,
    }


class JsonReporter(LogReporter):
    """One JSON object a line on stdout; tflaunch.documents.json_events has the events."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        self._heads: dict[TaskId, str] = {}
        self._step: tuple[str, int, int, str] | None = None
        self._turn: Turn | None = None
        self._events: list[tuple[str, dict[str, Any]]] | None = [] if options.one_document else None
        super().__init__(options, stdout, stderr)

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
        why = line if name == SLOTS else ""
        if self._step != (name, done, total, why):
            self._step = (name, done, total, why)
            note = note or why
            size = dict(zip(("bytes", "total_bytes"), moved, strict=True)) if moved else {}
            self._event("phase", name=name, done=done, total=total, note=note, **size)

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

    def slowed(self, text: str) -> None:
        self.warn(text)

    def warn_once(self, text: str) -> None:
        self.warn(text)

    def say(self, text: str) -> None:
        self._event("say", text=text)

    @property
    def can_ask(self) -> bool:
        return False

    def ask(self, question: str) -> None:
        pass

    def end_question(self, typed: bool) -> None:
        pass

    def code(self, data: Mapping[str, Any]) -> None:
        super().code(data)
        self._event("code", **data)

    def files(self, bundle: Bundle) -> None:
        pass

    def shipped(self, bundle: Bundle, shipped: Shipped) -> None:
        code = {"directory": bundle.directory, "digest": bundle.digest}
        self._event("shipped", **code, files=bundle.files, bytes=bundle.size, sent=shipped.sent)

    def plan(self, plan: ClusterPlan, *, brief: bool = False) -> None:  # noqa: ARG002  a program skips what it likes
        self._event("plan", **plan.to_json())
        for text in self._take_plan(plan):
            self.warn(text)

    def log_end(self, task: TaskId) -> None:
        super().log_end(task)
        self._event("log_end", task=str(task))

    def joined(self, tasks: int, since_s: float, output_s: float | None) -> None:
        pass

    def started(self, started: TaskStarted) -> None:
        where = {"host": started.host, "pid": started.pid, "attempt": started.attempt}
        self._event("started", task=str(started.task), **where)

    def exited(self, exit: TaskExit) -> None:
        at = round(time.time(), 6)

        def show(missing: int) -> None:
            event = {"event": "exited", "time": at, **exit_data(exit), "missing": missing}
            self._writer.out(to_json(event) + "\n")

        self._behind_output(exit, show)

    def unreachable(self, host: str, reason: str) -> None:
        self._event("unreachable", host=host, reason=reason)

    def back(self, host: str, away_s: float) -> None:
        self._event("back", host=host, seconds=round(away_s, 3))

    def lost(self, lost: HostLost) -> None:
        self._event("lost", host=lost.host, reason=lost.reason)

    def failures(self, errors: ConnectErrors | LaunchError) -> None:
        rows = [
            {
                "hosts": row.hosts,
                "folded": fold(row.hosts),
                "cause": row.cause,
                "hint": row.whole_hint,
                "lines": row.lines,
            }
            for row in together(errors.failures)
        ]
        self._event(
            "failures",
            exit_code=errors.exit_code,
            exit_code_of="tflaunch",
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
            exit_code_of="tflaunch",
            problems=[vars(problem) for problem in problems],
        )

    def report(self, outcome: Outcome) -> None:
        first, data = outcome.first_failure, outcome_data(outcome)
        data["exit_code_of"] = exit_code_of(outcome)
        if isinstance(first, TaskExit):
            data["first_failure"]["tail"] = tail_lines(first.tail)
            data["first_failure"]["error"] = error_of(first, outcome.record)
        if isinstance(first, TimedOut):
            data["first_failure"]["stacks"] = {
                str(task): lines
                for task in first.tasks
                if task in outcome.exits and (lines := stuck_lines(outcome.exits[task].tail))
            }
        hint = self._next_step(outcome)
        self._event("report", run_id=outcome.run_id, **data, record=outcome.record, hint=hint)

    def servers(self, plan: ClusterPlan) -> None:
        self._event(
            "servers", run_id=plan.run_id, cluster=plan.cluster, targets=plan.targets, flags=plan.flags
        )

    def detached(self, run_id: str, tasks: int, host: str) -> None:
        self._event("detached", run_id=run_id, tasks=tasks, host=host)

    def leaves(self, run_id: str, tasks: int, leave: Callable[[], None]) -> None:
        self._event("detached", run_id=run_id, tasks=tasks, host="")
        self._writer.put("message", lambda: self._writer.after(lambda: self._go(leave)))

    def _go(self, leave: Callable[[], None]) -> None:
        leave()
        self._writer.stdout.look_again()

    def handed_over(self, run_id: str, tasks: int, host: str) -> None:
        self.detached(run_id, tasks, host)

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        ends = {host: dataclasses.asdict(end) for host, end in hosts.items()}
        self._event("stopped", run_id=run_id, hosts=ends)

    def tensorboard(self, run_id: str, url: str, host: str, logdir: str) -> None:
        self._event("tensorboard", run_id=run_id, url=url, host=host, logdir=logdir)

    def fetched(self, fetched: Fetched) -> None:
        unreached = {host: error.message for host, error in fetched.unreached.items()}
        data = {**dataclasses.asdict(fetched), "unreached": unreached, "complete": fetched.complete}
        self._event("fetched", **data)

    def close(self, wait: bool = True) -> None:
        if self._events is not None:
            line = to_json(one_document(self._events)) + "\n"
            self._events = None
            self._writer.put("message", lambda: self._writer.out(line))
        super().close(wait)

    def _event(self, event: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.append((event, fields))
            return
        line = to_json({"event": event, "time": round(time.time(), 6), **fields}) + "\n"
        if event in AT_ONCE:
            self._writer.put("message", lambda: self._writer.out(line))
        else:
            self._in_turn(lambda: self._writer.out(line), last=event == "report")

    def _assembler(self) -> LineAssembler:
        return LineAssembler(raw=True)

    def _show_lines(self, task: TaskId, host: str, lines: str, partial: bool = False) -> None:
        # Not json.dumps, for speed: this is the only event that comes a hundred thousand times a second.
        head = self._heads.get(task)
        if head is None:
            head = self._heads[task] = f', "task": {quoted(str(task))}, "host": {quoted(host)}, "line": '
        head = f'{{"event": "log", "time": {time.time():.6f}' + head
        end = ', "partial": true}\n' if partial else "}\n"
        self._writer.out_lines("", head + (end + head).join(map(quoted, lines[:-1].split("\n"))) + end)

    def _show_gap(self, task: TaskId, host: str, missing: int) -> None:
        event = {"event": "gap", "time": time.time(), "task": str(task), "host": host, "bytes": missing}
        self._writer.out(to_json(event) + "\n")
