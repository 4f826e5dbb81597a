"""The plan of a run: whole, as `--dry-run` shows it, or in a line per job beside the logs."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tflaunch.console.pen import PIPE_COLUMNS, Marks, Sheet, task_colour, whole
from tflaunch.console.safe_text import Text, paragraph
from tflaunch.console.text_table import Column, Table
from tflaunch.hosts import fold
from tflaunch.protocol.job import EVALUATOR, WORKER
from tflaunch.text.numbers import plural

if TYPE_CHECKING:
    from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan


def plan_lines(plan: ClusterPlan, sheet: Sheet) -> list[Text]:
    """Every task with its place, the command of the first task, and how the other commands differ."""
    places = dict.fromkeys(task.cwd or "the shipped code" for task in plan.tasks)
    marks = sheet.marks
    alike = _alike(plan.tasks)
    lines = [*_task_lines(plan, sheet.columns or PIPE_COLUMNS), Text()]
    for tasks in alike:
        first = tasks[0]
        where = f", in {next(iter(places))}" if tasks is alike[0] else ""
        lines.append(Text(f"{first.id} runs{where}:", "dim"))
        lines.append(paragraph(_command(first.argv, sheet.columns), indent="", no_wrap=True))
        if own := _differing(tasks):
            each = "task" if len(alike) == 1 else " and ".join(dict.fromkeys(task.id.job for task in tasks))
            lines.append(Text(f"and each {each} likewise, with its own {own}", "dim"))
    for task in _first_with_each(plan.tasks):
        variables = " ".join(f"{name}={_quoted(task.env[name])}" for name in task.filled)
        lines.append(paragraph((f"{task.id} gets ", "dim"), variables))
    if others := list(places)[1:]:
        lines.append(Text(f"other tasks run in {', '.join(others)}", "dim"))
    lines.append(Text("--json shows each task with its environment", "dim"))
    lines += [paragraph((f"{marks.warn} ", "yellow"), text) for text in without(plan.left_out)]
    return lines + _plan_notes(plan, marks)


def without(left_out: Mapping[str, str], *, then: bool = False) -> list[str]:
    """Say which hosts a run goes without, grouped by cause; then: as it was when the run was planned."""
    causes: dict[str, list[str]] = {}
    for host, why in left_out.items():
        causes.setdefault(why, []).append(host)
    words = "planned without {}; the reason then: {}" if then else "without {}: {}"
    return [words.format(fold(hosts), why) for why, hosts in causes.items()]


def _task_lines(plan: ClusterPlan, columns: int) -> list[Text]:
    """A table; where that is wider than the terminal, two lines a task, so that no address is broken."""
    rows = [
        (str(task.id), task.host, task.endpoint or "-", _gpus(task), task.cpus or "any")
        for task in plan.tasks
    ]
    bound = any(task.cpus for task in plan.tasks)
    tasks, *others = zip(*(row if bound else row[:-1] for row in rows), strict=True)
    colours = [task_colour(task.id) for task in plan.tasks]
    table = Table(
        [
            Column("task", [*map(Text, tasks, colours)]),
            *(
                Column(heading, [*map(Text, cells)])
                for heading, cells in zip(_HEADINGS, others, strict=False)
            ),
        ],
        gap="   ",
    )
    if table.width <= columns:
        return table.lines()
    return [
        whole(line)
        for task, host, address, gpus, cpus in rows
        for line in (
            f"{task} on {host}",
            f"  {address}" + (f", GPUs {gpus}" if gpus != "-" else "") + (f", CPUs {cpus}" if bound else ""),
        )
    ]


_HEADINGS = ("host", "address", "GPUs", "CPUs")


def _gpus(task: TaskPlan) -> str:
    return ",".join(task.gpu_labels) or "-"


def _command(argv: Sequence[str], columns: int | None) -> str:
    """Return a command quoted for a shell, in lines of `columns`, broken between words; None: in one."""
    lines = ["  " + _quoted(argv[0])]
    for word in map(_quoted, argv[1:]):
        if columns and len(lines[-1]) + len(word) + len("  \\") > columns:
            lines[-1] += " \\"
            lines.append("    " + word)
        else:
            lines[-1] += " " + word
    return "\n".join(lines)


def _quoted(word: str) -> str:
    """Return the word quoted for a shell, in one line."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (each if each.isprintable() else repr(each)[1:-1] for each in re.sub(r"([\\'])", r"\\\1", word))
    return f"$'{''.join(escaped)}'"


def _alike(tasks: Sequence[TaskPlan]) -> list[list[TaskPlan]]:
    """Return the tasks in groups; in each, the commands differ only in the interpreter and in values of flags."""
    groups: dict[tuple[str, ...], list[TaskPlan]] = {}
    for task in tasks:
        shape = []
        for before, word in itertools.pairwise(task.argv):
            value = not word.startswith("-") and before.startswith("--") and "=" not in before
            shape.append("" if value else word.partition("=")[0] if word.startswith("-") else word)
        groups.setdefault(tuple(shape), []).append(task)
    return list(groups.values())


def _first_with_each(tasks: Sequence[TaskPlan]) -> list[TaskPlan]:
    """Return the first task of each job that has variables with placeholders filled in."""
    first: dict[str, TaskPlan] = {}
    for task in tasks:
        if task.filled:
            first.setdefault(task.id.job, task)
    return list(first.values())


def _differing(tasks: Sequence[TaskPlan]) -> str:
    """Say in which words the commands of tasks that are alike differ: `--job_name and --task_index`."""
    first = tasks[0].argv
    names: dict[str, None] = {}
    for task in tasks[1:]:
        for number, (word, other) in enumerate(zip(first, task.argv, strict=False)):
            if word != other:
                name = word if word.startswith("-") else first[number - 1]
                names["interpreter" if number == 0 else name.partition("=")[0]] = None
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last


def brief_plan_lines(plan: ClusterPlan, marks: Marks) -> list[Text]:
    """A line for each job: how many tasks, on which hosts, with how many GPUs."""
    jobs: dict[str, list[TaskPlan]] = {}
    for task in plan.tasks:
        jobs.setdefault(task.id.job, []).append(task)
    sizes = [(job, len(tasks)) for job, tasks in jobs.items()]
    lines = [Text.assemble(("run ", "dim"), (plan.run_id, "bold"))]
    for job, tasks in jobs.items():
        counts = sorted({len(task.gpus) for task in tasks})
        gpus = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else str(counts[0])
        instances = all("." in label for task in tasks for label in task.gpu_labels)
        noun = ("MIG instance" if instances else "GPU") + ("" if counts == [1] else "s")
        each = f"  {gpus} {noun} each" if counts != [0] else ""
        where = fold(list(dict.fromkeys(task.host for task in tasks)))
        count = str(len(tasks)).rjust(max(len(str(len(others))) for others in jobs.values()))
        name = _tasks_of(job, len(tasks)).ljust(max(len(_tasks_of(*size)) for size in sizes))
        lines.append(Text.assemble(f"  {count} {name}", (f"  on {where}{each}", "dim")))
    return lines + _plan_notes(plan, marks)


def _tasks_of(job: str, count: int) -> str:
    """Return `workers` for 2 workers, but a job name of the user's own unchanged: its plural is unknown."""
    return plural(job, count) if job in (WORKER, EVALUATOR) else job


def _plan_notes(plan: ClusterPlan, marks: Marks) -> list[Text]:
    choices = [paragraph("  ", choice, style="dim") for choice in plan.choices]
    return choices + [paragraph((f"{marks.warn} ", "yellow"), note) for note in plan.notes]
