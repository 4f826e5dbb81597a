"""What a watcher sees: through real pipes and real terminals (ptys), never through captured streams."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import itertools
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from tflaunch.console.reporter import Reporter, open_reporter
from tflaunch.console.safe_text import Text, hung
from tflaunch.console.writer import Stream
from tflaunch.launch.watcher import Turn
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.errors import (
    ConnectError,
    ConnectErrors,
    HostfileError,
    LaunchError,
    PlanError,
    Problem,
)
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import CardLeft, HostLost, Outcome, TaskExit
from tflaunch.sessions.log_lines import LineAssembler, printable

W0, W1, PS0 = TaskId("worker", 0), TaskId("worker", 1), TaskId("ps", 0)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


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


# The line assembler

TEXT = "first ü line\n\nbar 1%\rbar 50%\rbar 100%\nlast € 🎉\r\n\x1b[31mred\x1b[0m\xa0 no end".encode()
LINES = "first ü line\n\nbar 100%\nlast € 🎉\nred\xa0 no end\n"


@pytest.mark.parametrize("cut", range(len(TEXT) + 1))
def test_lines_are_the_same_however_the_bytes_are_cut(cut: int) -> None:
    assembler = LineAssembler()
    assert assembler.feed(TEXT[:cut]) + assembler.feed(TEXT[cut:]) + assembler.end() == LINES


def test_lines_are_the_same_byte_by_byte() -> None:
    assembler = LineAssembler()
    lines = "".join(assembler.feed(bytes([byte])) for byte in TEXT)
    assert lines + assembler.end() == LINES


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\xffb\n", ["a\\xffb"]),
        (b"cut \xe2\x82", ["cut \\xe2\\x82"]),
        (b"\xe2\x82\nnext\n", ["\\xe2\\x82", "next"]),
        (b"nul \x00 bell \x07 tab \t.\n", ["nul \\x00 bell  tab \t."]),
        (b"\x1b]0;my title\x07\x1b[2J\x1b[10;10Hhome\x1b[K\n", ["home"]),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", ["link"]),
        (b"unended \x1b]0;title\n", ["unended 0;title"]),
        (b"\x1b(Bcharset \x1bcreset\x1b\n", ["charset reset"]),
        ("\x9b31mC1 \x90dcs\x9c.\n".encode(), ["C1 ."]),
        ("evil\u202etxt.exe\n".encode(), ["evil\\u202etxt.exe"]),
        (b"spin -\b\\\b|\b/\bdone\n", ["spin done"]),
        (b"1/2 [=>.]\b\b\b\b\b\b\b\b\b\r2/2 [===]\n", ["2/2 [===]"]),
        (b"10%\r     \r\x1b[K\n", ["10%"]),
        (b"\r\n\r\n", ["", ""]),
        (b"", []),
    ],
)
def test_what_a_line_looks_like(data: bytes, lines: list[str]) -> None:
    assembler = LineAssembler()
    assert assembler.feed(data) + assembler.end() == "".join(f"{line}\n" for line in lines)


def test_colours_stay_when_they_may_and_never_leak_into_the_next_line() -> None:
    assembler = LineAssembler(colour=True)
    assert assembler.feed(b"\x1b[1;31mred\x1b[2K\nplain\n") == "\x1b[1;31mred\x1b[0m\nplain\n"


def test_raw_lines_keep_their_control_sequences() -> None:
    assembler = LineAssembler(raw=True)
    assert assembler.feed(b"\x1b[2J\x00\xff\r\n") == "\x1b[2J\x00\\xff\n"


def test_an_endless_line_costs_no_memory_and_is_cut_with_a_number() -> None:
    assembler = LineAssembler(max_line=100)
    for _ in range(1024):
        assert assembler.feed(b"x" * 1024) == ""
        assert len(assembler._held) <= 100
    line = assembler.feed(b"\nnext")
    assert line == "x" * 100 + f" ... {1024 * 1024 - 100:,} more characters, see the log file\n"
    assert assembler.end() == "next\n"


def test_a_long_line_in_the_middle_of_a_chunk_is_cut_too() -> None:
    assembler = LineAssembler(max_line=10)
    lines = assembler.feed(b"a\n" + b"y" * 12 + b"\nb\n")
    assert lines == "a\nyyyyyyyyyy ... 2 more characters, see the log file\nb\n"


def test_a_progress_bar_gives_its_present_state_once_and_no_line_twice() -> None:
    assembler = LineAssembler()
    for step in range(10_000):
        assert assembler.feed(f"\rstep {step}".encode()) == ""
    assert assembler.rewriting
    assert assembler.progress() == "step 9999"
    assert not assembler.rewriting
    assert assembler.progress() is None
    assert assembler.feed(b"\nafter\n") == "after\n"  # step 9999 was shown already


def test_a_line_that_is_merely_slow_is_no_progress_bar() -> None:
    assembler = LineAssembler()
    assembler.feed(b"loading ...")
    assert assembler.progress() is None
    assert assembler.feed(b" done\n") == "loading ... done\n"


def test_hostile_bytes_never_leave_anything_that_acts() -> None:
    every = bytes(range(256)) * 3 + "".join(map(chr, range(0x80, 0xA0))).encode()
    for escape in (b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b[?1049h", b"\xc2\x9b2J"):
        for line in [printable((escape + every).decode("utf-8", "replace"))]:
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", line)


# Logs through pipes


def test_each_line_has_its_task_before_it_in_a_column() -> None:
    def act(reporter: Reporter) -> None:
        reporter.started(TaskStarted(W0, "gpu01"))
        reporter.started(TaskStarted(PS0, "gpu2"))
        reporter.log(PS0, "gpu2", 0, b"one\ntwo\n")
        reporter.log(W0, "gpu01", 0, b"three\nfo")
        reporter.log(PS0, "gpu2", 8, b"five\n")
        reporter.log(W0, "gpu01", 8, b"ur\n")

    plain, err = shown(act)
    assert plain == "ps/0     │ one\nps/0     │ two\nworker/0 │ three\nps/0     │ five\nworker/0 │ four\n"
    assert err == ""
    with_host, _ = shown(act, show_host=True)
    assert with_host.splitlines()[0] == "ps/0     gpu2  │ one"
    assert with_host.splitlines()[2] == "worker/0 gpu01 │ three"


def test_a_last_line_without_newline_is_shown_when_its_task_ends() -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W0, "a", 0, b"Killed")
        reporter.log_end(W0)
        reporter.log_end(W0)

    assert shown(act)[0] == "worker/0 │ Killed\n"


def test_bytes_that_come_twice_are_shown_once_and_a_gap_is_named() -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W0, "a", 100, b"one\ntwo\n")  # the first may begin anywhere
        reporter.log(W0, "a", 104, b"two\nthree\n")
        reporter.log(W0, "a", 2114, b"four\n")

    assert shown(act)[0].splitlines() == [
        "worker/0 │ one",
        "worker/0 │ two",
        "worker/0 │ three",
        "worker/0 │ … 2,000 bytes are missing here …",
        "worker/0 │ four",
    ]


@pytest.mark.parametrize("options", [{}, {"quiet": True}, {"only": {W1}}, {"json": True}])
def test_every_byte_is_given_back_whether_shown_or_not(options: dict[str, Any]) -> None:
    returned: list[int] = []
    threads: set[str] = set()

    def written(count: int) -> None:
        returned.append(count)
        threads.add(threading.current_thread().name)

    def act(reporter: Reporter) -> None:
        for number in range(50):
            reporter.log(W0, "a", number * 5, b"line\n", written)
            reporter.log(W1, "b", number * 5, b"Line\n", written)

    out, _ = shown(act, **options)
    assert sum(returned) == 500
    assert threads == {"tflaunch-writer"}
    assert ("worker/0" in out) == (not options or "json" in options)
    assert ("worker/1" in out) == (not options.get("quiet", False))


def test_eighty_thousand_lines_of_eight_tasks_all_arrive_whole() -> None:
    tasks = [TaskId("worker", index) for index in range(8)]

    def act(reporter: Reporter) -> None:
        at = 0
        for first in range(0, 10_000, 100):
            data = b"".join(b"line %05d of this task\n" % number for number in range(first, first + 100))
            for task in tasks:
                reporter.log(task, "a", at, data[:777])
            for task in tasks:
                reporter.log(task, "a", at + 777, data[777:])
            at += len(data)

    lines = shown(act)[0].splitlines()
    assert len(lines) == 80_000
    for task in tasks:
        own = [line for line in lines if line.startswith(f"{task} │ ")]
        assert own == [f"{task} │ line {number:05} of this task" for number in range(10_000)]


def test_an_empty_pipe_is_filled_at_once_and_a_slow_reader_gets_every_line_once() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)  # what would wait for the reader is cut short, and so is a line
    room = fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ)
    data = b"".join(b"%05d %s\n" % (number, b"x" * (number % 90)) for number in range(room // 10))
    read, written = b"", 0
    with os.fdopen(theirs, "w") as out:
        stream = Stream(out)
        for size in itertools.cycle([5003, 5003, 5003, room]):  # the last one mostly empties it
            while written < len(data) and stream.ready():
                start, empty = written, len(read) == written
                written = stream.write_some(data, start)
                assert data[written - 1 : written] == b"\n"
                assert written - start <= (room if empty else select.PIPE_BUF)
                assert not empty or written - start > room - 100 or written == len(data)
            read += os.read(ours, size)
            if len(read) == len(data):
                break
    os.close(ours)
    assert read == data


def test_ten_thousand_states_of_a_progress_bar_are_a_handful_of_lines() -> None:
    def act(reporter: Reporter) -> None:
        at = 0
        for step in range(10_000):
            data = f"\r{step / 100:6.2f}%".encode()
            reporter.log(W0, "a", at, data)
            at += len(data)
        reporter.log(W0, "a", at, b"\n")

    lines = shown(act)[0].splitlines()
    assert lines[-1] == "worker/0 │  99.99%"
    assert len(lines) < 100


def test_a_progress_bar_is_shown_while_it_moves() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "w", encoding="utf-8") as out:
        reporter = open_reporter(stdout=out, stderr=out)
        reporter.log(W0, "a", 0, b"\rstep 7 of 9")
        assert os.read(ours, 100).decode() == "worker/0 │ step 7 of 9\n"  # without its newline
        reporter.close()
    os.close(ours)


def test_an_encoding_without_box_drawing_gets_ascii(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as out:
        reporter = open_reporter(stdout=out, stderr=out)
        reporter.log(W0, "a", 0, "grün\n".encode())
        reporter.phase("connecting", 4, 4)
        reporter.close()
    assert path.read_bytes() == b"worker/0 | gr\\xfcn\nok connected 4/4\n"


def test_streams_without_a_file_work_too() -> None:
    out, err = io.StringIO(), io.StringIO()
    reporter = open_reporter(stdout=out, stderr=err)
    reporter.log(W0, "a", 0, b"line\n")
    reporter.warn("look [at] this")
    reporter.close()
    assert out.getvalue() == "worker/0 │ line\n"
    assert err.getvalue() == "! look [at] this\n"


# Terminals


def test_colours_are_for_terminals_only_and_stable_per_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(reporter: Reporter) -> None:
        reporter.log(W0, "a", 0, b"\x1b[32mgreen\x1b[0m\n")

    def act_later(reporter: Reporter) -> None:
        reporter.log(W1, "b", 0, b"before\n")
        act(reporter)

    assert shown(act)[0] == "worker/0 │ green\n"
    coloured = on_terminal(act)
    assert re.fullmatch(r"\x1b\[38;5;\d+mworker/0\x1b.*│\x1b\[0m \x1b\[32mgreen\x1b\[0m.*\r?\n", coloured)
    assert coloured in on_terminal(act_later)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in on_terminal(act)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "green" in on_terminal(act)
    assert "\x1b[32m" not in on_terminal(act)
    assert "38;5" not in on_terminal(act)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32m" in shown(act)[0]


def test_a_phase_is_one_live_line_on_a_terminal_and_one_plain_line_elsewhere() -> None:
    def act(reporter: Reporter) -> None:
        for done in range(5):
            reporter.phase("connecting", done, 4, f"gpu0{done}")
        reporter.phase("connecting", 4, 4)  # again: says nothing new
        reporter.phase("training", 0, 2)
        reporter.log(W0, "a", 0, b"line\n")

    out, err = shown(act)
    assert out == "worker/0 │ line\n"
    assert re.fullmatch(r"✓ connected 4/4 in \d\.\d s  gpu04\ntraining 2 tasks\n", err)
    screen = on_terminal(act)
    assert ("connecting" in screen) == ("\r\x1b[K" in screen)  # a live line is wiped before anything else
    assert "connected 4/4" in screen
    assert "\x1b[?25l" not in screen  # the cursor is never hidden: nobody might be left to show it


def test_the_live_line_moves_and_fits_the_terminal() -> None:
    ours, theirs = terminal(columns=40)
    reporter = open_reporter(stdout=theirs, stderr=theirs)
    reporter.phase("connecting", 1, 4, "gpu4 is much longer than the terminal is wide")
    seen = ""
    while len(re.findall("connecting", seen)) < 3:
        seen += os.read(ours, 65536).decode()
    assert "gpu4" in seen
    reader = Reader(ours)
    reporter.close()
    theirs.close()
    assert "1/4" in seen
    for line in (seen + reader.text()).split("\r")[1:3]:
        assert len(re.sub(r"\x1b\[[0-9;]*[mK]", "", line)) < 40


TURN = Turn(2, ("bob's run b-1",), 1, 2, (("gpu01:0", "ada's run a-1 since 10:32"),))


def test_a_wait_is_one_live_line_on_a_terminal_and_one_line_for_each_change_elsewhere() -> None:
    def act(reporter: Reporter) -> None:
        for turn in (TURN, TURN, dataclasses.replace(TURN, place=1, behind=(), free=2), TURN):
            reporter.waiting(turn)
        reporter.phase("waiting", 2, 2)

    err = shown(act)[1].splitlines()
    second = (
        "waiting: 1 of 2 GPUs are free; 2nd in line, behind bob's run b-1; gpu01:0 ada's run a-1 since 10:32"
    )
    first = "waiting: 2 of 2 GPUs are free; 1st in line; gpu01:0 ada's run a-1 since 10:32"
    assert [line.strip() for line in err[:-1]] == [second, first, second]
    assert err[-1].startswith("✓ waited for GPUs 2/2")
    (line,) = plain(on_terminal(act, columns=100))
    assert line.startswith("✓ waited for GPUs 2/2")
    events = [json.loads(line) for line in shown(act, json=True)[0].splitlines()]
    assert [event["event"] for event in events] == ["waiting", "waiting", "waiting", "phase"]
    del events[0]["time"]
    assert events[0] == {
        "event": "waiting",
        "place": 2,
        "behind": ["bob's run b-1"],
        "free": 1,
        "needed": 2,
        "held": [["gpu01:0", "ada's run a-1 since 10:32"]],
        "lost": [],
    }


def test_a_wait_in_vain_is_told_by_its_error_alone() -> None:
    def act(reporter: Reporter) -> None:
        reporter.waiting(TURN)
        reporter.error(PlanError("waited in vain"))

    assert plain(on_terminal(act)) == ["✗ waited in vain"]


def test_a_phase_cut_short_says_how_far_it_came() -> None:
    def act(reporter: Reporter) -> None:
        reporter.phase("connecting", 3, 4, "gpu04")
        reporter.error(PlanError("no room", "make some"))

    err = shown(act)[1]
    assert re.fullmatch(r"! connected 3/4 after \d\.\d s, not gpu04\n✗ no room\n  → make some\n", err)

    def fetch(reporter: Reporter) -> None:
        reporter.phase("fetching", 0, 1, "1.0 of 5.0 MiB")
        reporter.error(PlanError("no room", "make some"))

    assert re.match(r"! fetched 0/1 after \d\.\d s, 1\.0 of 5\.0 MiB\n", shown(fetch)[1])


def test_notices_overtake_logs_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    err_reading, err_writing = os.pipe()
    with (
        os.fdopen(writing, "w", encoding="utf-8") as out,
        os.fdopen(err_writing, "w", encoding="utf-8") as err,
    ):
        reporter = open_reporter(stdout=out, stderr=err)
        for number in range(100):
            reporter.log(W0, "a", number * 65536, (b"x" * 1023 + b"\n") * 64)  # 6 MiB: a pipe takes 64 KiB
        reporter.say("stopping 4 tasks")
        assert os.read(err_reading, 100) == b"stopping 4 tasks\n"
        reporter.close(wait=False)
    os.close(err_reading)
    os.close(reading)


def test_a_stopped_terminal_blocks_neither_the_caller_nor_a_hurried_close() -> None:
    ours, theirs = terminal()
    termios.tcflow(theirs.fileno(), termios.TCOOFF)  # what Ctrl-S does
    reporter = open_reporter(stdout=theirs, stderr=theirs)
    for number in range(1000):
        reporter.log(W0, "a", number * 4096, b"x" * 4095 + b"\n")
    reporter.say("stopping")
    reporter.report(Outcome("run-1", "interrupted", 130, 1.0))
    reporter.close(wait=False)
    assert not select.select([ours], [], [], 0)[0]  # it was stopped indeed
    termios.tcflow(theirs.fileno(), termios.TCOON)
    Reader(ours)
    theirs.close()


def test_a_process_with_a_stopped_terminal_can_still_exit() -> None:
    ours, theirs = terminal()
    script = textwrap.dedent("""
        import sys, termios
        from tflaunch.console.reporter import open_reporter
        from tflaunch.protocol.job import TaskId
        termios.tcflow(1, termios.TCOOFF)
        reporter = open_reporter()
        for number in range(100):
            reporter.log(TaskId("worker", 0), "a", number * 4096, b"x" * 4095 + b"\\n")
        reporter.warn("help")
        reporter.close(wait=False)
        sys.exit(7)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    assert process.wait() == 7
    termios.tcflow(theirs.fileno(), termios.TCOON)
    os.close(ours)
    theirs.close()


