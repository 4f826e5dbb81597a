"""The end of a task's log, taken apart: what it said last, what stands above, and where in the program it was.

A traceback that the program has survived is no part of what it said last: one after which the log goes on, or any, if
a signal ended the program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

LONGEST = 1000  # characters of a line that are searched: this bounds the time that a pattern takes
LINES = 1000
PLAIN_LINES = 30  # of a log that ends without a traceback are what the task said last
_AFTER = 12  # lines that may follow a traceback's exception at an exit code other than 1

_OPENED = re.compile(
    r"((?:\[rank\d{1,6}\]: ?)?[ +|]{0,40})(?:Exception Group )?Traceback \(most recent call last\):$"
)
_UNREADABLE = re.compile(r'  File "[^"]{1,500}", line \d{1,9}$')
_FRAME = re.compile(r'\s{0,40}File "([^"]{1,500})", line (\d{1,9})(?:,? in ([\w<>.]{1,100}))?')
_LOGGED = re.compile(r"[IWE]\d{4} \d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?: [IWE] ")
_EXCEPTION = re.compile(r"[^\W\d]\w{0,80}(?:\.[^\W\d]\w{0,80}){0,12}(?::(?: |$)|$)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_GOES_ON = re.compile(
    r"(?i)\b(?:step|epoch|iter(?:ation)?s?|batch|loss|accuracy|retry(?:ing)?|continu\w{1,4}|resum\w{1,4}|"
    r"falling back|saved|finished|done|train\w{0,4})\b[ :=/\d]"
)
_NOT_THE_PROGRAMS = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|\.pyx$|^<|/\.pyenv/|/(?:opt|miniconda3|conda)/python"
    # What AutoGraph makes of a program's function: its message names the real line.
    r"|/__autograph_generated_file"
)
_IN_USER_CODE = ": in user code:"
_LAST_CALLS = 3
# Calls that make a file, as programs write them.
_WRITES = re.compile(
    r"open\([^)]{0,200}[\"'][wax][bt+]{0,2}[\"']|\b(?:write_text|write_bytes|mkdir|savefig|savez?|save_\w{1,30}|to_csv|"
    r"to_json|to_parquet|to_pickle|FileHandler|TFRecordWriter|imwrite|symlink)\("
)
# Files of the libraries in which a checkpoint is read, and calls that read one.
# A variable that is None where it is not set.
_GETS = re.compile(r"\b(?:getenv|environ\.get)\(['\"](\w{1,60})['\"]\)")
_ARGV = re.compile(r"\bargv\[(\d{1,2})\]")  # an argument that a program takes by its place
_RESTORES = re.compile(
    r"/(?:checkpoint|saved_model|saving)/|/(?:saver|session_manager|saving_lib)\.py\"|"
    r"\b(?:restore|load_weights|load_model|load_state_dict|from_pretrained)\("
)
_RUN_WORK = re.compile(r".*/work/(.+)")


class LogEnd(NamedTuple):
    """Lines, the last one first."""

    final: tuple[str, ...]  # what the task said last, without the frames of its stacks
    stack: tuple[str, ...]  # the lines of its last traceback
    above: tuple[str, ...]  # all other lines
    ended_by_exception: bool
    place: str  # `trainer.py:26 in batches`: the innermost place in the user's program, "" where not known


class _Traceback(NamedTuple):
    start: int
    exception: int  # the line of its exception
    ignored: bool  # in a destructor, after the program's end


def read(lines: Sequence[str], *, code: int | None, by_signal: bool) -> LogEnd:
    """Take the last lines of a log apart; `code` is the exit code, None where a signal ended the task."""
    kept = [line[:LONGEST].rstrip(" \n") for line in lines[-LINES:]]
    found = _tracebacks(kept)
    inside = _frames(found)
    last = next((each for each in reversed(found) if not each.ignored), None)
    if last is None or by_signal or _goes_on(kept, last, code):
        whole = {number for each in found for number in range(each.start, each.exception + 1)}
        plain = [number for number, line in enumerate(kept) if _says(line) and number not in whole]
        final, excepted = set(plain[-PLAIN_LINES:]), False
        place, stack = _crash_place(kept) if by_signal else "", []
    else:
        start = _chain_start(kept, found, last)
        final = {number for number in range(start, len(kept)) if _says(kept[number]) and number not in inside}
        excepted = True
        stack = kept[last.start : last.exception + 1]
        generated = kept[last.exception].endswith(_IN_USER_CODE)
        place = (_place(kept[last.exception + 1 :]) if generated else "") or _place(stack)
    above = [line for number, line in enumerate(kept) if number not in final and number not in inside]
    said = [kept[number] for number in sorted(final)]
    return LogEnd(tuple(said[::-1]), tuple(stack[::-1]), tuple(above[::-1]), excepted, place)


def _says(line: str) -> bool:
    """Whether a line may say why its program ended: a frame does not, nor what TensorFlow logs below `F`."""
    return bool(line.strip()) and not (_FRAME.match(line) or _LOGGED.match(line))


def writes(stack: Sequence[str]) -> bool:
    """Whether one of the last calls of a traceback, whose last line comes first, is one that writes a file."""
    calls = [number for number, line in enumerate(stack) if _FRAME.match(line)][:_LAST_CALLS]
    for number in calls:
        shown = [line for line in stack[max(0, number - 2) : number][::-1] if not _FRAME.match(line)]
        if not shown:
            continue
        call, marks = shown[0], shown[1] if len(shown) > 1 else ""
        if marks.strip() and not marks.strip(" ^~"):  # Python 3.11 and newer mark the part that failed
            call = call[len(marks) - len(marks.lstrip()) : len(marks)]
        elif call.count("open(") > 1:
            continue
        if _WRITES.search(call):
            return True
    return False


def starts(stack: Sequence[str]) -> bool:
    """Whether the last call of a traceback, whose last line comes first, starts a program by `subprocess`."""
    last = next(filter(None, map(_FRAME.match, stack)), None)
    return last is not None and last.group(3) == "_execute_child"


def unset(stack: Sequence[str]) -> str:
    """The variable of the environment that the last calls of a traceback ask for, whose last line comes first."""
    found = filter(None, map(_GETS.search, stack[:_LAST_CALLS]))
    return next((each.group(1) for each in found), "")


def argument(stack: Sequence[str]) -> str:
    """The number of the argument that the last call of a traceback takes by its place, whose last line comes first."""
    found = filter(None, map(_ARGV.search, stack[:_LAST_CALLS]))
    return next((each.group(1) for each in found), "")


def restores(stack: Sequence[str]) -> bool:
    """Whether a traceback, whose last line comes first, was in a call that reads a checkpoint."""
    return any(_RESTORES.search(line) for line in stack)


def _tracebacks(lines: Sequence[str]) -> list[_Traceback]:
    found: list[_Traceback] = []
    start, indent, ignored, before = -1, "", False, ""
    for number, line in enumerate(lines):
        if (opened := _OPENED.match(line)) or (start < 0 and _UNREADABLE.match(line)):
            start, ignored = number, before.startswith("Exception ignored in")
            indent = opened.group(1).replace("+", "|") if opened else ""
        elif start >= 0 and line.startswith(indent):
            said = line[len(indent) :]
            name = said.partition(":")[0]
            if _EXCEPTION.match(said) and ("." in name or name[0].isupper() or name in ("error",)):
                found.append(_Traceback(start, number, ignored))
                start = -1
        before = line or before
    return found


def _frames(found: Sequence[_Traceback]) -> set[int]:
    return {number for each in found for number in range(each.start, each.exception)}


def _goes_on(lines: Sequence[str], last: _Traceback, code: int | None) -> bool:
    """Whether the program went on after that traceback."""
    after = [line for line in lines[last.exception + 1 :] if line.strip()]
    steps = sum(bool(_GOES_ON.search(line)) for line in after if not line.startswith((" ", "\t")))
    if code == 1:
        return steps > 1
    return steps > 0 or len(after) > _AFTER


def _chain_start(lines: Sequence[str], found: Sequence[_Traceback], last: _Traceback) -> int:
    start = last.start
    for each in reversed(found[: found.index(last)]):
        if not any(line.lstrip(" |+").startswith(_CHAINED) for line in lines[each.exception + 1 : start]):
            break
        start = each.start
    return start


def _place(stack: Sequence[str]) -> str:
    """The innermost frame of a traceback that is in the user's program."""
    for line in reversed(stack):
        if (frame := _FRAME.match(line)) and not _NOT_THE_PROGRAMS.search(frame.group(1)):
            return _place_of(frame)
    return ""


def _crash_place(lines: Sequence[str]) -> str:
    """The same in what Python's faulthandler has written when a signal came: its innermost call is the first."""
    opened = [
        number for number, line in enumerate(lines) if line.startswith(("Current thread 0x", "Thread 0x"))
    ]
    current = [number for number in opened if lines[number].startswith("Current")] or opened[-1:]
    for line in lines[current[-1] + 1 :] if current else ():
        if not (frame := _FRAME.match(line)):
            break
        if not _NOT_THE_PROGRAMS.search(frame.group(1)):
            return _place_of(frame)
    return ""


def _place_of(frame: re.Match[str]) -> str:
    path, line, function = frame.groups()
    below = _RUN_WORK.fullmatch(path)
    shown = below.group(1) if below else "/".join(path.split("/")[-2:]) if path.count("/") > 1 else path
    inside = f" in {function}()" if function and not function.startswith("<") else ""
    return f"{shown}:{line}{inside}"
