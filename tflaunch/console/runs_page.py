"""What `tflaunch ps`, `status` and `clean` show to people: tables as wide as the terminal, whole in a pipe.

No state is told by colour alone: each has its mark and its word.  No row of a table is broken.
"""

from __future__ import annotations

import contextlib
import functools
import io
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tflaunch.console.lines import Text, paragraph
from tflaunch.console.run_pages import WORDS, Marks, Pen, is_last, tail_lines, without
from tflaunch.console.writer import Stream, to_json, write_result
from tflaunch.diagnosis import last_words
from tflaunch.diagnosis.last_error import last_error
from tflaunch.hosts import fold
from tflaunch.inputs.sizes import amount
from tflaunch.inputs.times import age, duration
from tflaunch.protocol.errors import ConnectError
from tflaunch.protocol.job import TaskId, log_name
from tflaunch.runs.clean import HERE, Kept, Place, Selection, named, titles
from tflaunch.runs.states import Listing, RunState, Share, TaskState
from tflaunch.sessions.log_lines import one_line

CUT = 12  # what is left at least of the last column of a table, while there is one to leave out
ROWS = 30  # of what is to be removed; --json has all
_OK, _BUSY, _BAD, _WARN = "#009e73", "#56b4e9", "bold #d55e00", "#e69f00"  # Okabe and Ito's
TAIL_LINES = 10