def test_a_signal_handler_may_talk_and_end_a_close_that_waits() -> None:
    ours, theirs = terminal()
    termios.tcflow(theirs.fileno(), termios.TCOOFF)
    reporter = open_reporter(stdout=theirs, stderr=theirs)
    reporter.log(W0, "a", 0, b"line\n" * 100_000)

    def handle(*_: object) -> None:
        reporter.say("killing")
        reporter.close(wait=False)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        reporter.close()  # would wait for ever
    finally:
        signal.signal(signal.SIGALRM, before)
    termios.tcflow(theirs.fileno(), termios.TCOON)
    Reader(ours)
    theirs.close()


# A reader that goes away


@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_that_leaves_ends_the_output_but_not_the_run(as_json: bool) -> None:
    reading, writing = os.pipe()
    err_reader, err = pipe()
    returned: list[int] = []
    with os.fdopen(writing, "w", encoding="utf-8") as out:
        reporter = open_reporter(json=as_json, stdout=out, stderr=err)
        reporter.log(W0, "a", 0, b"seen\n", returned.append)
        assert b"seen" in os.read(reading, 1000)
        os.close(reading)
        for number in range(1, 200):
            reporter.log(W0, "a", number * 5, b"more\n", returned.append)
        reporter.warn("still here")
        reporter.close()
    err.close()
    assert reporter.broken
    assert sum(returned) == 1000
    assert err_reader.text() == ("" if as_json else "! still here\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_said_once() -> None:
    err_reader, err = pipe()
    with open(os.open("/dev/full", os.O_WRONLY), "w", encoding="utf-8") as out:  # noqa: PTH123
        reporter = open_reporter(stdout=out, stderr=err)
        for number in range(100):
            reporter.log(W0, "a", number * 5, b"line\n")
        reporter.close()
    err.close()
    assert err_reader.text() == (
        "cannot write to stdout: No space left on device; the run goes on, its logs are on record\n"
    )


def test_head_ends_without_a_traceback() -> None:
    script = textwrap.dedent("""
        from tflaunch.console.reporter import open_reporter
        from tflaunch.protocol.job import TaskId
        reporter = open_reporter()
        for number in range(100):
            reporter.log(TaskId("worker", 0), "a", number * 60000, b"line.\\n" * 10000)
        reporter.close()
        print(reporter.broken, file=__import__("sys").stderr)
    """)
    command = f"{sys.executable} -c '{script}' | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "worker/0 │ line.\n"
    assert done.stderr == "True\n"


# The rest of what is shown


def task_plan(task: TaskId, host: str, *gpus: str) -> TaskPlan:
    argv = (
        "python",
        "trainer.py",
        "--ps_hosts=gpu01:2000",
        "--worker_hosts=gpu01:2001,gpu02:2001",
        f"--job_name={task.job}",
        f"--task_index={task.index}",
        "--data",
        "my set",
    )
    port = 2000 if task.job == "ps" else 2001
    cards = tuple(f"GPU-{index}" for index in gpus)
    return TaskPlan(task, host, host, port, cards, gpus, argv, {"TF_CONFIG": "{}"}, (), None)


PLAN = ClusterPlan(
    "trainer-abc234",
    (task_plan(PS0, "gpu01"), task_plan(W0, "gpu01", "0", "3"), task_plan(W1, "gpu02", "1", "2")),
    ("gpu02 has [proxies]",),
)


def test_the_plan_is_a_table_and_one_command() -> None:
    out, err = shown(lambda reporter: reporter.plan(PLAN))
    assert err == ""
    assert out.splitlines() == [
        "task       host    address      GPUs",
        "ps/0       gpu01   gpu01:2000   -",
        "worker/0   gpu01   gpu01:2001   0,3",
        "worker/1   gpu02   gpu02:2001   1,2",
        "",
        "ps/0 runs, in the shipped code:",
        "  python trainer.py --ps_hosts=gpu01:2000 --worker_hosts=gpu01:2001,gpu02:2001 --job_name=ps"
        " --task_index=0 --data 'my set'",
        "and each task likewise, with its own --job_name and --task_index",
        "--json shows each task with its environment",
        "! gpu02 has [proxies]",
    ]


def plain(screen: str) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;]*[mK]", "", screen).replace("\r", "")
    return [line.rstrip() for line in text.splitlines()]


