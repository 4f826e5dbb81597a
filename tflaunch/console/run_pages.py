"""What people read as a whole: the plan, the failures, the report at the end; made of rich's lines."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from tflaunch.console.lines import Console, Text, hung, paragraph
from tflaunch.console.writer import Stream
from tflaunch.diagnosis import last_words
from tflaunch.diagnosis.last_error import LIMIT_BYTES, last_error
from tflaunch.hosts import fold
from tflaunch.inputs.times import duration
from tflaunch.protocol.errors import (
    ConnectErrors,
    DialError,
    DocumentError,
    JobFileError,
    LaunchError,
    TflaunchError,
)
from tflaunch.protocol.job import EVALUATOR, WORKER, TaskId, log_name
from tflaunch.protocol.outcome import CardLeft, HostLost, Outcome, TaskExit, TimedOut, how
from tflaunch.sessions.log_lines import LineAssembler, one_line

if TYPE_CHECKING:
    from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
    from tflaunch.runs.visits import Finished

TAIL_LINES = 30
WORDS = 1000  # lines that are looked at for what is known of them
STACKS_SHOWN = 3
PROBLEMS_SHOWN = 20  # of a hostfile; a file that is no hostfile has one in every line
_ROWS = 24  # of a terminal that does not tell
PIPE_COLUMNS = 200  # a table in a file has room
_TRAILING = re.compile(r" +\n")  # what pads the last column of a table

# Okabe and Ito's colours, told apart by colour-blind eyes; black left out, yellow and blue made to be read
# on white and on black.
_PALETTE = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#3b82c4", "#d55e00", "#b8a800", "#8c8cd9")


@dataclass(frozen=True)
class Marks:
    """The few signs in use, with what stands for them where the encoding has none."""

    ok: str = "✓"
    bad: str = "✗"
    warn: str = "!"
    bar: str = "│"
    dot: str = "·"
    more: str = "…"
    next: str = "→"
    live: str = "●"
    wait: str = "○"
    spinner: str = "dots"


_ASCII = Marks(ok="ok", bad="x", bar="|", dot="-", more="...", next="->", live="*", wait="o", spinner="line")


class Pen:
    """Turns rich's renderables into text for one stream, as wide and as colourful as that stream takes."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        # Not the stream's own file: to that rich would write, if only an empty string, and fail with it.
        page = io.TextIOWrapper(io.BytesIO(), encoding=stream.encoding)
        self.console = Console(file=page, force_terminal=stream.terminal or None)
        self.marks = Marks() if stream.can_show("✓✗│·…→●○━⠋") else _ASCII
        self.colour = self.console.color_system is not None and not self.console.no_color

    @property
    def columns(self) -> int:
        """How wide the terminal is now, for a window may be resized; 0 when there is none."""
        return self.stream.size()[0]

    @property
    def rows(self) -> int:
        """How high the terminal is."""
        return self.stream.size()[1] or _ROWS

    def render(self, renderable: RenderableType, spare: int = 0) -> str:
        """Return the text of `renderable`, in lines shorter than the terminal by `spare` columns."""
        columns = self.columns
        self.console.width = max(20, (columns or PIPE_COLUMNS) - spare)
        whole = isinstance(renderable, Text) and (not columns or bool(renderable.no_wrap))
        if isinstance(renderable, Text) and not whole:
            renderable = hung(renderable, self.console, self.console.width)
        with self.console.capture() as captured:
            self.console.print(renderable, soft_wrap=whole)
        return _TRAILING.sub("\n", captured.get())


def task_colour(task: TaskId) -> str:
    """Return the task's colour: by its name alone, so that it has the same in every run.

    Workers count from the front of the palette and the other jobs from its end, so that the first few of
    each differ.
    """
    if task.job == "worker":
        return _PALETTE[task.index % len(_PALETTE)]
    first = -1 if task.job == "ps" else zlib.crc32(task.job.encode())
    return _PALETTE[(first - task.index) % len(_PALETTE)]