class Screen:
    """stdout, for a result that is shown at once."""

    def __init__(self) -> None:
        stream = Stream(sys.stdout or io.StringIO())
        self._pen = Pen(stream)
        self.marks = self._pen.marks
        self.columns = self._pen.columns or None  # None: a pipe, which takes lines of any length

    def show(self, lines: Sequence[Text]) -> None:
        """Print these lines."""
        for line in lines:
            line.no_wrap = True
        write_result("".join(map(self._pen.render, lines)))

    def write_json(self, value: Any) -> None:
        """Print it in one line."""
        write_result(to_json(value) + "\n")

    def write_rows(self, rows: Iterable[str]) -> None:
        """Print each in a line of its own, for programs."""
        write_result("".join(f"{one_line(row)}\n" for row in rows))


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Inside, `| head` may go away when it has what it wanted."""
    with contextlib.suppress(BrokenPipeError):
        yield


@dataclass(frozen=True)
class Column:
    """A column of a table; of those that may be left out the one with the highest `rank` goes first."""

    heading: str
    cells: Sequence[Text]
    right: bool = False
    rank: int = 0

    @functools.cached_property  # a host may tell of thousands of runs: each row asks for it
    def width(self) -> int:
        return max([len(self.heading), *(cell.cell_len for cell in self.cells)])


def table(columns: Sequence[Column], width: int | None, more: str) -> list[Text]:
    """The lines of a table; where there is no room the last column is cut, but first some are left out."""
    shown = [column for column in columns if any(cell.plain for cell in column.cells)]
    while width is not None:
        least = sum(each.width + 2 for each in shown[:-1]) + min(shown[-1].width, CUT)
        if least <= width:
            break
        ranked = max(shown, key=lambda column: column.rank)
        if not ranked.rank:
            break
        shown.remove(ranked)
    lines = []
    for number in range(-1, max((len(column.cells) for column in shown), default=0)):
        line = Text()
        for column in shown:
            cell = Text(column.heading, "dim") if number < 0 else column.cells[number]
            gap = " " * (column.width - cell.cell_len)
            line.append_text(Text(gap) + cell if column.right else cell + Text(gap)).append("  ")
        line.rstrip()
        lines.append(cut(line, width, more))
    return lines


def cut(line: Text, width: int | None, more: str) -> Text:
    """The line, not longer than `width`."""
    if width is not None and line.cell_len > width:
        line.truncate(width - len(more), overflow="crop")
        line.append(more, "dim")
    return line


# What is removed


def selection_lines(known: Sequence[Place], chosen: Selection, screen: Screen) -> list[Text]:
    """Which runs are to go, the one longest unused first, and from where."""
    spots: dict[str, list[tuple[Place, Kept]]] = {}
    for number, runs in chosen.goes.items():
        for kept in known[number].runs:
            if kept.run_id in runs:
                spots.setdefault(kept.run_id, []).append((known[number], kept))
    oldest_first = sorted(spots, key=lambda run: -min(kept.idle_s for _, kept in spots[run]))
    rows = [spots[run] for run in oldest_first[:ROWS]]
    columns = [
        Column("run", [Text(parts[0][1].run_id, "bold") for parts in rows]),
        Column("unused", [Text(age(min(kept.idle_s for _, kept in parts))) for parts in rows], right=True),
        Column("size", [Text(amount(sum(kept.bytes for _, kept in parts))) for parts in rows], right=True),
        Column("on", [Text(titles([place for place, _ in parts]), "dim") for parts in rows]),
    ]
    lines = table(columns, screen.columns, screen.marks.more) if rows else []
    if len(spots) > ROWS:
        lines.append(Text(f"{screen.marks.more} and {len(spots) - ROWS} more; --json has them all", "dim"))
    return lines


def cleaned_lines(document: Mapping[str, Any], screen: Screen) -> list[Text]:
    """What was removed from each place, and what stays; of `clean_document`."""
    marks, dry_run = screen.marks, document["dry_run"]
    folded: list[tuple[tuple[Text, Text], list[str]]] = []
    troubles = []
    for place in document["places"]:
        names = place["hosts"] or [HERE]
        title, fate = named(names), _fate(place, dry_run, marks)
        alike = next((others for other, others in folded if other == fate), None)
        if alike is None:
            folded.append((fate, list(names)))
        else:
            alike += names
        troubles += [f"{title}: {run}: {why}" for run, why in place["failed"].items()]
        troubles += [f"{title}: not measured: {each}" for each in place["unread"]]
        if over := place["too_large_bytes"]:
            troubles.append(f"{title}: still {amount(over)} more than --max-size; nothing else may go")
    troubles += [f"{run} stays: {why}" for run, why in document["stays"].items()]
    lines = [Text.assemble(mark, (named(names), "bold"), text) for (mark, text), names in folded]
    lines += [paragraph((f"{marks.warn} ", _WARN), trouble) for trouble in troubles]
    if dry_run:
        lines.append(Text("--dry-run: nothing was removed", "dim"))
    return lines


def _fate(place: Mapping[str, Any], dry_run: bool, marks: Marks) -> tuple[Text, Text]:
    """What has become of a place: its mark, and what follows its name."""
    removed, stay = len(place["removed"]), place["stay"]
    gone = [f"{removed} run{'' if removed == 1 else 's'}"] if removed else []
    gone += ["shipped code"] if place["code"]["files"] else []
    if made := place["environments"]["files"]:
        gone.append("a virtual environment" if made == 1 else f"{made} virtual environments")
    gone += ["what an interrupted clean left"] if place["rest_bytes"] else []
    text = f": {' and '.join(gone)} {'would go' if dry_run else 'removed'}, {amount(place['freed_bytes'])}"
    text = text if gone else ": nothing to remove"
    if stay["runs"]:
        text += f"; {stay['runs']} stay{'s' if stay['runs'] == 1 else ''}, {amount(stay['bytes'])}"
    if place["failed"]:
        return Text(f"{marks.bad} ", _BAD), Text(text)
    done = gone and not dry_run
    return Text(f"{marks.ok} ", _OK) if done else Text(f"{marks.dot} ", "dim"), Text(
        text, "" if gone else "dim"
    )


# Runs and their tasks

_RUN_STYLES = {"starting": _BUSY, "running": _BUSY, "succeeded": _OK, "failed": _BAD, "lost": _BAD}


def run_lines(found: Listing, screen: Screen, now: float) -> list[Text]:
    """A table of runs."""
    runs = found.runs
    columns = [
        Column("run", [Text(run.run_id, "bold") for run in runs]),
        Column("state", [_run_state(run, screen.marks) for run in runs]),
        Column(
            "tasks",
            [Text(f"{run.running}/{len(run.tasks)}" if run.tasks else "-") for run in runs],
            right=True,
        ),
        Column("hosts", [Text(fold(run.hosts)) for run in runs], rank=2),
        Column("GPUs", [Text(str(run.gpus or "-")) for run in runs], right=True, rank=4),
        Column(
            "started", [Text(f"{age(now - run.started)} ago" if run.started else "-") for run in runs], rank=3
        ),
        Column("command", [Text(command_words(run.command) or "-", "dim") for run in runs], rank=1),
    ]
    lines = table(columns, screen.columns, screen.marks.more) if runs else []
    for run in runs:
        if failed := run.first_failure if run.alive else None:
            lines.append(
                Text.assemble((f"{screen.marks.warn} ", _WARN), f"{run.run_id}: {_sentence(failed)}")
            )
        for trouble in run.troubles:
            lines.append(Text.assemble((f"{screen.marks.warn} ", _WARN), f"{run.run_id}: {trouble}"))
    return lines


def _run_state(run: RunState, marks: Marks) -> Text:
    style = _RUN_STYLES.get(run.state, "dim")
    mark = {"starting": marks.wait, "running": marks.live, "succeeded": marks.ok, "failed": marks.bad}
    return Text(
        f"{mark.get(run.state, '?' if run.state in ('lost', 'unknown') else marks.dot)} {run.state}", style
    )


def command_words(command: Sequence[str]) -> str:
    """The launcher's command line, for a shell; the program by its name alone."""
    return shlex.join([command[0].rpartition("/")[2], *command[1:]]) if command else ""