def test_a_narrow_terminal_breaks_neither_an_address_nor_a_word_of_the_command() -> None:
    assert plain(on_terminal(lambda reporter: reporter.plan(PLAN), columns=35)) == [
        "ps/0 on gpu01",
        "  gpu01:2000",
        "worker/0 on gpu01",
        "  gpu01:2001, GPUs 0,3",
        "worker/1 on gpu02",
        "  gpu02:2001, GPUs 1,2",
        "",
        "ps/0 runs, in the shipped code:",
        "  python trainer.py \\",
        "    --ps_hosts=gpu01:2000 \\",
        "    --worker_hosts=gpu01:2001,gpu02:2001 \\",  # one word, left for the terminal to wrap
        "    --job_name=ps --task_index=0 \\",
        "    --data 'my set'",
        "and each task likewise, with its",
        "own --job_name and --task_index",
        "--json shows each task with its",
        "environment",
        "! gpu02 has [proxies]",
    ]
    wide = plain(on_terminal(lambda reporter: reporter.plan(PLAN), columns=36))
    assert wide[:2] == ["task       host    address      GPUs", "ps/0       gpu01   gpu01:2000   -"]


def test_the_command_that_is_shown_is_the_one_that_runs() -> None:
    screen = "\n".join(plain(on_terminal(lambda reporter: reporter.plan(PLAN), columns=30)))
    command = screen[screen.index("  python") : screen.index("and each")]
    assert tuple(shlex.split(command.replace("\\\n", ""))) == PLAN.tasks[0].argv