def of(count: int, noun: str) -> str:
    return f" {count} {_plural(noun, count)}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _tasks_of(job: str, count: int) -> str:
    """`2 workers`, without the number; a name of the user's own may have any plural."""
    return _plural(job, count) if job in (WORKER, EVALUATOR) else job


def note_part(note: str) -> str:
    return f"  {note}" if note else ""


def tail_lines(data: bytes, most: int = TAIL_LINES) -> list[str]:
    assembler = LineAssembler()
    return (assembler.feed(data) + assembler.end()).split("\n")[:-1][-most:]


def error_of(exit: TaskExit, record: str = "") -> str:
    """The line of its log that says why a task failed, "" for none; of the copy here, if `record` has all of it."""
    end = exit.tail
    if record:
        copy = Path(record, "logs", log_name(exit.task, exit.attempt))
        with contextlib.suppress(OSError, ValueError), copy.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LIMIT_BYTES))
            if size >= exit.log_bytes:  # else its end, and what stands there, is not here
                end = log.read(LIMIT_BYTES) or end
    return one_line(last_error(end.decode("utf-8", "backslashreplace")))


def is_last(error: str, tail: Sequence[str]) -> bool:
    """Whether that is the last of these lines, whole or cut."""
    if not tail:
        return False
    return tail[-1] == error or (error.endswith(" ...") and tail[-1].startswith(error[:-4]))


def stuck_lines(tail: bytes) -> list[str]:
    """Where a task was that faulthandler has written the stacks of: those of its current thread."""
    lines: list[str] = []
    for line in tail.rpartition(b"\nCurrent thread ")[2].decode("utf-8", "replace").splitlines()[1:]:
        if not line.startswith("  File "):
            break
        lines.append(line.strip())
    return lines[:TAIL_LINES]


# The plan


def plan_lines(plan: ClusterPlan, pen: Pen) -> list[RenderableType]:
    places = dict.fromkeys(task.cwd or "the shipped code" for task in plan.tasks)
    columns, first = pen.columns, plan.tasks[0]
    lines: list[RenderableType] = [
        *_task_lines(plan, columns or PIPE_COLUMNS),
        Text(),
        Text(f"{first.id} runs, in {next(iter(places))}:", "dim"),
        paragraph(_command(first.argv, columns or None), indent="", no_wrap=True),
    ]
    if own := _differing(plan):
        lines.append(Text(f"and each task likewise, with its own {own}", "dim"))
    if others := list(places)[1:]:
        lines.append(Text(f"some in {', '.join(others)}", "dim"))
    lines.append(Text("--json shows each task with its environment", "dim"))
    lines += [paragraph((f"{pen.marks.warn} ", "yellow"), text) for text in without(plan.left_out)]
    return lines + _plan_notes(plan, pen.marks)


def without(left_out: Mapping[str, str]) -> list[str]:
    """Which hosts a plan goes without, those with one cause together."""
    causes: dict[str, list[str]] = {}
    for host, why in left_out.items():
        causes.setdefault(why, []).append(host)
    return [f"without {fold(hosts)}: {why}" for why, hosts in causes.items()]


def _task_lines(plan: ClusterPlan, columns: int) -> list[RenderableType]:
    """A table; or, where it is wider than the terminal, two lines a task, for an address is never broken."""
    rows = [(str(task.id), task.host, task.endpoint or "-", _cards(task)) for task in plan.tasks]
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
        table.add_row(Text(task, task_colour(task_plan.id)), *map(Text, others))
    return [table]


def _cards(task: TaskPlan) -> str:
    return ",".join(task.gpu_labels) or "-"


def _command(argv: Sequence[str], columns: int | None) -> str:
    """A command as a shell takes it, in lines of `columns` where its words are that short; None: in one."""
    lines = ["  " + _quoted(argv[0])]
    for word in map(_quoted, argv[1:]):
        if columns and len(lines[-1]) + len(word) + len("  \\") > columns:
            lines[-1] += " \\"
            lines.append("    " + word)
        else:
            lines[-1] += " " + word
    return "\n".join(lines)


