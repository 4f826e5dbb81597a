"""How a run stands or ended: the report, the servers of `up`, a detached run, a stopped run."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tflaunch.console.failure_page import unchecked_lines
from tflaunch.console.pen import Marks, hint, task_colour, whole
from tflaunch.console.safe_text import Text, paragraph
from tflaunch.console.text_table import Column, Table
from tflaunch.documents.log_tail import error_of, is_last, stuck_lines, tail_lines
from tflaunch.hosts import fold
from tflaunch.protocol.job import log_name
from tflaunch.protocol.outcome import (
    EndedByRule,
    GpuLeft,
    HostLost,
    Outcome,
    TaskExit,
    TimedOut,
    exit_code_of,
    how,
)
from tflaunch.text.numbers import agreeing, counted
from tflaunch.text.times import duration

if TYPE_CHECKING:
    from tflaunch.planning.cluster_plan import ClusterPlan
    from tflaunch.runs.visits import Finished

STACKS_SHOWN = 3


def report_lines(outcome: Outcome, marks: Marks, step: str, above: bool) -> list[Text]:
    """How a run ended, the first failure first, and what to do.

    step: the next step to take.  above: the last lines of the task that failed first are still on the screen, so do
    not repeat them.
    """
    first = outcome.first_failure
    others = [*_other_failures(outcome, marks), *_unclean_lines(outcome, marks)]
    if isinstance(first, TimedOut):
        return [*_limit_lines(first, outcome, marks), *others, *_last_lines(outcome, marks)]
    if isinstance(first, EndedByRule):
        headline = Text.assemble((f"{marks.bad} ", "bold red"), (first.reason, "bold"))
        return [headline, *others, *_last_lines(outcome, marks)]
    if not isinstance(first, TaskExit):
        return [*_lost_lines(first, marks), *others, *_last_lines(outcome, marks)]
    where = _log_lines(first, outcome)
    if step:
        where.append(Text(f"  {marks.next} {step}", "cyan"))
    if above:
        last = _last_line(outcome, marks, f": {first.task} on {first.host} {how(first)}")
        return [last, *_error_lines(first, outcome), *where, *others]
    headline, *tail = _first_failure_lines(first, marks)
    why = _error_lines(first, outcome)
    return [headline, *why, *tail, *where, *others, *_last_lines(outcome, marks)]


def _error_lines(first: TaskExit, outcome: Outcome) -> list[Text]:
    """Why the task failed, where its last line does not say so."""
    error = error_of(first, outcome.record)
    return [paragraph((f"  {error}", "bold"))] if error and not is_last(error, tail_lines(first.tail)) else []


def _lost_lines(lost: HostLost | None, marks: Marks) -> list[Text]:
    if lost is None:
        return []
    headline = Text.assemble((f"{marks.bad} ", "bold red"), (f"{lost.host} was lost", "bold"))
    return [headline, paragraph(f"  {lost.reason}")]


def _limit_lines(limit: TimedOut, outcome: Outcome, marks: Marks) -> list[Text]:
    """Which limit was reached, and where each task that wrote its stack was stuck; grouped by stack."""
    lines = [Text.assemble((f"{marks.bad} ", "bold red"), (limit.reason, "bold"))]
    places: dict[tuple[str, ...], list[str]] = {}
    without_stack: dict[str, list[str]] = {}
    for task, state in zip(limit.tasks, limit.states or [""] * len(limit.tasks), strict=True):
        stack = stuck_lines(outcome.exits[task].tail if task in outcome.exits else b"")
        if stack := [re.sub(rf'"[^"]*/{outcome.run_id}/[^/"]+/work/', '"', line) for line in stack]:
            places.setdefault(tuple(stack), []).append(str(task))
        elif state:
            without_stack.setdefault(state, []).append(str(task))
    for where, tasks in list(places.items())[:STACKS_SHOWN]:
        were = agreeing(len(tasks), "was", "were")
        lines.append(Text(f"  {_some(tasks, marks)} {were} here, the innermost call first:", "dim"))
        lines += [Text.assemble((f"  {marks.bar} ", "red"), line, no_wrap=True) for line in where]
    if len(places) > STACKS_SHOWN:
        lines.append(Text(f"  and in {len(places) - STACKS_SHOWN} other places: see the logs", "dim"))
    for state, tasks in without_stack.items():
        lines.append(Text(f"  {_some(tasks, marks)} wrote no stacks; last seen in {state}", "dim"))
    return lines


def _first_failure_lines(first: TaskExit, marks: Marks) -> list[Text]:
    tail = tail_lines(first.tail)
    headline = Text.assemble(
        (f"{marks.bad} ", "bold red"),
        (f"{first.task} on {first.host} {how(first)}", "bold"),
        (f" after {duration(first.seconds)}" + ("; its last lines:" if tail else ""), "dim"),
    )
    bar = (f"  {marks.bar} ", "red")
    return [headline, *(Text.assemble(bar, line, no_wrap=True) for line in tail)]


def _log_lines(exit: TaskExit, outcome: Outcome) -> list[Text]:
    """Where the task's whole log is: the launcher's copy, then its host's."""
    if not exit.tail:
        return [Text("  it wrote nothing", "dim")]
    there = outcome.host_logs.get(exit.task, "")
    if not outcome.record:
        return [whole(f"  its whole log: {exit.host}:{there}", "dim")] if there else []
    here = f"{outcome.record}/logs/{log_name(exit.task, exit.attempt)}"
    lines = [whole(f"  its whole log: {here}", "dim")]
    if there:
        lines.append(whole(f"  and on {exit.host}: {there}", "dim"))
    return lines