def test_what_differs_between_tasks_is_named() -> None:
    tasks = [PLAN.tasks[0], PLAN.tasks[2]]
    own = dataclasses.replace(tasks[1], argv=("/opt/python", *tasks[1].argv[1:]), cwd="/srv/train")
    out = shown(lambda reporter: reporter.plan(ClusterPlan("r-1", (tasks[0], own))))[0]
    assert "with its own interpreter, --job_name and --task_index\nother tasks run in /srv/train\n" in out
    assert (
        "each task"
        not in shown(lambda reporter: reporter.plan(ClusterPlan("r-1", (own,))))[0].split("--json")[0]
    )


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ({W0}, None),
        ({TaskId("worker", 7)}, "--only worker/7: the plan has worker/0 to worker/1"),
        ({W0, TaskId("ps", 1)}, "--only ps/1: the plan has ps/0"),
        ({TaskId("chief", 0)}, "--only chief/0: the plan has ps/0, worker/0 to worker/1"),
    ],
)
def test_a_task_that_the_plan_does_not_have_is_said(only: set[TaskId], said: str | None) -> None:
    err = shown(lambda reporter: reporter.plan(PLAN, brief=True), only=only)[1].splitlines()
    assert [line for line in err if "--only" in line] == ([f"! {said}"] if said else [])
    out = shown(lambda reporter: reporter.plan(PLAN, brief=True), only=only, json=True)[0]
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["text"] for event in events if event["event"] == "warn"] == ([said] if said else [])