def _quoted(word: str) -> str:
    """That word as a shell takes it, in one line."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (each if each.isprintable() else repr(each)[1:-1] for each in re.sub(r"([\\'])", r"\\\1", word))
    return f"$'{''.join(escaped)}'"


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


def brief_plan_lines(plan: ClusterPlan, marks: Marks) -> list[RenderableType]:
    jobs: dict[str, list[TaskPlan]] = {}
    for task in plan.tasks:
        jobs.setdefault(task.id.job, []).append(task)
    sizes = [(job, len(tasks)) for job, tasks in jobs.items()]
    lines: list[RenderableType] = [Text.assemble(("run ", "dim"), (plan.run_id, "bold"))]
    for job, tasks in jobs.items():
        counts = sorted({len(task.gpus) for task in tasks})
        cards = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else str(counts[0])
        instances = all("." in label for task in tasks for label in task.gpu_labels)
        noun = ("MIG instance" if instances else "GPU") + ("" if counts == [1] else "s")
        gpus = f"  {cards} {noun} each" if counts != [0] else ""
        where = fold(list(dict.fromkeys(task.host for task in tasks)))
        count = str(len(tasks)).rjust(max(len(str(len(others))) for others in jobs.values()))
        name = _tasks_of(job, len(tasks)).ljust(max(len(_tasks_of(*each)) for each in sizes))
        lines.append(Text.assemble(f"  {count} {name}", (f"  on {where}{gpus}", "dim")))
    return lines + _plan_notes(plan, marks)


def _plan_notes(plan: ClusterPlan, marks: Marks) -> list[RenderableType]:
    choices: list[RenderableType] = [paragraph("  ", choice, style="dim") for choice in plan.choices]
    return choices + [paragraph((f"{marks.warn} ", "yellow"), note) for note in plan.notes]


def tasks_there(job: str, plan: ClusterPlan) -> str:
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


def failure_rows(errors: ConnectErrors | LaunchError) -> list[_Row]:
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


def headline(errors: ConnectErrors | LaunchError) -> str:
    if isinstance(errors, ConnectErrors):
        return "the only host could not be used" if errors.total == 1 else errors.message
    count = len(errors.failures)
    if isinstance(errors, DialError):
        hosts = "1 host does not reach" if count == 1 else f"{count} hosts do not reach"
        hosts += (
            " every peer that its tasks will call" if count == 1 else " every peer that their tasks will call"
        )
        return hosts if errors.unconfirmed else f"{hosts}; nothing was started"
    hosts = "1 host could not start its tasks" if count == 1 else f"{count} hosts could not start their tasks"
    return hosts if errors.unconfirmed else f"{hosts}; nothing is left running"


def unconfirmed_hosts(errors: ConnectErrors | LaunchError) -> dict[str, str]:
    return errors.unconfirmed if isinstance(errors, LaunchError) else {}


def failures_lines(errors: ConnectErrors | LaunchError, marks: Marks) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=28)
    table.add_column(overflow="fold")
    for row in failure_rows(errors):
        hint = (f"\n{marks.next} {row.hint}", "cyan") if row.hint else ""
        told = paragraph(row.cause, hint, indent="")  # the column is indentation enough
        table.add_row(Text(row.folded, "bold"), told)
    lines: list[RenderableType] = [
        paragraph((f"{marks.bad} ", "bold red"), (headline(errors), "bold")),
        Padding(table, (0, 0, 0, 2)),
        *_unchecked_lines(unconfirmed_hosts(errors), marks),
    ]
    if errors.hint:
        lines.append(_hint(errors.hint, marks))
    return lines


def error_lines(err: TflaunchError, marks: Marks) -> list[RenderableType]:
    bad = (f"{marks.bad} ", "bold red")
    lines: list[RenderableType]
    if isinstance(err, DocumentError):
        count = len(err.problems)
        where = "job file" if isinstance(err, JobFileError) else "hosts"
        headline = f"{count} problem{'' if count == 1 else 's'} in the {where}; nothing was contacted"
        lines = [Text.assemble(bad, (headline, "bold"))]
        for problem in err.problems[:PROBLEMS_SHOWN]:
            where = str(problem).removesuffix(problem.message)
            lines.append(paragraph("  ", (where, "bold"), problem.message))
        if more := count - PROBLEMS_SHOWN if count > PROBLEMS_SHOWN else 0:
            lines.append(Text(f"  and {more} more", "dim"))
    else:
        lines = [paragraph(bad, err.message)]
    if err.hint:
        lines.append(_hint(err.hint, marks))
    return lines


def _hint(text: str, marks: Marks) -> Text:
    return paragraph(f"  {marks.next} {text}", style="cyan", no_wrap=True)


def _whole(text: str, style: str = "") -> Text:
    """Text that only the terminal wraps: a path or a command that is to be copied in one piece."""
    return Text(text, style, no_wrap=True)


# The end of a run


def report_lines(outcome: Outcome, marks: Marks, hint: str, above: bool) -> list[RenderableType]:
    """`above`: the last lines of the task that failed first stand on the screen, and are not repeated."""
    first = outcome.first_failure
    others = [*_other_failures(outcome, marks), *_unclean_lines(outcome, marks)]
    if not isinstance(first, TaskExit):
        told = (
            _limit_lines(first, outcome, marks) if isinstance(first, TimedOut) else _lost_lines(first, marks)
        )
        return [*told, *others, *_last_lines(outcome, marks)]
    where = _log_lines(first, outcome)
    if hint:
        sentence = Table.grid(padding=(0, 1, 0, 0))
        sentence.add_row(Text(f"  {marks.next}", "cyan"), Text(hint, "cyan"))
        where.append(sentence)
    if above:
        last = _last_line(outcome, marks, f": {first.task} on {first.host} {how(first)}")
        return [last, *_error_lines(first, outcome), *where, *others]
    headline, *tail = _first_failure_lines(first, marks)
    told = [headline, *_error_lines(first, outcome), *tail]
    return [*told, *where, *others, *_last_lines(outcome, marks)]


def _error_lines(first: TaskExit, outcome: Outcome) -> list[RenderableType]:
    """Why it failed, where that is not what its last line says."""
    error = error_of(first, outcome.record)
    return [paragraph((f"  {error}", "bold"))] if error and not is_last(error, tail_lines(first.tail)) else []


def _lost_lines(lost: HostLost | None, marks: Marks) -> list[RenderableType]:
    if lost is None:
        return []
    headline = Text.assemble((f"{marks.bad} ", "bold red"), (f"{lost.host} was lost", "bold"))
    return [headline, paragraph(f"  {lost.reason}")]


def _limit_lines(limit: TimedOut, outcome: Outcome, marks: Marks) -> list[RenderableType]:
    """Which limit, and where the Python tasks were, as far as they could tell; alike ones are told once."""
    lines: list[RenderableType] = [Text.assemble((f"{marks.bad} ", "bold red"), (limit.reason, "bold"))]
    places: dict[tuple[str, ...], list[str]] = {}
    mute: dict[str, list[str]] = {}
    for task, state in zip(limit.tasks, limit.states or [""] * len(limit.tasks), strict=True):
        stack = stuck_lines(outcome.exits[task].tail if task in outcome.exits else b"")
        if stack := [re.sub(rf'"[^"]*/{outcome.run_id}/[^/"]+/work/', '"', line) for line in stack]:
            places.setdefault(tuple(stack), []).append(str(task))
        elif state:
            mute.setdefault(state, []).append(str(task))
    for where, tasks in list(places.items())[:STACKS_SHOWN]:
        were = "was" if len(tasks) == 1 else "were"
        lines.append(Text(f"  {_some(tasks, marks)} {were} here, the innermost call first:", "dim"))
        lines += [Text.assemble((f"  {marks.bar} ", "red"), line, no_wrap=True) for line in where]
    if len(places) > STACKS_SHOWN:
        lines.append(Text(f"  and in {len(places) - STACKS_SHOWN} other places: see the logs", "dim"))
    for state, tasks in mute.items():
        lines.append(Text(f"  {_some(tasks, marks)} wrote no stacks; last seen in {state}", "dim"))
    return lines


def _first_failure_lines(first: TaskExit, marks: Marks) -> list[RenderableType]:
    tail = tail_lines(first.tail)
    headline = Text.assemble(
        (f"{marks.bad} ", "bold red"),
        (f"{first.task} on {first.host} {how(first)}", "bold"),
        (f" after {duration(first.seconds)}" + ("; its last lines:" if tail else ""), "dim"),
    )
    bar = (f"  {marks.bar} ", "red")
    return [headline, *(Text.assemble(bar, line, no_wrap=True) for line in tail)]


def _log_lines(exit: TaskExit, outcome: Outcome) -> list[RenderableType]:
    """Where the task's whole log is: the launcher's copy, then its host's."""
    if not exit.tail:
        return [Text("  it wrote nothing", "dim")]
    there = outcome.host_logs.get(exit.task, "")
    if not outcome.record:
        return [_whole(f"  its whole log: {exit.host}:{there}", "dim")] if there else []
    here = f"{outcome.record}/logs/{log_name(exit.task, exit.attempt)}"
    lines: list[RenderableType] = [_whole(f"  its whole log: {here}", "dim")]
    if there:
        lines.append(_whole(f"  and on {exit.host}: {there}", "dim"))
    return lines