def status_lines(run: RunState, holder: str, screen: Screen, now: float) -> list[Text]:
    """One run whole: how it is, what failed first, its tasks, its hosts; `holder` is what it lives by."""
    marks = screen.marks
    count = f"{run.running} of {len(run.tasks)} tasks run" if run.alive else f"{len(run.tasks)} tasks"
    begun = f", started {age(now - run.started)} ago" if run.started else ""
    over = f", ended {age(now - run.ended)} ago" if run.ended and not run.alive else ""
    lines = [
        Text.assemble((run.run_id, "bold"), "  ", _run_state(run, marks), (f"  {count}{begun}{over}", "dim"))
    ]
    if run.command:
        who = f"  {run.launcher}: " if run.launcher else "  "
        lines.append(Text(who + command_words(run.command), "dim"))
    lines += [Text(f"  {holder}", "dim")] if holder else []
    lost = (run.outcome.get("first_failure") or {}) if not run.alive else {}
    if "reason" in lost:
        told = f"{lost['host']} was lost: {lost['reason']}" if "host" in lost else str(lost["reason"])
        lines += [Text(), paragraph((f"{marks.bad} ", _BAD), (told, "bold"))]
    elif failed := run.first_failure:
        lines += [Text(), *_failure_lines(failed, run, marks)]
    lines += [Text(), *_task_table(run, screen, now)] if run.tasks else []
    lines += _restarts(run, screen)
    lines += [Text(), *_host_table(run, screen)]
    for trouble in run.troubles:
        lines.append(Text.assemble((f"{marks.bad} ", _BAD), trouble))
    for told in [*without(run.left_out), *([run.moved] if run.moved else [])]:
        lines.append(paragraph((f"{marks.warn} ", _WARN), told))
    return lines


def _failure_lines(failed: TaskState, run: RunState, marks: Marks) -> list[Text]:
    tail = _lines_of(failed)[-TAIL_LINES:]
    also = sum(task.failed for task in run.tasks) - 1
    more = f", then {also} more" if also else ""
    text = _sentence(failed) + more + ("; its last lines:" if tail else "")
    first = Text.assemble((f"{marks.bad} ", _BAD), (text, "bold"))
    error = one_line(last_error(failed.tail))
    why = [Text(f"  {error}", "bold")] if error and not is_last(error, tail) else []
    lines = [first, *why, *(Text.assemble((f"  {marks.bar} ", _BAD), line) for line in tail)]
    if hint := hint_of(failed):
        lines.append(paragraph(f"  {marks.next} {hint}", style="cyan"))
    return lines


def hint_of(failed: TaskState | None) -> str:
    """The next step to take after that failure, if it is of a known kind."""
    if failed is None or not failed.code:
        return ""
    return last_words.advice(_lines_of(failed), host=failed.host)


