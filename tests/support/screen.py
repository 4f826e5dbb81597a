"""What a reporter shows: through real pipes and real terminals (ptys), never through captured streams."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tflaunch.console.opening import open_reporter
from tflaunch.documents.reporter import Reporter
from tflaunch.protocol.job import TaskId

W0, W1, PS0 = TaskId("worker", 0), TaskId("worker", 1), TaskId("ps", 0)


class Reader:
    """Reads one end of a pipe or pty to its end, in a thread, so that the other end never blocks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parts: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._descriptor, 65536):
                self._parts.append(data)
        except OSError:  # EIO: how a pty says that its other end is closed
            pass
        os.close(self._descriptor)

    def text(self) -> str:
        self._thread.join()
        return b"".join(self._parts).decode()


def pipe() -> tuple[Reader, TextIO]:
    ours, theirs = os.pipe()
    return Reader(ours), os.fdopen(theirs, "w", encoding="utf-8")


def terminal(columns: int = 100) -> tuple[int, TextIO]:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    return ours, os.fdopen(theirs, "w", encoding="utf-8")


@contextmanager
def piped(**options: Any) -> Iterator[tuple[Reporter, Callable[[], tuple[str, str]]]]:
    """A reporter on two pipes, and a function that closes it and returns what they got."""
    out_reader, out = pipe()
    err_reader, err = pipe()
    reporter = open_reporter(stdout=out, stderr=err, **options)

    def finish() -> tuple[str, str]:
        reporter.close()
        out.close()
        err.close()
        return out_reader.text(), err_reader.text()

    yield reporter, finish


def shown(act: Callable[[Reporter], None], **options: Any) -> tuple[str, str]:
    with piped(**options) as (reporter, finish):
        act(reporter)
        return finish()


def on_terminal(act: Callable[[Reporter], None], columns: int = 100, **options: Any) -> str:
    ours, theirs = terminal(columns)
    reader = Reader(ours)
    reporter = open_reporter(stdout=theirs, stderr=theirs, **options)
    act(reporter)
    reporter.close()
    theirs.close()
    return reader.text()


def plain(screen: str) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;]*[mJK]", "", screen.replace("\r\n", "\n"))
    text = re.sub(r"[^\n]*\r", "", text)  # what a live line had shown there
    return [line.rstrip() for line in text.splitlines()]
