"""The one thread that writes to the terminal, so that a stopped terminal never stops the launcher.

Jobs come in three kinds.  The thread does a *notice* as soon as no line is half written, ahead of everything
that waits; a *message* in its turn; a *log* in its turn too, but drops it when the user is in a hurry.

All output to stdout or stderr passes through this module: `Stream.encode`, `write_result`, and `Screened` for what
others print.  Nothing in it acts on a terminal but tflaunch's own colours and the cursor moves of its live lines.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import stat
import sys
import termios
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Literal, TextIO

from tflaunch.protocol.errors import TflaunchError
from tflaunch.text.safe import screened

Job = Callable[[], None]
Kind = Literal["notice", "message", "log"]

_BATCH = 65_536  # bytes collected before they are written
_SLICE = select.PIPE_BUF  # what a pipe takes at once after select() has called it ready
_BLOCKED_S = 0.05  # how long to wait for a reader before looking for notices again
_HURRY_S = 0.3  # how long `close(wait=False)` waits at most


def dumb(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal, if there is one, says that it does no more than print lines; rich takes the same names."""
    return environ.get("TERM", "").lower() in ("dumb", "unknown")


def to_json(value: Any, *, compact: bool = False) -> str:
    """Return the value as JSON in one line of ASCII; NaN and infinities, which JSON does not have, are null.

    compact: without blanks.
    """
    import json

    separators = (",", ":") if compact else None
    try:
        return json.dumps(value, allow_nan=False, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


class Screened:
    """Wraps a text stream; what would act on a terminal does not pass, except colours."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as the stream does; a lone surrogate is no error."""
        if not isinstance(text, str):  # click tests whether the stream takes bytes
            return self._stream.write(text)
        self._stream.write(screened(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write as the stream does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def screen_streams() -> None:
    """Let all that is printed from now on, tracebacks too, pass through a `Screened`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Screened):
            setattr(sys, name, Screened(stream))


def unscreened(stream: TextIO) -> TextIO:
    """Return the stream inside a `Screened`, for code that moves the cursor."""
    return stream._stream if isinstance(stream, Screened) else stream


def write_result(text: str) -> None:
    """Write text to stdout at once; what the encoding lacks appears as `\\u2026`.

    Raises BrokenPipeError when the reader has gone away, TflaunchError when stdout cannot be written.
    """
    try:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stdout.write(screened(text))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        if isinstance(error, BrokenPipeError):
            raise
        raise TflaunchError(f"cannot write to stdout: {error.strerror}") from error


class Stream:
    """stdout or stderr, written past Python's buffers, whose lock would hold up the interpreter's exit."""

    def __init__(self, stream: TextIO) -> None:
        self.text = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.broken: OSError | None = None  # why nothing can be written any more
        self._fd: int | None = None
        self.look_again()

    def look_again(self) -> None:
        """See anew what is behind the descriptor: a terminal, a pipe or a file."""
        stream = self.text
        try:
            stream.flush()
            self._fd = stream.fileno()
            self.terminal = os.isatty(self._fd)
            kind = os.fstat(self._fd).st_mode
            self._waits = not stat.S_ISREG(kind)
            self._pipe = stat.S_ISFIFO(kind) and sys.platform == "linux"
        except (OSError, ValueError, AttributeError):  # no file behind it: io.StringIO, a notebook
            self._fd, self.terminal, self._waits, self._pipe = None, False, False, False
        self._slice = _SLICE if self._waits else 1 << 20

    def can_show(self, text: str) -> bool:
        """Return whether the encoding has these characters."""
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return False
        return True

    def size(self) -> tuple[int, int]:
        """Return the terminal's columns and rows; 0 for what it does not say, or when there is none."""
        try:
            return os.get_terminal_size(self._fd) if self._fd is not None else (0, 0)
        except OSError:
            return (0, 0)

    def same_terminal(self, other: Stream) -> bool:
        """Return whether what is written to either appears on one and the same screen."""
        if self._fd is None or other._fd is None or not (self.terminal and other.terminal):
            return False
        try:
            return os.fstat(self._fd).st_rdev == os.fstat(other._fd).st_rdev
        except OSError:
            return False

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Return whether a small write would not block."""
        if self._fd is None or not self._waits or self.broken:
            return True
        try:
            return bool(select.select([], [self._fd], [], timeout_s)[1])
        except (OSError, ValueError):  # closed meanwhile, or beyond FD_SETSIZE: the write will show
            return True

    def write_some(self, data: bytes, start: int) -> int:
        """Write one slice of `data` from `start` on, whole lines if there are any; return where it ended."""
        end = min(len(data), start + (self._empty_pipe() or self._slice))
        if end < len(data):
            end = data.rfind(b"\n", start, end) + 1 or data.find(b"\n", end) + 1 or len(data)
        if self.broken:
            return len(data)
        try:
            if self._fd is None:
                self.text.write(data[start:end].decode(self.encoding, "replace"))
                self.text.flush()
                return end
            return start + os.write(self._fd, memoryview(data)[start:end])
        except BlockingIOError:
            return start
        except OSError as error:
            self.broken = error
            return len(data)

    def _empty_pipe(self) -> int:
        """Return what a pipe takes at once if its reader has read all; 0 otherwise, or for no pipe."""
        if self._fd is None or not self._pipe:
            return 0
        try:
            unread = any(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))
            return 0 if unread else fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ)
        except OSError:
            return 0

    def encode(self, text: str) -> bytes:
        """Encode the text for this stream; only colours pass of what acts on a terminal.

        What the encoding lacks appears as `\\xff` or `\\u2502`.
        """
        return screened(text).encode(self.encoding, "backslashreplace")


class Writer:
    """Runs jobs in a thread of its own, which alone may call `out`, `err` and `after`.

    tick: the thread calls it between jobs; it returns how many seconds later at the latest to call it
    again (None: after the next job).
    broken: the thread calls it once when stdout can no longer be written: its reader went away, or its disk is full.
    """

    def __init__(
        self,
        stdout: Stream,
        stderr: Stream,
        tick: Callable[[], float | None],
        broken: Callable[[OSError], None],
    ) -> None:
        self.stdout, self.stderr = stdout, stderr
        self._tick, self._broken = tick, broken
        # A signal handler may call put() while put() runs: SimpleQueue allows that, a lock would block.
        self._inbox: SimpleQueue[tuple[Kind, Job] | None] = SimpleQueue()
        self._notices: deque[Job] = deque()
        self._others: deque[tuple[Kind, Job]] = deque()
        self._collected: list[bytes] = []  # for stdout
        self._size = 0
        self._writing, self._position = b"", 0
        self._after: list[Job] = []  # jobs to do once everything above is written
        self._closing = self._hurry = self._batch_over = False
        self._said_broken = False
        self._next_tick: float | None = None
        # A daemon thread: a terminal that is stopped for ever must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="tflaunch-writer", daemon=True)
        self._thread.start()

    def put(self, kind: Kind, job: Job) -> None:
        """Give the thread a job; never blocks; may be called from a signal handler."""
        self._inbox.put((kind, job))

    def out(self, text: str) -> None:
        """Write to stdout, after all that was given before."""
        self.out_bytes(self.stdout.encode(text))

    def out_lines(self, prefix: str, lines: str) -> None:
        """Write these whole lines to stdout, each behind `prefix`; the caller has made them safe for a terminal."""
        # Encoded separately: one wide character in the prefix would make all of the text wide, and slow.
        start = self.stdout.encode(prefix)
        data = lines[:-1].encode(self.stdout.encoding, "backslashreplace").replace(b"\n", b"\n" + start)
        self._collected += [start, data, b"\n"]
        self._size += len(start) + len(data) + 1

    def out_bytes(self, data: bytes) -> None:
        """Write bytes to stdout as they are; not for a terminal."""
        self._collected.append(data)
        self._size += len(data)

    def err(self, text: str, before: str = "", after: str = "") -> None:
        """Write to stderr at once; `before` and `after` move the cursor around the text."""
        data, position = before.encode("ascii") + self.stderr.encode(text) + after.encode("ascii"), 0
        while position < len(data):
            self.stderr.ready(1.0)
            position = self.stderr.write_some(data, position)

    def end_batch(self) -> None:
        """Before the next job that is no notice, write everything given so far, and call `tick`."""
        self._batch_over = True

    def after(self, job: Job) -> None:
        """Do `job` when everything that was given before is written, or dropped."""
        self._after.append(job)

    def close(self, wait: bool = True) -> None:
        """Write what is queued and end the thread.

        With `wait=False` drop queued logs, and give messages 0.3 s.  A signal handler may call that while the
        launcher waits in `close()`, which then returns too.
        """
        if not self._closing:
            self._closing = True
            self._inbox.put(None)
        if not wait:
            self._hurry = True
            self._inbox.put(None)
            self._thread.join(_HURRY_S)
            return
        while self._thread.is_alive() and not self._hurry:
            self._thread.join(0.1)
        self._thread.join(_HURRY_S)

    def _run(self) -> None:
        while True:
            self._receive(0.0)
            if self._notices and not (self._half_a_line and self.stdout.terminal):
                self._do(self._notices.popleft())
            elif self._size or self._position < len(self._writing):
                self._write()
            elif self._after:
                done, self._after = self._after, []
                for job in done:
                    self._do(job)
            elif self._others:
                self._do(self._tick_job)
                self._work()
            elif self._closing and self._inbox.empty():
                return
            else:
                self._do(self._tick_job)
                if not (self._size or self._after):
                    self._receive(self._next_tick)

    def _tick_job(self) -> None:
        self._next_tick = None
        self._next_tick = self._tick()

    @property
    def _half_a_line(self) -> bool:
        return 0 < self._position < len(self._writing) and self._writing[self._position - 1] != ord("\n")

    def _receive(self, timeout_s: float | None) -> None:
        """Sort the jobs that came in by kind; wait at most `timeout_s` (None: for ever) for the first."""
        try:
            while True:
                item = self._inbox.get(block=timeout_s != 0.0, timeout=timeout_s)
                timeout_s = 0.0
                if item is None:
                    return
                if item[0] == "notice":
                    self._notices.append(item[1])
                else:
                    self._others.append(item)
        except Empty:
            pass

    def _work(self) -> None:
        """Do jobs until there is a batch to write; a message waits for the logs before it."""
        self._batch_over = False
        while self._others and self._size < _BATCH and not self._batch_over:
            kind, job = self._others[0]
            if kind == "message" and self._size:
                return
            self._others.popleft()
            if not (kind == "log" and self._hurry):
                self._do(job)

    def _write(self) -> None:
        if self._position >= len(self._writing):
            self._writing, self._position = b"".join(self._collected), 0
            self._collected, self._size = [], 0
        if self.stdout.ready(0.0 if self._notices else _BLOCKED_S):
            self._position = self.stdout.write_some(self._writing, self._position)
            if self.stdout.broken and not self._said_broken:
                self._said_broken = True
                self._broken(self.stdout.broken)
        elif self._hurry:
            self._position = len(
                self._writing
            )  # the reader does not read, and the user does not want to wait

    def _do(self, job: Job) -> None:
        try:
            job()
        except Exception:  # a defect in showing one thing must not silence everything after it
            self.err(traceback.format_exc())