def _lines_of(failed: TaskState) -> list[str]:
    return tail_lines(failed.tail.encode("utf-8", "backslashreplace"), WORDS)


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
        return Text(f"{marks.bad} {how}", _BAD)
    if task.state == "exited":
        return Text(f"{marks.dot} stopped", "dim") if task.stopped else Text(f"{marks.ok} finished", _OK)
    if task.state == "running":
        return Text(f"{marks.live} running", _BUSY)
    if task.state in ("lost", "unknown"):
        return Text(f"? {task.state}", _BAD if task.state == "lost" else "dim")
    return Text(f"{marks.wait} {task.state}")


def _task_table(run: RunState, screen: Screen, now: float) -> list[Text]:
    tasks = run.tasks

    def lasted(task: TaskState) -> str:
        seconds = now - task.since if task.since is not None else task.seconds
        return "-" if seconds is None else age(seconds)

    def cards(task: TaskState) -> str:
        return ",".join(task.gpu_labels) or str(len(task.gpus) or "-")

    restarted = any(task.attempts > 1 for task in tasks)
    columns = [
        Column("task", [Text(task.task, "bold") for task in tasks]),
        Column("host", [Text(task.host) for task in tasks]),
        Column("state", [_task_state(task, screen.marks) for task in tasks]),
        Column("for", [Text(lasted(task)) for task in tasks], right=True),
        Column("attempts", [Text(str(task.attempts) if restarted else "") for task in tasks], right=True),
        Column("port", [Text(str(task.port or "-")) for task in tasks], right=True, rank=3),
        Column("GPUs", [Text(cards(task)) for task in tasks], right=True, rank=2),
        Column("pid", [Text(str(task.pid or "-")) for task in tasks], right=True, rank=5),
        Column("log", [Text(amount(task.log_bytes)) for task in tasks], right=True, rank=4),
        Column(
            "last output",
            [Text(f"{age(now - task.output)} ago" if task.output else "none") for task in tasks],
            right=True,
            rank=1,
        ),
    ]
    return table(columns, screen.columns, screen.marks.more)


def _restarts(run: RunState, screen: Screen) -> list[Text]:
    """How the attempts before the last ones ended."""
    ends = [end for task in run.tasks for end in task.ends]
    if not ends:
        return []
    columns = [
        Column("restarted", [Text(end.task, "bold") for end in ends]),
        Column("host", [Text(end.host) for end in ends]),
        Column("attempt", [Text(str(end.attempts)) for end in ends], right=True),
        Column("ended", [_task_state(end, screen.marks) for end in ends]),
        Column("after", [Text("-" if end.seconds is None else age(end.seconds)) for end in ends], right=True),
        Column("log", [Text(log_name(TaskId.parse(end.task), end.attempts - 1)) for end in ends]),
    ]
    return [Text(), *table(columns, screen.columns, screen.marks.more)]


_HOST_WORDS = {
    "ended": "ended",
    "strays": "its agent is dead",
    "lost": "ended without a word",
    "elsewhere": "of a machine that was not asked",
    "unreachable": "cannot be asked",
    "unasked": "was not asked",
    "gone": "nothing of it is there",
}


def _agent(share: Share) -> str:
    if share.state == "lost" and share.restarted:
        return "gone: the host was restarted"
    return (
        f"alive, pid {share.agent}" if share.state == "alive" else _HOST_WORDS.get(share.state, share.state)
    )


def _host_table(run: RunState, screen: Screen) -> list[Text]:
    shares = run.shares
    columns = [
        Column("host", [Text(share.host, "bold") for share in shares]),
        Column("agent", [Text(_agent(share)) for share in shares]),
        Column(
            "logs",
            [Text(share.directory + "/logs" if share.directory else "-") for share in shares],
        ),
    ]
    return table(columns, None, screen.marks.more)  # a path is not cut: it is there to be copied


def unreachable_data(failures: Mapping[str, ConnectError]) -> dict[str, dict[str, str]]:
    """Hosts that could not be asked, as what JSON can hold."""
    return {host: {"message": each.message, "hint": each.hint} for host, each in failures.items()}