def test_the_brief_plan_goes_beside_the_logs_and_fixes_their_width() -> None:
    def act(reporter: Reporter) -> None:
        reporter.plan(PLAN, brief=True)
        reporter.log(PS0, "gpu01", 0, b"line\n")

    out, err = shown(act)
    assert out == "ps/0     │ line\n"
    assert err.splitlines() == [
        "run trainer-abc234",
        "  1 ps       on gpu01",
        "  2 workers  on gpu[01-02]  2 GPUs each",
        "! gpu02 has [proxies]",
    ]


def test_mig_instances_are_shown_as_people_call_them() -> None:
    plan = ClusterPlan("r-1", (task_plan(W0, "gpu01", "0.0"), task_plan(W1, "gpu01", "0.1")))
    out = shown(lambda reporter: reporter.plan(plan))[0]
    assert "worker/1   gpu01   gpu01:2001   0.1" in out.splitlines()
    brief = shown(lambda reporter: reporter.plan(plan, brief=True))[1]
    assert "  2 workers  on gpu01  1 MIG instance each" in brief.splitlines()
    data = shown(lambda reporter: reporter.plan(plan), json=True)[0]
    assert [task["gpu_labels"] for task in json.loads(data)["tasks"]] == [["0.0"], ["0.1"]]


FAILURES = ConnectErrors(
    {
        "gpu09": ConnectError("no answer within 10 s"),
        "gpu03": ConnectError("the host key is unknown", "ssh-keyscan {host} >> known_hosts"),
        "gpu04": ConnectError("the host key is unknown", "ssh-keyscan {host} >> known_hosts"),
    },
    64,
)


def test_hosts_with_one_cause_are_one_row_and_the_remedy_names_the_first() -> None:
    _, err = shown(lambda reporter: reporter.error(FAILURES))
    assert err.splitlines() == [
        "✗ 3 of 64 hosts could not be used",
        "  gpu[03-04]  the host key is unknown",
        "              → ssh-keyscan gpu03 >> known_hosts",
        "  gpu09       no answer within 10 s",
    ]
    _, err = shown(lambda reporter: reporter.failures(LaunchError({"a": "disk\x1b[2J full"}, "make room")))
    assert err.splitlines() == [
        "✗ 1 host could not start its tasks; nothing is left running",
        "  a  disk full",
        "  → make room",
    ]


def test_a_long_list_of_hosts_breaks_between_two_of_them() -> None:
    names = ("login.cluster.example.org", "gpu1.example.org", "gpu3.example.org", "x")
    errors = ConnectErrors({name: ConnectError("no") for name in names}, 9)
    rows = shown(lambda reporter: reporter.failures(errors))[1].splitlines()[1:]
    assert rows == ["  login.cluster.example.org,  no", "  gpu[1,3].example.org,x"]


def test_rows_of_one_size_stay_in_their_order() -> None:
    errors = ConnectErrors({"b": ConnectError("one"), "c": ConnectError("two"), "a": ConnectError("one")}, 9)
    errors.failures["d"] = ConnectError("two")
    rows = shown(lambda reporter: reporter.failures(errors))[1].splitlines()[1:]
    assert rows == ["  b,a  one", "  c,d  two"]


