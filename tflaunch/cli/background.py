"""A launcher that goes on without its terminal: of `sweep --detach`, and of `run --detach` that waits for slots."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

import typer

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def behind_the_terminal() -> Callable[[Path], None]:
    """Go on in a child process, which leaves the terminal once it calls what this returns.

    Until then it shares the terminal with this process: it may ask questions, and Ctrl-C ends it.  This process waits
    for that, and exits with 0; if the child ends before, with the child's exit code.  Call it before any thread starts.
    """
    mine, its = os.pipe()
    # Held until each side knows what to do: one that came just after the fork would end this process alone.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child:
        os.close(its)
        raise typer.Exit(_wait(child, mine, before))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(mine)

    def leave(log: Path) -> None:
        """Write everything to this file from now on, and let the command return."""
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        for number, source in enumerate((nothing, file, file)):
            os.dup2(source, number)
        os.close(nothing)
        os.close(file)
        with contextlib.suppress(BrokenPipeError):  # the command was killed: nobody waits for this
            os.write(its, b"left")
        os.close(its)

    return leave


def _wait(child: int, pipe: int, mask: Iterable[int]) -> int:
    """Wait until the child has left the terminal, or ended; return the exit code for this process."""

    def pass_on(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and _in_front():
            return  # the terminal sends it to the child as well
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if os.read(pipe, 4):
        return 0
    return_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return return_code if return_code >= 0 else 128 - return_code


def _in_front() -> bool:
    """Whether Ctrl-C on this process's terminal is for it."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