def _other_failures(outcome: Outcome, marks: Marks) -> list[Text]:
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


def _unclean_lines(outcome: Outcome, marks: Marks) -> list[Text]:
    lines = []
    for host, left in outcome.survivors.items():
        text = f"{host}: still alive: {_some(left, marks)}"
        lines.append(Text.assemble((f"{marks.bad} ", "bold red"), text))
    lines += unchecked_lines(outcome.unverified, marks)
    if lines:
        lines.append(hint(f"tflaunch stop {outcome.run_id}", marks))
    return lines + _gpu_lines(outcome.gpus, marks)


def _gpu_lines(gpus: Mapping[str, Sequence[GpuLeft]], marks: Marks) -> list[Text]:
    lines = []
    for host, left in gpus.items():
        for gpu in left:
            mark = (f"{marks.bad} ", "bold red") if gpu.own else (f"{marks.warn} ", "yellow")
            lines.append(Text.assemble(mark, f"{host}: {gpu.text}"))
    if lines:
        lines.append(hint("look again: tflaunch gpus; on the host: nvidia-smi", marks))
    return lines


def servers_lines(plan: ClusterPlan) -> list[Text]:
    """How clients find the servers: targets, flags and cluster spec, each in one line, to be copied."""
    columns = [
        Column("", [Text(str(task.id), task_colour(task.id)) for task in plan.tasks]),
        Column("", [*map(Text, plan.targets.values())]),
        Column("", [Text(f"on {task.host}", "dim") for task in plan.tasks]),
    ]
    targets = Table(columns).lines(headings=False)
    for line in targets:
        line.no_wrap = True
    return [*targets, whole(shlex.join(plan.flags)), whole(json.dumps(plan.cluster))]


def detached_lines(run_id: str, tasks: int, host: str, marks: Marks) -> list[Text]:
    headline = Text.assemble(
        (f"{marks.ok} ", "bold green"), (run_id, "bold"), f" goes on by itself: {counted(tasks, 'task')}"
    )
    headline.append(f"; its coordinator is on {host}", "dim")
    steps = (("watch it", "attach"), ("see what it printed", "logs"), ("stop it", "stop"))
    lines = [headline]
    return lines + [
        whole(f"  {marks.next} tflaunch {verb:6} {run_id}   {what}", "cyan") for what, verb in steps
    ]


def stopped_lines(run_id: str, hosts: Mapping[str, Finished], marks: Marks) -> list[Text]:
    by_fate: dict[tuple[str, str], list[str]] = {}
    for host, end in hosts.items():
        own = host if end.survivors or end.killed else ""  # what is named has its host before it
        if end.survivors:
            fate = f"still alive: {_some(end.survivors, marks)}"
        elif end.killed:
            fate = f"stopped, by force (SIGKILL): {_some(end.killed, marks)}"
        else:
            fate = "stopped" if end.found else "nothing of the run was there"
        by_fate.setdefault((fate, own), []).append(host)
    alive = not all(end.clean for end in hosts.values())
    mark = (f"{marks.bad} ", "bold red") if alive else (f"{marks.ok} ", "bold green")
    text = (
        "has left something behind"
        if alive
        else f"is stopped: {counted(len(hosts), 'host')} checked, nothing is left running"
    )
    lines = [Text.assemble(mark, (run_id, "bold"), f" {text}")]
    for (fate, _), names in by_fate.items():
        lines.append(Text.assemble("  ", (fold(names), "bold"), f" {fate}"))
    return lines + _gpu_lines({host: end.gpus for host, end in hosts.items()}, marks)


def _last_lines(outcome: Outcome, marks: Marks) -> list[Text]:
    line = _last_line(outcome, marks)
    return [line, whole(f"  logs: {outcome.record}/logs", "dim")] if outcome.record else [line]


def _last_line(outcome: Outcome, marks: Marks, cause: str = "") -> Text:
    took = duration(outcome.seconds)
    if outcome.status == "succeeded":
        mark, text = (
            (f"{marks.ok} ", "bold green"),
            f"succeeded: {counted(len(outcome.exits), 'task')} in {took}",
        )
        if outcome.exit_code:
            text += f", exit code {outcome.exit_code}"
    elif outcome.status == "interrupted":
        # SIGTERM or `tflaunch stop`: the line that the launcher wrote when it obeyed says which.
        how = "by Ctrl-C" if outcome.exit_code == 128 + signal.SIGINT else "by SIGTERM or `tflaunch stop`"
        mark, text = (f"{marks.warn} ", "yellow"), f"stopped {how} after {took}"
    else:
        whose = exit_code_of(outcome)
        cause = cause or f", exit code {outcome.exit_code}" + (
            f" (of {whose})" if whose != "tflaunch" else ""
        )
        mark, text = (f"{marks.bad} ", "bold red"), f"failed after {took}{cause}"
    line = Text.assemble(mark, (outcome.run_id, "bold"), f" {text}")
    if not (outcome.survivors or outcome.unverified or outcome.gpus):
        line.append("; nothing is left running", "dim")
    return line