def test_the_only_host_is_not_1_of_1_hosts() -> None:
    err = shown(lambda reporter: reporter.failures(ConnectErrors({"a": ConnectError("no")}, 1)))[1]
    assert err == "✗ the only host could not be used\n  a  no\n"


def test_hosts_that_could_not_be_told_to_stop_are_not_called_clean() -> None:
    error = LaunchError({"a": "disk full"}, "make room", {"gpu2": "no answer", "gpu1": "no answer"})
    assert shown(lambda reporter: reporter.error(error))[1].splitlines() == [
        "✗ 1 host could not start its tasks",
        "  a  disk full",
        "! gpu[1-2]: could not check that nothing is left: no answer",
        "  → make room",
    ]
    event = json.loads(shown(lambda reporter: reporter.error(error), json=True)[0])
    assert event["message"] == "1 host could not start its tasks"
    assert event["unconfirmed"] == {"gpu2": "no answer", "gpu1": "no answer"}


def test_a_file_full_of_problems_does_not_fill_the_screen() -> None:
    problems = [Problem("hosts.yaml", line, 1, "bad") for line in range(1, 50)]
    err = shown(lambda reporter: reporter.error(HostfileError(problems)))[1].splitlines()
    assert err[0] == "✗ 49 problems in the hosts; nothing was contacted"
    assert err[1:] == [f"  hosts.yaml:{line}:1: bad" for line in range(1, 21)] + ["  and 29 more"]
    told = json.loads(shown(lambda reporter: reporter.error(HostfileError(problems)), json=True)[0])
    assert len(told["problems"]) == 49


def test_every_problem_of_a_hostfile_is_shown() -> None:
    problems = [Problem("hosts.yaml", 3, 5, "unknown key 'prot'"), Problem("<inline>", 0, 0, "no hosts")]
    _, err = shown(lambda reporter: reporter.error(HostfileError(problems, "see `tflaunch schema`")))
    assert err.splitlines() == [
        "✗ 2 problems in the hosts; nothing was contacted",
        "  hosts.yaml:3:5: unknown key 'prot'",
        "  <inline>: no hosts",
        "  → see `tflaunch schema`",
    ]


FIRST = TaskExit(W1, "gpu02", None, 9, 12.3, b"".join(b"line %d\n" % number for number in range(50)))
FAILED = Outcome(
    "trainer-abc234",
    "failed",
    137,
    75.0,
    {
        W1: FIRST,
        W0: TaskExit(W0, "gpu01", 1, None, 13.0),
        PS0: TaskExit(PS0, "gpu01", None, 15, 14.0, stopped=True),
    },
    FIRST,
    {"gpu07": "no connection", "gpu08": "no connection"},
    {"gpu02": ("pid 12 python (D)",)},
    "/state/trainer-abc234",
    {W1: "/var/tmp/run/logs/worker-1.log"},
)


def test_the_report_tells_the_first_failure_first() -> None:
    _, err = shown(lambda reporter: reporter.report(FAILED))
    lines = err.splitlines()
    assert lines[0] == "✗ worker/1 on gpu02 was killed by SIGKILL after 12 s; its last lines:"
    assert lines[1:31] == [f"  │ line {number}" for number in range(20, 50)]
    assert lines[31:] == [
        "  its whole log: /state/trainer-abc234/logs/worker-1.log",
        "  and on gpu02: /var/tmp/run/logs/worker-1.log",
        "  → ssh gpu02 'dmesg -T | grep -i oom' shows whether the kernel killed it when memory ran out",
        "✗ then worker/0 exited with code 1",
        "✗ gpu02: still alive: pid 12 python (D)",
        "! gpu[07-08]: could not check that nothing is left: no connection",
        "  → tflaunch stop trainer-abc234",
        "✗ trainer-abc234 failed after 1 min 15 s, exit code 137",
        "  logs: /state/trainer-abc234/logs",
    ]


def test_cards_that_are_not_free_again_are_in_the_report() -> None:
    stuck = CardLeft("GPU 0 is still in use by this run's pid 12 (D: waits in the kernel)", own=True)
    foreign = CardLeft("GPU 3 is still in use by pid 4 of eve, notebook", own=False)
    outcome = Outcome("r-1", "succeeded", 76, 3.0, cards={"gpu01": (stuck,), "gpu02": (foreign,)})
    assert shown(lambda reporter: reporter.report(outcome))[1].splitlines() == [
        f"✗ gpu01: {stuck.text}",
        f"! gpu02: {foreign.text}",
        "  → look again: tflaunch gpus; on the host: nvidia-smi",
        "✓ r-1 succeeded: 0 tasks in 3.0 s",
    ]
    told = json.loads(shown(lambda reporter: reporter.report(outcome), json=True)[0])
    assert told["cards"]["gpu01"] == [{"text": stuck.text, "own": True}]


def failing(lines: int, others: int = 0) -> Callable[[Reporter], None]:
    """A task that writes so many lines and fails, while another writes `others` lines."""
    tail = b"".join(b"step %d\n" % number for number in range(lines))
    first = TaskExit(W1, "gpu02", 1, None, 1.1, tail)

    def act(reporter: Reporter) -> None:
        reporter.phase("training", 0, 2)
        reporter.log(W1, "gpu02", 0, tail)
        reporter.exited(first)
        reporter.exited(TaskExit(W0, "gpu01", 2, None, 1.2))
        reporter.log(W0, "gpu01", 0, b"working\n" * others)
        exits = {W1: first, W0: TaskExit(W0, "gpu01", 2, None, 1.2)}
        logs = {W1: "/run/logs/worker-1.log"}
        reporter.report(Outcome("r-1", "failed", 1, 2.0, exits, first, {}, {}, "/state/r-1", logs))

    return act


