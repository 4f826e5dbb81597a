"""What a program sees of a run, with `--json`.

Stdout holds one JSON object a line, in ASCII.  Each has `event` and `time` (epoch seconds):

    event      fields
    plan       run_id, cluster (job -> addresses), notes, choices (what the program's text has decided, and why),
               left_out (hosts that could not be reached, or were lost -> why; the run does without them),
               tasks: [task, host, address, port (null: not part of the cluster), gpus (UUIDs),
               gpu_labels (the same as people see them: "3", or "3.1" for MIG instance 1 of GPU 3), argv,
               env, setup, cwd (null: where the shipped code is), container (image or ""), mounts]
    code       directory, program (its file there), digest, files, bytes, modules_only (if only the program and the
               modules that it imports are shipped: what the directory is; else ""), ignored and caches (how many
               are left out), secrets: [path, why] (left out), fetched (left out, because fetch brought them),
               links (path -> where to; shipped as links), skipped; with --show-files also shipped: [path,
               kind (file, executable, link, directory), bytes or null, goal or null], left: [path, kind, why]
    shipped    directory, digest, files, bytes (as in code), sent (host -> [contents, bytes] that it lacked)
    phase      name, done, total, note (what the step waits for, or what is missing); one for each change of `done`
    waiting    place (in the queue), behind, free, needed, held: [GPUs, why], lost; one for each change
    note       text            something that happened
    say        text            what tflaunch does now because the user wants it
    warn       text            something that the user should look at
    started    task, host, pid, attempt (0, and more after restarts)
    log        task, host, line; and partial: true while a line is being rewritten (a progress bar)
    gap        task, host, bytes       of the log that cannot be shown
    log_end    task            nothing more comes from it
    exited     task, host, code, signal (name), seconds, stopped (tflaunch had ended it), attempt,
               missing (bytes of its output that come later; 0: all of it came before)
    unreachable  host, reason  the launcher does not reach it; its tasks run on, and their output comes later
    back       host, seconds   the launcher reaches it again, after so long
    lost       host, reason    the launcher has given it up
    failures   exit_code, message, hint, rows: [hosts, folded, cause, hint], unconfirmed (host -> why
               something may still run there)
    error      kind (the class), message, hint, exit_code, problems: [where, line, column, message]
    report     run_id, status, exit_code, seconds, exits: [as in exited], first_failure (a task: as in exited, with
               tail, and error: the line of its log that says why, or ""; a host: as in lost; a time limit: reason,
               tasks, states, stacks (task -> lines); --require-gpu or --stop-on-nan: reason, tasks, states (empty),
               exit_code), unverified (host -> why),
               survivors (host -> processes), GPUs (host -> [text, own] of each GPU that is not free again; own:
               the run itself is on it), record, host_logs (task -> path on its host), restarts, hint
    servers    run_id, cluster (job -> addresses), targets (task -> grpc://address), flags; all servers listen
    detached   run_id, tasks (how many), host (of the coordinator)
    stopped    run_id, hosts (host -> found, killed, survivors, GPUs)
    tensorboard  run_id, url, host, logdir
    fetched    run_id, directory, files, bytes, same (were here already), complete, apart, kept, failed, left,
               hidden, unmatched, there, unreached   (tflaunch.runs.fetch_result.Fetched)

Tasks are written `worker/0`.  Bytes of a log that are not UTF-8 appear as `\\xff`; control sequences stay
in the line.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import TYPE_CHECKING, Any

from tflaunch.console.failure_page import failure_rows, headline, unconfirmed_hosts
from tflaunch.console.log_tail import error_of, stuck_lines, tail_lines
from tflaunch.console.logs import LogReporter, Options
from tflaunch.console.writer import Stream, to_json
from tflaunch.protocol.errors import ConnectErrors, DocumentError, LaunchError, TflaunchError
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit, TimedOut, exit_data, outcome_data
from tflaunch.sessions.log_lines import LineAssembler

if TYPE_CHECKING:
    from tflaunch.code.bundle import Bundle
    from tflaunch.code.shipping import Shipped
    from tflaunch.launch.watcher import Turn
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.fetch_result import Fetched
    from tflaunch.runs.visits import Finished


# These events are shown at once, even while others wait for the output of a task that has ended.
_AT_ONCE = frozenset({"phase", "waiting", "say", "warn", "log_end", "unreachable", "back", "lost"})


class JsonReporter(LogReporter):
    """One JSON object a line on stdout; the module's docstring has the events."""

    def __init__(self, options: Options, stdout: Stream, stderr: Stream) -> None:
        self._heads: dict[TaskId, str] = {}
        self._step: tuple[str, int, int] | None = None
        self._turn: Turn | None = None
        super().__init__(options, stdout, stderr)

    def phase(
        self,
        name: str,
        done: int,
        total: int,
        note: str = "",
        *,
        moved: tuple[int, int] | None = None,
        line: str = "",  # noqa: ARG002
    ) -> None:
        if self._step != (name, done, total):
            self._step = (name, done, total)
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
        first, data = outcome.first_failure, outcome_data(outcome)
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

    def stopped(self, run_id: str, hosts: Mapping[str, Finished]) -> None:
        ends = {host: dataclasses.asdict(end) for host, end in hosts.items()}
        self._event("stopped", run_id=run_id, hosts=ends)

    def tensorboard(self, run_id: str, url: str, host: str, logdir: str) -> None:
        self._event("tensorboard", run_id=run_id, url=url, host=host, logdir=logdir)

    def fetched(self, fetched: Fetched) -> None:
        from tflaunch.console.fetch_page import fetched_data

        self._event("fetched", **fetched_data(fetched))

    def _event(self, event: str, **fields: Any) -> None:
        line = to_json({"event": event, "time": round(time.time(), 6), **fields}) + "\n"
        if event in _AT_ONCE:
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
