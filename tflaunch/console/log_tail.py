"""What the last lines of a task's log say about its failure."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from tflaunch.diagnosis import last_words
from tflaunch.diagnosis.last_error import LIMIT_BYTES, last_error
from tflaunch.protocol.job import log_name
from tflaunch.protocol.outcome import TaskExit
from tflaunch.sessions.log_lines import LineAssembler, one_line

TAIL_LINES = 30
WORDS = 1000  # lines in which a known cause is looked for


def tail_lines(data: bytes, most: int = TAIL_LINES) -> list[str]:
    """Return the last lines of a log, made safe to show."""
    assembler = LineAssembler()
    return (assembler.feed(data) + assembler.end()).split("\n")[:-1][-most:]


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


def advice(exit: TaskExit, interpreter: str | None, where: Callable[[str], str] = lambda _: "") -> str:
    """Return the next step to take after a failure of a known kind, or "".

    where: says where a module lies that the task did not find (tflaunch.diagnosis.last_words).
    """
    if exit.signal == signal.SIGKILL and not exit.stopped:
        return (
            f"ssh {exit.host} 'dmesg -T | grep -i oom' shows whether the kernel killed it when memory ran out"
        )
    if not exit.code:
        return ""
    return last_words.advice(
        tail_lines(exit.tail, WORDS), python=interpreter or "", host=exit.host, where=where
    )