def test_what_stands_on_the_screen_already_is_not_repeated() -> None:
    assert plain(on_terminal(failing(40))) == [
        "training 2 tasks",
        *(f"worker/1 │ step {number}" for number in range(40)),
        "✗ worker/1 on gpu02 exited with code 1 after 1.1 s",
        "✗ r-1 failed after 2.0 s: worker/1 on gpu02 exited with code 1; nothing is left running",
        "  its whole log: /state/r-1/logs/worker-1.log",
        "  and on gpu02: /run/logs/worker-1.log",
        "✗ then worker/0 exited with code 2",
    ]
    assert plain(on_terminal(failing(0)))[1:4] == [
        "✗ worker/1 on gpu02 exited with code 1 after 1.1 s",
        "✗ r-1 failed after 2.0 s: worker/1 on gpu02 exited with code 1; nothing is left running",
        "  it wrote nothing",
    ]


TAIL_OF_40 = [f"  │ step {number}" for number in range(10, 40)]


@pytest.mark.parametrize("options", [{"quiet": True}, {"only": {W0}}])
def test_what_was_not_shown_is_in_the_report(options: dict[str, Any]) -> None:
    lines = plain(on_terminal(failing(40), **options))
    first = lines.index("✗ worker/1 on gpu02 exited with code 1 after 1.1 s; its last lines:")
    assert lines[first + 1 : first + 31] == TAIL_OF_40
    assert lines[first + 31] == "  its whole log: /state/r-1/logs/worker-1.log"


def test_what_scrolled_away_or_went_elsewhere_is_in_the_report() -> None:
    lines = plain(on_terminal(failing(40, others=100)))  # of 40 rows
    assert lines[-35:-5] == TAIL_OF_40
    assert "  │ " not in "\n".join(plain(on_terminal(failing(40, others=12))))
    assert lines[-5:-3] == plain(on_terminal(failing(40)))[-3:-1]
    err = shown(failing(40))[1].splitlines()
    assert err[2:33] == ["✗ worker/1 on gpu02 exited with code 1 after 1.1 s; its last lines:", *TAIL_OF_40]
    assert err[-1] == "  logs: /state/r-1/logs"
    reading, out = pipe()  # `tflaunch run ... > train.log`
    ours, theirs = terminal()
    screen = Reader(ours)
    reporter = open_reporter(stdout=out, stderr=theirs)
    failing(40)(reporter)
    reporter.close()
    out.close()
    theirs.close()
    assert reading.text().count("step") == 40
    assert [line for line in plain(screen.text()) if "│" in line] == TAIL_OF_40


def test_lines_of_a_progress_bar_and_of_colour_are_known_again() -> None:
    tail = b"\x1b[31mred\x1b[0m\n1%\r50%\r100%\nlast"
    first = TaskExit(W1, "gpu02", 1, None, 1.1, tail)

    def act(reporter: Reporter) -> None:
        reporter.log(W1, "gpu02", 0, tail)
        reporter.log_end(W1)
        reporter.report(Outcome("r-1", "failed", 1, 2.0, {W1: first}, first))

    lines = plain(on_terminal(act))
    assert lines[-1].startswith("✗ r-1 failed after 2.0 s: worker/1 on gpu02 exited with code 1")
    assert sum("red" in line for line in lines) == 1


def test_later_failures_are_one_line() -> None:
    first = TaskExit(W0, "a", 1, None, 1.0, b"x\n")
    later = [TaskExit(TaskId("worker", index), "a", 1, None, 2.0) for index in range(1, 20)]

    def act(reporter: Reporter) -> None:
        for exit in (first, *later, TaskExit(PS0, "a", 0, None, 3.0)):
            reporter.exited(exit)
        exits = {exit.task: exit for exit in (first, *later)}
        reporter.report(Outcome("r-1", "failed", 1, 2.0, exits, first))

    err = shown(act)[1].splitlines()
    assert [line for line in err if "exited" in line] == [
        "✗ worker/0 on a exited with code 1 after 1.0 s",
        "✗ worker/0 on a exited with code 1 after 1.0 s; its last lines:",
        f"✗ then {', '.join(f'worker/{index}' for index in range(1, 9))} … (19 in all) exited with code 1",
    ]


@pytest.mark.parametrize(
    ("tail", "module"),
    [
        (b"Traceback ...\nModuleNotFoundError: No module named 'tensorflow'\n", "tensorflow"),
        (b"ModuleNotFoundError: No module named 'a.b'; 'a' is not a package", "a.b"),
        (b"/usr/bin/python3: No module named trainer\n", "trainer"),
        (
            b"/usr/bin/python3: Error while finding module specification for 'a.b' "
            b"(ModuleNotFoundError: No module named 'a')\n",
            "a",
        ),
        (b"we have No module named 'x' but go on\n", None),
    ],
)
def test_a_missing_module_has_a_next_step(tail: bytes, module: str | None) -> None:
    first = TaskExit(W0, "gpu01", 1, None, 1.0, tail)

    def act(reporter: Reporter) -> None:
        reporter.plan(PLAN, brief=True)
        reporter.report(Outcome("r-1", "failed", 1, 2.0, {W0: first}, first))

    hints = [line for line in shown(act)[1].splitlines() if "→" in line]
    expected = (
        f"python on gpu01 has no {module}: name another Python by `python:`, `venv:` or `conda:` in the "
    )
    assert [hint.startswith(f"  → {expected}") for hint in hints] == ([True] if module else [])
    report = json.loads(shown(act, json=True)[0].splitlines()[-1])
    assert report["hint"].startswith(expected) if module else report["hint"] == ""


