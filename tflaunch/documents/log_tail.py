"""What the last lines of a task's log say about its failure."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.documents.startup_lines import StartupLines
from tflaunch.ends.known_end import NOWHERE, Here, KnownEnd, Meaning
from tflaunch.ends.last_error import LIMIT_BYTES, last_error
from tflaunch.protocol.job import log_name
from tflaunch.protocol.outcome import TaskExit, signal_name
from tflaunch.text.lines import LineAssembler
from tflaunch.text.safe import one_line

if TYPE_CHECKING:
    from tflaunch.planning.cluster_plan import TaskPlan

TAIL_LINES = 30
WORDS = 1000  # lines in which a known cause is looked for
ROWS = 3  # so many lines of numbers in a row are shown; more are rows of an array, of no use to a reader
_OF_NUMBERS = frozenset(" \t[](){},.:;+-0123456789eE")


def tail_lines(data: bytes) -> list[str]:
    """Return the last lines of a log, made safe to show: of the rows of an array only how many there are.

    Lines that TensorFlow writes at each start are left out, unless it has written nothing else.
    """
    lines = _lines(data)
    startup = StartupLines()
    said = [line for line in lines if not startup.has(line)]
    return _without_rows(said or lines)[-TAIL_LINES:]


def lines_to_search(data: bytes) -> list[str]:
    """Return the last lines of a log in which a known cause is looked for."""
    return _without_rows(_lines(data))[-WORDS:]


def _lines(data: bytes) -> list[str]:
    assembler = LineAssembler()
    return (assembler.feed(data) + assembler.end()).split("\n")[:-1]


def _without_rows(lines: Sequence[str]) -> list[str]:
    found: list[str] = []
    for numbers, of_it in itertools.groupby(lines, _is_row):
        rows = list(of_it)
        found += [f"… {len(rows)} lines of numbers"] if numbers and len(rows) > ROWS else rows
    return found


def _is_row(line: str) -> bool:
    """Whether a line shows nothing but numbers, as `numpy` and TensorFlow write the rows of an array."""
    return _OF_NUMBERS.issuperset(line) and any(map(line.__contains__, "0123456789.")) and line[:1] in " [\t"


def error_of(exit: TaskExit, record: str = "") -> str:
    """Return the line of its log that says why a task failed, "" for none.

    record: the launcher's directory of the run; its copy of the log is read if it is complete, else only the tail
    that came with the exit.
    """
    end = exit.tail
    if record:
        copy = Path(record, "logs", log_name(exit.task, exit.attempt))
        with contextlib.suppress(OSError, ValueError), copy.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LIMIT_BYTES))
            if size >= exit.log_bytes:
                end = log.read(LIMIT_BYTES) or end
    return one_line(last_error(end.decode("utf-8", "backslashreplace")))


def is_last(error: str, tail: Sequence[str]) -> bool:
    """Return whether the error is the last of these lines, in full or shortened."""
    if not tail:
        return False
    return tail[-1] == error or (error.endswith(" ...") and tail[-1].startswith(error[:-4]))


def stuck_lines(tail: bytes) -> list[str]:
    """Return the stack of the task's current thread, if faulthandler has written it: where the task was stuck."""
    lines: list[str] = []
    for line in tail.rpartition(b"\nCurrent thread ")[2].decode("utf-8", "replace").splitlines()[1:]:
        if not line.startswith("  File "):
            break
        lines.append(line.strip())
    return lines[:TAIL_LINES]


def meaning_of(
    exit: TaskExit,
    task: TaskPlan | None = None,
    here: Here = NOWHERE,
    others: Iterable[TaskExit] = (),
    gpus_held: Sequence[str] = (),
) -> Meaning:
    """Return what a task's end means, and the next step to take.

    task: its plan, where that is known.  here: what this machine knows of the program (tflaunch.ends.here).
    others: ends of other tasks of the run, whose hosts' facts are compared.  gpus_held: GPUs that are not free.
    """
    if exit.stopped or not (exit.exit_code or exit.facts):
        return Meaning()
    from tflaunch.ends.interpret import meaning  # all rules, of which most runs need none

    others = list(others)
    done = [each.task for each in others if each.task.job == exit.task.job and each.exit_code == 0]
    end = KnownEnd(
        str(exit.task),
        exit.host,
        exit.code,
        signal_name(exit),
        exit.seconds,
        exit.facts,
        task.argv if task else (),
        task.env if task else {},
        {each.host: each.facts for each in others if each.host != exit.host and each.facts},
        gpus_held,
        len(task.gpus) if task else None,
        [str(each) for each in sorted(done)],
        task.port if task else None,
    )
    return meaning(lines_to_search(exit.tail), end, here)
