"""Terminals, pipes and full disks that are written to, the live line among the rest."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.endings import TURN
from tests.support.screen import W0, W1, Reader, on_terminal, pipe, plain, shown, terminal
from tflaunch.console.help_page import in_colour
from tflaunch.console.opening import open_reporter
from tflaunch.console.pen import Pen
from tflaunch.console.phases import Phases
from tflaunch.console.safe_text import Text, hung
from tflaunch.documents.reporter import Reporter
from tflaunch.documents.writer import Stream, dumb
from tflaunch.protocol.errors import PlanError
from tflaunch.protocol.outcome import Outcome


def test_an_encoding_without_box_drawing_gets_ascii(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as out:
        reporter = open_reporter(stdout=out, stderr=out)
        reporter.log(W0, "a", 0, "grün\n".encode())
        reporter.phase("connecting", 4, 4)
        reporter.close()
    assert path.read_bytes() == b"worker/0 | gr\\xfcn\nok connected to 4 hosts\n"


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


@pytest.mark.parametrize("term", [None, "", "dumb", "DUMB", "unknown", "xterm-256color", "linux"])
def test_all_that_draws_agrees_on_which_terminals_are_dumb(
    monkeypatch: pytest.MonkeyPatch, term: str | None
) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    ours, theirs = terminal()
    with theirs:
        monkeypatch.setattr(sys, "stdout", theirs)
        pen = Pen(Stream(theirs))
        assert dumb() is pen.console.is_dumb_terminal, "rich's word, by which it takes colours"
        assert in_colour() is pen.colour is not dumb()
    os.close(ours)


def test_a_pipe_gets_what_rich_would_make_of_a_line(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        pen = Pen(Stream(file))
        for text in (
            "a  ",
            "",
            "x\n y  \n",
            "a" * 500 + " b" * 100,
            "über ✓ 日本",
            "[bold]x[/]",
            ":smile: 'a' 12",
            "a\tb",
        ):
            line = Text.assemble((text, "red"), ("z ", "dim"))
            with pen.console.capture() as made:
                pen.console.print(line, soft_wrap=True)
            assert pen.render(line) == re.sub(r"(?<! ) +\n", "\n", made.get())


def test_a_phase_is_one_live_line_on_a_terminal_and_one_plain_line_elsewhere() -> None:
    def act(reporter: Reporter) -> None:
        for done in range(5):
            reporter.phase("connecting", done, 4, f"gpu0{done}")
        reporter.phase("connecting", 4, 4)  # again: says nothing new
        reporter.phase("training", 0, 2)
        reporter.log(W0, "a", 0, b"line\n")

    out, err = shown(act)
    assert out == "worker/0 │ line\n"
    assert re.fullmatch(r"✓ connected to 4 hosts in \d\.\d s  gpu04\ntraining 2 tasks\n", err)
    screen = on_terminal(act)
    assert [line for line in plain(screen) if "connect" in line or "training" in line] == plain(err)
    assert "connected to 4 hosts" in screen
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
    drawn = [
        re.sub(r"\x1b\[[0-9;]*[mJK]", "", line)
        for line in (seen + reader.text()).split("\r")
        if "connecting" in line
    ]
    assert max(map(len, drawn)) == 39


def test_what_a_narrowed_window_makes_of_the_live_line_is_below_the_cursor() -> None:
    """Terminals break a line anew, and keep the cursor at its character: at the first, so that it is all removed."""
    ours, theirs = terminal(columns=100)
    reporter = open_reporter(stdout=theirs, stderr=theirs)
    reporter.phase("connecting", 1, 4, "gpu4")
    seen = b""
    while seen.count(b"connecting") < 3:
        seen += os.read(ours, 65536)
    reader = Reader(ours)
    reporter.note("a line of its own")
    reporter.close()
    theirs.close()
    every = seen.decode() + reader.text()
    live, note, _ = every.partition("a line of its own")
    assert note
    assert live.count("gpu4\x1b[0m\x1b[J\r") == live.count("connecting") >= 3
    assert live.endswith("gpu4\x1b[0m\x1b[J\r\r \x1b[J\r\x1b[2m  ")


def test_a_step_that_moves_bytes_tells_how_many_how_fast_and_how_long_still() -> None:
    ours, theirs = terminal(columns=130)
    phases = Phases(Pen(Stream(theirs)), lambda _: None)
    began = time.monotonic() - 10.0
    phases.take("shipping", 0, 2, "gpu1, gpu2", began, moved=(0, 90 << 20))
    phases.take("shipping", 0, 2, "gpu1, gpu2", began, moved=(30 << 20, 90 << 20))
    [line] = phases.live_lines()
    assert re.search(
        r" shipping .* 0/2 \d+ s  30 MiB of 90 MiB  [\d.]+ \w+/s  .* left  gpu1, gpu2$", line.plain
    ), line.plain
    os.close(ours)
    theirs.close()


def test_a_step_that_lasts_long_is_told_in_a_pipe_and_why_also_on_a_terminal(tmp_path: Path) -> None:
    why = "their profile and `setup:` have not ended; what waits for input there gets none"
    ours, theirs = terminal(columns=130)
    with (tmp_path / "pipe").open("w") as pipe:
        for stream, again in ((theirs, []), (pipe, [f"! still preparing after 40 s: a,b; {why}"])):
            told: list[str] = []
            phases = Phases(Pen(Stream(stream)), lambda line, told=told: told.append(line.plain))  # type: ignore[misc]
            assert phases.tell_slow(0.0) is None
            phases.take("staging", 0, 2, "a,b", 100.0)
            assert phases.tell_slow(119.0) == 1.0
            phases.tell_slow(120.0)
            phases.tell_slow(139.0)
            assert told == [f"! still preparing after 20 s: a,b; {why}"]
            phases.tell_slow(140.0)
            assert told[1:] == again
            phases.take("staging", 2, 2, "", 141.0)
            assert phases.tell_slow(999.0) is None
            del told[:]
            phases.take("connecting", 0, 2, "a", 1000.0)
            phases.tell_slow(1020.0)
            assert told == (["  still connecting after 20 s: a"] if again else [])
    os.close(ours)
    theirs.close()


def test_a_wait_is_one_live_line_on_a_terminal_and_one_line_for_each_change_elsewhere() -> None:
    def act(reporter: Reporter) -> None:
        for turn in (
            TURN,
            TURN,
            dataclasses.replace(TURN, place=1, behind=(), free=2, why="of two models"),
            TURN,
        ):
            reporter.waiting(turn)
        reporter.phase("waiting", 2, 2)

    err = shown(act)[1].splitlines()
    second = "waiting: 1 of 2 GPUs free; 2nd in line, behind bob's run b-1; gpu01:0 ada's run a-1 since 10:32"
    first = "waiting: 2 GPUs free, 2 needed; 1st in line; of two models; gpu01:0 ada's run a-1 since 10:32"
    assert [line.strip() for line in err[:-1]] == [second, first, second]
    assert err[-1].startswith("✓ waited for 2 GPUs")
    (line,) = plain(on_terminal(act, columns=100))
    assert line.startswith("✓ waited for 2 GPUs")


def test_at_60_columns_a_wait_shows_its_place_and_who_has_each_gpu() -> None:
    ours, theirs = terminal(columns=60)
    phases = Phases(Pen(Stream(theirs)), lambda _: None)
    phases.wait(1, 2, TURN.count, TURN.parts, time.monotonic())
    first, second = phases.live_lines()
    assert re.fullmatch(r". waiting for GPUs 0\.\d s  1 of 2 GPUs free; 2nd in line, b…", first.plain), (
        first.plain
    )
    assert second.plain == "  gpu01:0 ada's run a-1 since 10:32"
    phases.wait(1, 2, TURN.count, [TURN.parts[0], *map(str, range(9))], time.monotonic())
    assert [line.plain for line in phases.live_lines()][-2:] == ["  4", "  and 4 more"]
    os.close(ours)
    theirs.close()


def test_programs_get_the_events_of_a_wait() -> None:
    def act(reporter: Reporter) -> None:
        for turn in (
            TURN,
            TURN,
            dataclasses.replace(TURN, place=1, behind=(), free=2, why="of two models"),
            TURN,
        ):
            reporter.waiting(turn)
        reporter.phase("waiting", 2, 2)

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
        "why": "",
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
    assert re.fullmatch(
        r"! connected to 3 of 4 hosts after \d\.\d s, not gpu04\n✗ no room\n  → make some\n", err
    )

    def fetch(reporter: Reporter) -> None:
        reporter.phase("fetching", 0, 1, "1.0 of 5.0 MiB")
        reporter.error(PlanError("no room", "make some"))

    assert re.match(r"! fetched 0 of 1 file after \d\.\d s, 1\.0 of 5\.0 MiB\n", shown(fetch)[1])


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
        from tflaunch.console.opening import open_reporter
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
        from tflaunch.console.opening import open_reporter
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