def test_a_signal_has_the_name_that_its_host_gives_it() -> None:
    def report(**named: Any) -> str:
        first = TaskExit(W0, "mac", None, 10, 1.0, **named)  # SIGBUS there, SIGUSR1 here
        return shown(lambda reporter: reporter.exited(first))[1]

    assert "was killed by SIGBUS" in report(signal_name="SIGBUS")
    assert f"was killed by {signal.Signals(10).name}" in report()


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Outcome("r-1", "succeeded", 0, 3.0), "✓ r-1 succeeded: 0 tasks in 3.0 s; nothing is left running"),
        (
            Outcome("r-1", "interrupted", 130, 3.0),
            "! r-1 stopped by Ctrl-C after 3.0 s; nothing is left running",
        ),
        (
            Outcome("r-1", "interrupted", 143, 3.0),
            "! r-1 stopped by SIGTERM or `tflaunch stop` after 3.0 s; nothing is left running",
        ),
        (
            Outcome("r-1", "failed", 76, 3.0, first_failure=HostLost("gpu01", "no heartbeat for 60 s")),
            "✗ gpu01 was lost\n  no heartbeat for 60 s\n"
            "✗ r-1 failed after 3.0 s, exit code 76; nothing is left running",
        ),
    ],
)
def test_the_other_ways_to_end(outcome: Outcome, line: str) -> None:
    assert shown(lambda reporter: reporter.report(outcome))[1] == line + "\n"


def test_long_lines_are_left_for_the_terminal_to_wrap_where_they_are_copied_from() -> None:
    path = "/state/" + "x" * 150
    screen = on_terminal(
        lambda reporter: reporter.report(Outcome("r-1", "succeeded", 0, 3.0, record=path)), columns=60
    )
    assert f"{path}/logs" in screen


# JSON


def test_json_is_one_event_a_line_whatever_the_bytes() -> None:
    def act(reporter: Reporter) -> None:
        reporter.phase("connecting", 1, 2, "gpu01")
        reporter.waiting(TURN)
        reporter.note("n")
        reporter.warn("w")
        reporter.say("s")
        reporter.plan(PLAN)
        reporter.started(TaskStarted(W0, "gpu01", pid=12))
        reporter.log(W0, "gpu01", 0, 'a "b"\n\xff\u2028\n\x1b[1mü'.encode() + b"\xfe\n")
        reporter.log(W0, "gpu01", 100, b"last")
        reporter.log_end(W0)
        reporter.exited(FIRST)
        reporter.lost(HostLost("gpu02", "gone"))
        reporter.failures(FAILURES)
        reporter.error(HostfileError([Problem("f", 1, 2, "bad")]))
        reporter.report(FAILED)

    out, err = shown(act, json=True)
    assert err == ""
    assert out.isascii()
    events = [json.loads(line) for line in out.split("\n")[:-1]]
    assert all(isinstance(event["time"], float) for event in events)
    assert [event["event"] for event in events] == (
        [
            "phase",
            "waiting",
            "note",
            "warn",
            "say",
            "plan",
            "started",
            "log",
            "log",
            "log",
            "gap",
            "log",
            "log_end",
            "exited",
            "lost",
            "failures",
            "error",
            "report",
        ]
    )
    logs = [event["line"] for event in events if event["event"] == "log"]
    assert logs == ['a "b"', "ÿ\u2028", "\x1b[1mü\\xfe", "last"]
    named = {event["event"]: event for event in events}
    assert named["plan"]["tasks"][1]["argv"] == list(PLAN.tasks[1].argv)
    assert named["plan"]["cluster"]["worker"] == ["gpu01:2001", "gpu02:2001"]
    assert named["exited"]["signal"] == "SIGKILL"
    assert named["failures"]["rows"][0] == {
        "hosts": ["gpu03", "gpu04"],
        "folded": "gpu[03-04]",
        "cause": "the host key is unknown",
        "hint": "ssh-keyscan gpu03 >> known_hosts",
    }
    assert named["error"]["problems"] == [{"where": "f", "line": 1, "column": 2, "message": "bad"}]
    assert named["report"]["first_failure"]["tail"][-1] == "line 49"


def test_json_tells_each_step_of_a_phase_once() -> None:
    def act(reporter: Reporter) -> None:
        for done in (0, 0, 0, 1, 1, 2, 2):
            reporter.phase("connecting", done, 2, "gpu01")
        reporter.phase("checking", 0, 2)
        reporter.phase("connecting", 0, 2)

    events = [json.loads(line) for line in shown(act, json=True)[0].splitlines()]
    assert [(event["name"], event["done"]) for event in events] == [
        ("connecting", 0),
        ("connecting", 1),
        ("connecting", 2),
        ("checking", 0),
        ("connecting", 0),
    ]


def test_every_event_of_json_is_documented() -> None:
    from tflaunch.console import json_lines

    source = Path(json_lines.__file__).read_text(encoding="utf-8")
    emitted = set(re.findall(r'_event\(\s*"(\w+)"', source)) | set(re.findall(r'"event": "(\w+)"', source))
    assert emitted
    assert json_lines.__doc__ is not None
    assert emitted == set(re.findall(r"^    (\w+)  +\w+[ ,(].*", json_lines.__doc__, re.M)) - {"event"}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("! one two three four", ["! one two", "  three", "  four"]),
        ("  one two three", ["  one two", "  three"]),
        ("one two three", ["one two", "three"]),
        ("! one two", ["! one two"]),
        ("! averylongword", ["! averylon", "  gword"]),
    ],
)
def test_a_wrapped_line_goes_on_below_its_first_word(line: str, shown: list[str]) -> None:
    assert [each.rstrip() for each in hung(Text(line), 10).plain.split("\n")] == shown
