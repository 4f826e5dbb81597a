"""What `tflaunch ps` and `status` show: tables as wide as the terminal, whole in a pipe.

No state is shown by colour alone: each has its mark and its word.  No row of a table wraps.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from tflaunch.console.pen import BAD, BUSY, GOOD, WARN, Marks, Sheet
from tflaunch.console.plan_page import without
from tflaunch.console.safe_text import Text, hung, paragraph, unstacked
from tflaunch.console.text_table import Column, table
from tflaunch.documents.log_tail import is_last, lines_to_search, tail_lines
from tflaunch.ends.interpret import meaning
from tflaunch.ends.known_end import KnownEnd
from tflaunch.ends.last_error import last_error
from tflaunch.hosts import fold
from tflaunch.protocol.job import TaskId, log_name
from tflaunch.runs.listing import Listing
from tflaunch.runs.progress import Progress
from tflaunch.runs.run_states import HostShare, RunState, TaskState
from tflaunch.text.numbers import amount, counted
from tflaunch.text.safe import one_line
from tflaunch.text.times import age, duration

TAIL_LINES = 10
_LEAST_RUN, _LEAST_COMMAND = 16, 20  # columns of a terminal
_RUN_STYLES = {"starting": BUSY, "running": BUSY, "succeeded": GOOD, "failed": BAD, "lost": BAD}


def run_lines(found: Listing, sheet: Sheet, now: float) -> list[Text]:
    """The runs that were found, a row for each, and what is wrong with them."""
    runs = found.runs
    took = [_took(run) for run in runs]
    columns = [
        Column("run", [Text(run.run_id, "bold") for run in runs], shrink=1, least=_LEAST_RUN),
        Column("state", [_listed_state(run, sheet.marks) for run in runs]),
        Column("tasks", [Text(_count(run)) for run in runs], right=True),
        *_progress_column([run.progress for run in runs]),
        Column("hosts", [Text(fold(run.hosts)) for run in runs], drop=3, shrink=2),
        Column(
            "GPUs",
            [Text(str(run.gpus or "-")) for run in runs],
            right=True,
            drop=4 if any(run.gpus for run in runs) else 6,
        ),
        Column(
            "started", [Text(f"{age(now - run.started)} ago" if run.started else "-") for run in runs], drop=1
        ),
        *([Column("took", [Text(each) for each in took], right=True, drop=2)] if any(took) else []),
        Column(
            "command",
            [Text(_without_name(run.command) or "-", "dim") for run in runs],
            drop=5,
            shrink=3,
            least=_LEAST_COMMAND,
        ),
    ]
    lines = table(columns, sheet.columns, sheet.marks.more) if runs else []
    for run in runs:
        if failed := run.first_failure if run.alive else None:
            text = f"{run.run_id}: {_sentence(failed)}"
            lines += unstacked(_told(sheet, Text.assemble((f"{sheet.marks.warn} ", WARN), text)))
        for trouble in run.troubles:
            text = f"{run.run_id}: {trouble}"
            lines += unstacked(_told(sheet, Text.assemble((f"{sheet.marks.warn} ", WARN), text)))
    return lines


def _progress_column(found: Sequence[Progress | None]) -> list[Column]:
    """How far each is; none where no log tells it."""
    if not any(found):
        return []

    def shown(progress: Progress | None) -> Text:
        if progress is None:
            return Text("-")
        left = "" if progress.left_s is None else f", {age(progress.left_s)} left"
        return Text(one_line(f"{progress}{left}"))

    return [Column("at", [shown(each) for each in found], drop=2)]


def _count(run: RunState) -> str:
    """How many of its tasks run, of how many; once it is over, how many have ended."""
    return f"{run.running if run.alive else run.over}/{len(run.tasks)}" if run.tasks else "-"


def _took(run: RunState) -> str:
    return duration(run.seconds) if run.seconds is not None else ""


def _told(sheet: Sheet, line: Text) -> Text:
    """A sentence, broken between words where the terminal is too narrow for it."""
    return hung(line, sheet.columns) if sheet.columns is not None else line


def _run_state(run: RunState, marks: Marks) -> Text:
    style = _RUN_STYLES.get(run.state, "dim")
    mark = {"starting": marks.wait, "running": marks.live, "succeeded": marks.ok, "failed": marks.bad}
    shown = mark.get(run.state, "?" if run.state in ("lost", "unknown") else marks.dot)
    return Text(f"{shown} {run.state}", style)


def _listed_state(run: RunState, marks: Marks) -> Text:
    return _run_state(run, marks).append(", detached" if run.alive and run.detached else "", "dim")


def _without_name(command: Sequence[str]) -> str:
    """The command line without the `tflaunch` that all of them begin with."""
    words = command_words(command)
    return words.removeprefix("tflaunch ")


def command_words(command: Sequence[str]) -> str:
    """Return the launcher's command line, quoted for a shell, with tflaunch's name in place of its path."""
    return shlex.join([command[0].rpartition("/")[2], *command[1:]]) if command else ""


def status_lines(run: RunState, holder: str, sheet: Sheet, now: float) -> list[Text]:
    """One run: its state, what failed first, its tasks, its hosts.

    holder: what keeps the run alive, a launcher for example; "" if nothing.
    """
    marks = sheet.marks
    count = f"{run.running} of {len(run.tasks)} tasks run" if run.alive else counted(len(run.tasks), "task")
    count = "it waits for its slots" if run.state == "waiting" else count
    begun = f", started {age(now - run.started)} ago" if run.started else ""
    over = f", ended {age(now - run.ended)} ago" if run.ended and not run.alive else ""
    took = f", took {duration(run.seconds)}" if run.seconds is not None else ""
    told = (f"  {count}{begun}{over}{took}", "dim")
    lines = [_told(sheet, Text.assemble((run.run_id, "bold"), "  ", _run_state(run, marks), told))]
    if run.command:
        who = f"  {run.launcher}: " if run.launcher else "  "
        lines.append(_told(sheet, Text(who + command_words(run.command), "dim")))
    lines += [_told(sheet, Text(f"  {holder}", "dim"))] if holder else []
    if run.stopped_by:
        lines.append(
            _told(
                sheet, Text.assemble((f"{marks.warn} ", WARN), f"stopped by {run.stopped_by}: tflaunch stop")
            )
        )
    lost = (run.outcome.get("first_failure") or {}) if not run.alive else {}
    if "reason" in lost:
        fate = "taken back" if "tasks" in lost else "lost"
        reason = f"{lost['host']} was {fate}: {lost['reason']}" if "host" in lost else str(lost["reason"])
        lines += [Text(), _told(sheet, paragraph((f"{marks.bad} ", BAD), (reason, "bold")))]
    elif failed := run.first_failure:
        lines += [Text(), *_failure_lines(failed, run, sheet)]
    lines += _held_lines(run, marks, sheet.columns)
    lines += [Text(), *_task_table(run, sheet, now)] if run.tasks else []
    lines += _restarts(run, sheet)
    lines += [Text(), *_host_table(run, sheet)] if run.shares else []
    for trouble in run.troubles:
        lines.append(_told(sheet, Text.assemble((f"{marks.bad} ", BAD), trouble)))
    for warning in [*without(run.left_out, then=True), *([run.moved] if run.moved else [])]:
        lines.append(_told(sheet, paragraph((f"{marks.warn} ", WARN), warning)))
    return lines


def _held_lines(run: RunState, marks: Marks, columns: int | None) -> list[Text]:
    """What is wrong with a run that lives, as its watchdog has told the hosts, and what that cannot see."""
    held = run.holds or {}
    sentences, blind = held.get("sentences", ()), held.get("blind", ())
    if not (run.alive and (sentences or blind)):
        return []
    lines = [Text()]
    for text in sentences:
        lines.append(Text.assemble((f"{marks.warn} ", WARN), one_line(text)))
    for text in blind:
        lines.append(Text(f"  tflaunch cannot see {one_line(text)}", "dim"))
    if columns is not None:
        lines = [hung(line, columns) for line in lines]
    return [*lines, Text(f"  this has been so for {age(held['age_s'])}", "dim")]


def _failure_lines(failed: TaskState, run: RunState, sheet: Sheet) -> list[Text]:
    marks, tail = sheet.marks, tail_lines(_tail(failed))[-TAIL_LINES:]
    also = sum(task.failed for task in run.tasks) - 1
    more = f", then {also} more" if also else ""
    text = _sentence(failed) + more + ("; its last lines:" if tail else "")
    first = _told(sheet, Text.assemble((f"{marks.bad} ", BAD), (text, "bold")))
    error = one_line(last_error(failed.tail))
    why = [_told(sheet, Text(f"  {error}", "bold"))] if error and not is_last(error, tail) else []
    lines = [first, *why, *(Text.assemble((f"  {marks.bar} ", BAD), line) for line in tail)]
    if hint := hint_of(failed, run.tasks):
        lines.append(_told(sheet, paragraph(f"  {marks.next} {hint}", style="cyan")))
    return lines


def hint_of(failed: TaskState | None, tasks: Iterable[TaskState] = ()) -> str:
    """Return the next step to take after that failure; "" if no advice is known for it.

    tasks: those of the run, whose hosts' facts are compared.
    """
    if failed is None or failed.exit_code in (None, 0):
        return ""
    others = {each.host: each.facts for each in tasks if each.facts and each.host != failed.host}
    end = KnownEnd(
        failed.task,
        failed.host,
        failed.code,
        "" if failed.signal is None else failed.signal_name or f"signal {failed.signal}",
        failed.seconds or 0.0,
        failed.facts,
        others=others,
    )
    return meaning(lines_to_search(_tail(failed)), end).text


def _tail(failed: TaskState) -> bytes:
    return failed.tail.encode("utf-8", "backslashreplace")


def _sentence(failed: TaskState) -> str:
    after = f" after {duration(failed.seconds)}" if failed.seconds is not None else ""
    return f"{failed.task} on {failed.host} {_fate_of(failed)}{after}"


def _fate_of(task: TaskState) -> str:
    if task.signal is not None:
        return f"was killed by {task.signal_name or f'signal {task.signal}'}"
    return f"exited with code {task.code}"


def _task_state(task: TaskState, marks: Marks) -> Text:
    if task.failed:
        how = (
            task.signal_name or f"signal {task.signal}"
            if task.signal is not None
            else f"exit code {task.code}"
        )
        return Text(f"{marks.bad} {how}", BAD)
    if task.state == "exited":
        return Text(f"{marks.dot} stopped", "dim") if task.stopped else Text(f"{marks.ok} finished", GOOD)
    if task.state == "running":
        return Text(f"{marks.live} running", BUSY)
    if task.state in ("lost", "unknown"):
        return Text(f"? {task.state}", BAD if task.state == "lost" else "dim")
    return Text(f"{marks.wait} {task.state}")


def _task_table(run: RunState, sheet: Sheet, now: float) -> list[Text]:
    tasks = run.tasks

    def lasted(task: TaskState) -> str:
        seconds = now - task.since if task.since is not None else task.seconds
        return "-" if seconds is None else age(seconds)

    def gpus(task: TaskState) -> str:
        return ",".join(task.gpu_labels) or str(len(task.gpus) or "-")

    restarted = any(task.attempts > 1 for task in tasks)
    columns = [
        Column("task", [Text(task.task, "bold") for task in tasks]),
        Column("host", [Text(task.host) for task in tasks]),
        Column("state", [_task_state(task, sheet.marks) for task in tasks]),
        Column("for", [Text(lasted(task)) for task in tasks], right=True),
        *_progress_column([task.progress for task in tasks]),
        *(
            [Column("attempts", [Text(str(task.attempts)) for task in tasks], right=True)]
            if restarted
            else []
        ),
        Column("port", [Text(str(task.port or "-")) for task in tasks], right=True, drop=3),
        Column("GPUs", [Text(gpus(task)) for task in tasks], right=True, drop=2),
        *(
            [Column("CPUs", [Text(task.cpus or "any") for task in tasks], right=True, drop=3)]
            if any(task.cpus for task in tasks)
            else []
        ),
        Column("pid", [Text(str(task.pid or "-")) for task in tasks], right=True, drop=5),
        Column("log", [Text(amount(task.log_bytes)) for task in tasks], right=True, drop=4),
        Column(
            "last output",
            [Text(f"{age(now - task.output)} ago" if task.output else "none") for task in tasks],
            right=True,
            drop=1,
        ),
    ]
    return table(columns, sheet.columns, sheet.marks.more)


def _restarts(run: RunState, sheet: Sheet) -> list[Text]:
    """How the earlier attempts of restarted tasks ended."""
    ends = [end for task in run.tasks for end in task.ends]
    if not ends:
        return []
    columns = [
        Column("restarted", [Text(end.task, "bold") for end in ends]),
        Column("host", [Text(end.host) for end in ends]),
        Column("attempt", [Text(str(end.attempts)) for end in ends], right=True),
        Column("ended", [_task_state(end, sheet.marks) for end in ends]),
        Column("after", [Text("-" if end.seconds is None else age(end.seconds)) for end in ends], right=True),
        Column("log", [Text(log_name(TaskId.parse(end.task), end.attempts - 1)) for end in ends], shrink=1),
    ]
    return [Text(), *table(columns, sheet.columns, sheet.marks.more)]


_HOST_WORDS = {
    "ended": "ended",
    "strays": "dead, but processes of the run live on",
    "lost": "dead; it did not say how its part ended",
    "elsewhere": "on a machine that was not contacted",
    "unreachable": "cannot be reached",
    "unasked": "was not contacted",
    "gone": "nothing of the run is there",
}


def _agent(share: HostShare) -> str:
    if share.state == "lost" and share.restarted:
        return "gone: the host was restarted"
    return (
        f"alive, pid {share.agent}" if share.state == "alive" else _HOST_WORDS.get(share.state, share.state)
    )


def _host_table(run: RunState, sheet: Sheet) -> list[Text]:
    shares = run.shares
    columns = [
        Column("host", [Text(share.host, "bold") for share in shares]),
        Column("agent", [Text(_agent(share)) for share in shares]),
        Column(
            "logs",
            [Text(share.directory + "/logs" if share.directory else "-") for share in shares],
        ),
    ]
    return table(columns, None, sheet.marks.more)  # a path is not cut: it is there to be copied