def advice(exit: TaskExit, interpreter: str | None, where: Callable[[str], str] = lambda _: "") -> str:
    """The next step to take after a failure of the likely kinds, or ""; `where`: see tflaunch.diagnosis.last_words."""
    if exit.signal == signal.SIGKILL and not exit.stopped:
        return f"ssh {exit.host} 'dmesg -T | grep -i oom' tells whether memory ran out, if nobody killed it"
    if not exit.code:
        return ""
    return last_words.advice(
        tail_lines(exit.tail, WORDS), python=interpreter or "", host=exit.host, where=where
    )


def _other_failures(outcome: Outcome, marks: Marks) -> list[RenderableType]:
    folded: dict[str, list[str]] = {}
    for exit in outcome.exits.values():
        if exit.exit_code and not exit.stopped and exit != outcome.first_failure:
            folded.setdefault(how(exit), []).append(str(exit.task))
    then = "then " if outcome.first_failure else ""
    return [
        Text.assemble((f"{marks.bad} ", "red"), (f"{then}{_some(tasks, marks)} {how}", "dim"))
        for how, tasks in folded.items()
    ]


def _some(names: Sequence[str], marks: Marks, most: int = 8) -> str:
    more = f" {marks.more} ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _unclean_lines(outcome: Outcome, marks: Marks) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for host, left in outcome.survivors.items():
        text = f"{host}: still alive: {_some(left, marks)}"
        lines.append(Text.assemble((f"{marks.bad} ", "bold red"), text))
    lines += _unchecked_lines(outcome.unverified, marks)
    if lines:
        lines.append(_hint(f"tflaunch stop {outcome.run_id}", marks))
    return lines + _card_lines(outcome.cards, marks)


