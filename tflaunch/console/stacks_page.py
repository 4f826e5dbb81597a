"""What `tflaunch stacks` shows: where each task is, as Python's tracebacks have it, the innermost call last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.console.pen import BAD, Marks, Sheet
from tflaunch.console.safe_text import Text, hung, unstacked
from tflaunch.diagnosis.frames import own_frame, place
from tflaunch.runs.stack_looks import TaskStacks
from tflaunch.text.numbers import counted
from tflaunch.text.times import age

NAMES_SHOWN = 8
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits in the kernel, cannot be killed",
    "T": "is stopped",
    "t": "is stopped by a debugger",
    "Z": "has ended",
}

_Frames = Sequence[Sequence[Any]]
_Process = Mapping[str, Any]


def stacks_lines(found: Sequence[TaskStacks], sheet: Sheet, *, all_threads: bool) -> list[Text]:
    """Each task with its stacks; tasks at the same place are shown once.  `all_threads`: each thread in full."""
    groups: dict[Any, list[TaskStacks]] = {}
    for each in found:
        groups.setdefault(_place_of(each, all_threads), []).append(each)
    lines: list[Text] = []
    for alike in groups.values():
        lines += [Text()] if lines else []
        lines += _group_lines(alike, sheet.marks, all_threads)
    if (columns := sheet.columns) is None:
        return lines
    return [part for line in lines for part in unstacked(hung(line, columns))]


def _place_of(task: TaskStacks, all_threads: bool) -> Any:
    """What is equal for tasks at the same place."""
    shown = []
    for process in _shown(task):
        stacks = process["stacks"]
        if stacks is None:
            return task.task  # what /proc tells of it has numbers of its own
        shown.append(tuple(_frozen(stack["frames"]) for stack in stacks if all_threads or stack["main"]))
    return tuple(shown) or task.task


def _frozen(frames: _Frames) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, frames))


def _shown(task: TaskStacks) -> list[_Process]:
    """The processes with stacks; where none has any, all of them."""
    return [each for each in task.processes if each["stacks"] is not None] or list(task.processes)


def _group_lines(alike: Sequence[TaskStacks], marks: Marks, all_threads: bool) -> Iterator[Text]:
    names = [f"{each.task} on {each.host}" for each in alike[:NAMES_SHOWN]]
    more = len(alike) - len(names)
    head = Text(", ".join(names) + (f" and {more} more" if more else ""), "bold")
    if len(alike) > 1:
        head.append(" are at the same place", "dim")
    yield head
    first = alike[0]
    shown = _shown(first)
    if not shown:
        yield Text("  no process of it is left", "dim")
    for process in shown:
        old = process.get("age_s", 0.0)
        notes = [f"pid {process['pid']} {process['name']}"] if len(alike) == 1 or len(shown) > 1 else []
        notes += [f"asked {age(old)} ago"] if old >= 1 else []
        if notes:
            yield Text(f"  {', '.join(notes)}", "dim")
        if process["stacks"] is None:
            yield from _without_stacks(process, marks)
        else:
            yield from _stacks(process, marks, all_threads, _waits_in(alike) if process is shown[0] else "")


def _waits_in(alike: Sequence[TaskStacks]) -> str:
    """The kernel function in which the first thread of all these tasks waits; "" if that differs, or is not known."""
    found = set()
    for task in alike:
        program = _shown(task)[0]
        found |= {function for tid, _, _, function, _ in program["threads"] if tid == program["pid"]}
    return found.pop() if len(found) == 1 else ""


def _stacks(process: _Process, marks: Marks, all_threads: bool, waits_in: str) -> Iterator[Text]:
    stacks = process["stacks"]
    main = next((each for each in stacks if each["main"]), None)
    if main is None:
        why = process["why_none"] or "it was not among the 100 threads that Python shows"
        yield Text(
            f"  {marks.bad} no stack of its first thread: {why}", BAD if process["why_none"] else "dim"
        )
    elif main["frames"]:
        yield from _frame_lines(main["frames"], marks)
        if waits_in:
            yield Text(f"  {' ' * len(marks.next)} in the kernel: {waits_in}", "dim")
    else:
        yield Text("  its first thread runs no Python: it has ended, or begins", "dim")
    in_python = 1 if main is not None else 0
    for each in stacks:
        if each["main"]:
            continue
        count = each.get("count", 1)
        in_python += count
        threads = counted(count, "thread")
        if all_threads:
            yield Text(f"  {threads}:")
            yield from _frame_lines(each["frames"], marks, "    ")
        else:
            yield Text(f"  + {threads} at {_summary(each['frames'])}", "dim")
    others = len(process["threads"]) - in_python
    if others > 0:
        yield Text(f"  + {counted(others, 'thread')} outside Python", "dim")


def _summary(frames: _Frames) -> str:
    if not frames:
        return "no place that its host tells"
    own = own_frame(frames)
    innermost = place(frames[0])
    return innermost if own is None or own is frames[0] else f"{place(own)}, there in {innermost}"


def _frame_lines(frames: _Frames, marks: Marks, indent: str = "  ") -> Iterator[Text]:
    own = own_frame(frames)
    for frame in reversed(frames):
        if frame is own:
            yield Text(f"{indent}{marks.next} {place(frame)}", "bold")
        else:
            yield Text(f"{indent}{' ' * len(marks.next)} {place(frame)}")


def _without_stacks(process: _Process, marks: Marks) -> Iterator[Text]:
    yield Text.assemble(f"  {marks.bad} no stacks: ", (process["why_none"] or "none came", BAD))
    for _, name, state, function, cpu_s in process["threads"][:1]:
        where = f" in {function}" if function else ""
        yield Text(
            f"    its first thread ({name}) {_STATES.get(state, f'is in state {state}')}{where}, {cpu_s:g} s of CPU"
        )