def _card_lines(cards: Mapping[str, Sequence[CardLeft]], marks: Marks) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for host, left in cards.items():
        for card in left:
            mark = (f"{marks.bad} ", "bold red") if card.own else (f"{marks.warn} ", "yellow")
            lines.append(Text.assemble(mark, f"{host}: {card.text}"))
    if lines:
        lines.append(_hint("look again: tflaunch gpus; on the host: nvidia-smi", marks))
    return lines


def _unchecked_lines(hosts: Mapping[str, str], marks: Marks) -> list[RenderableType]:
    reasons: dict[str, list[str]] = {}
    for host, reason in hosts.items():
        reasons.setdefault(reason, []).append(host)
    return [
        paragraph(
            (f"{marks.warn} ", "yellow"),
            f"{fold(names)}: could not check that nothing is left: {reason}",
        )
        for reason, names in reasons.items()
    ]


def servers_lines(plan: ClusterPlan) -> list[RenderableType]:
    """How clients find the servers: their targets, the flags and the cluster spec, each to be copied as it is."""
    width = max(len(str(task.id)) for task in plan.tasks)
    targets = [
        Text.assemble(
            (str(task.id).ljust(width), task_colour(task.id)),
            f"  {target}",
            (f"  on {task.host}", "dim"),
            no_wrap=True,
        )
        for task, target in zip(plan.tasks, plan.targets.values(), strict=True)
    ]
    return [*targets, _whole(shlex.join(plan.flags)), _whole(json.dumps(plan.cluster))]


def detached_lines(run_id: str, tasks: int, host: str, marks: Marks) -> list[RenderableType]:
    headline = Text.assemble(
        (f"{marks.ok} ", "bold green"), (run_id, "bold"), f" goes on by itself:{of(tasks, 'task')}"
    )
    headline.append(f"; {host} decides for it", "dim")
    steps = (("watch it", "attach"), ("see what it printed", "logs"), ("stop it", "stop"))
    lines: list[RenderableType] = [headline]
    return lines + [
        _whole(f"  {marks.next} tflaunch {verb:6} {run_id}   {what}", "cyan") for what, verb in steps
    ]


def stopped_lines(run_id: str, hosts: Mapping[str, Finished], marks: Marks) -> list[RenderableType]:
    by_fate: dict[str, list[str]] = {}
    for host, end in hosts.items():
        if end.survivors:
            fate = f"still alive: {_some(end.survivors, marks)}"
        elif end.killed:
            fate = f"stopped; had to be killed: {_some(end.killed, marks)}"
        else:
            fate = "stopped" if end.found else "nothing of it was there"
        by_fate.setdefault(fate, []).append(host)
    alive = not all(end.clean for end in hosts.values())
    mark = (f"{marks.bad} ", "bold red") if alive else (f"{marks.ok} ", "bold green")
    text = (
        "is not all gone" if alive else f"is stopped:{of(len(hosts), 'host')} checked, nothing of it is alive"
    )
    lines: list[RenderableType] = [Text.assemble(mark, (run_id, "bold"), f" {text}")]
    for fate, names in by_fate.items():
        lines.append(Text.assemble("  ", (fold(names), "bold"), f" {fate}"))
    return lines + _card_lines({host: end.cards for host, end in hosts.items()}, marks)


def _last_lines(outcome: Outcome, marks: Marks) -> list[RenderableType]:
    line = _last_line(outcome, marks)
    return [line, _whole(f"  logs: {outcome.record}/logs", "dim")] if outcome.record else [line]


def _last_line(outcome: Outcome, marks: Marks, cause: str = "") -> Text:
    took = duration(outcome.seconds)
    if outcome.status == "succeeded":
        mark, text = (f"{marks.ok} ", "bold green"), f"succeeded:{of(len(outcome.exits), 'task')} in {took}"
    elif outcome.status == "interrupted":
        # SIGTERM, or `tflaunch stop`: the line in which it was obeyed tells which.
        how = "by Ctrl-C" if outcome.exit_code == 128 + signal.SIGINT else "from outside"
        mark, text = (f"{marks.warn} ", "yellow"), f"stopped {how} after {took}"
    else:
        cause = cause or f", exit code {outcome.exit_code}"
        mark, text = (f"{marks.bad} ", "bold red"), f"failed after {took}{cause}"
    line = Text.assemble(mark, (outcome.run_id, "bold"), f" {text}")
    if not (outcome.survivors or outcome.unverified or outcome.cards):
        line.append("; nothing is left running", "dim")
    return line
