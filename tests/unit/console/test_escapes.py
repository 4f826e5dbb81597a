"""Whatever a host, a lease, another user or a file says: it acts on no terminal, and forges no line and no field."""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import io
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pytest

import tflaunch
from tests.support import gpus as simulated
from tests.support import ps
from tests.support.evil import _BAD, EVIL, assert_json, evil, harmless
from tflaunch.console.cell_changes import cells
from tflaunch.console.check_page import document, page
from tflaunch.console.clean_page import cleaned_lines
from tflaunch.console.gpu_watch.history import History
from tflaunch.console.gpu_watch.pages import Pages
from tflaunch.console.gpu_watch.state import Look, WatchView
from tflaunch.console.gpus_page import GpusView
from tflaunch.console.opening import open_reporter
from tflaunch.console.pen import UNICODE
from tflaunch.console.runs_page import run_lines, status_lines
from tflaunch.console.safe_text import Console, Text
from tflaunch.console.screen import Screen
from tflaunch.console.sweep_screen import open_reporter as open_sweep_reporter
from tflaunch.documents.writer import Screened, to_json
from tflaunch.hosts import Host
from tflaunch.in_task import check_task
from tflaunch.launch.acquisition import Turn
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.planning.inventory import Ticket
from tflaunch.protocol.errors import (
    ConnectError,
    ConnectErrors,
    DialError,
    HostfileError,
    LaunchError,
    PlanError,
    Problem,
)
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import EndedByRule, GpuLeft, HostLost, Outcome, TaskExit, TimedOut
from tflaunch.protocol.wire import Message
from tflaunch.runs.clean import HERE
from tflaunch.runs.fetch import Fetched
from tflaunch.runs.listing import Listing, listing
from tflaunch.runs.run_states import run_data
from tflaunch.runs.tensorboard import TensorBoard
from tflaunch.runs.visits import Finished
from tflaunch.survey import gpu_overview
from tflaunch.survey.check_answers import CheckAnswers, HostAnswer, TaskAnswer
from tflaunch.survey.check_findings import Findings
from tflaunch.sweeps.controller import Planned, Summary, SweepProgress, TrialRow
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.results import Metric, Result
from tflaunch.sweeps.trials import Trial
from tflaunch.text.safe import one_line, printable, screened

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
CONSOLE = Console(file=io.StringIO())


# ---- the functions that say what may be shown


@pytest.mark.parametrize("shown", [printable, one_line, screened])
def test_nothing_that_acts_on_a_terminal_is_left(shown: Callable[[str], str]) -> None:
    for number in [*range(0x3000), *range(0xD7F0, 0xE010)]:
        text = f"a{chr(number)}b"
        assert not set(_BAD.findall(shown(text))) - {"\t"}, hex(number)
        shown(text).encode()  # no half of a character
    assert one_line("a\nb\u2028c") == r"a\nb\u2028c"
    assert screened("\x1b[1;31mred\x1b[0m\x1b[2J") == "\x1b[1;31mred\x1b[0m"


def test_what_prints_past_everything_else_is_screened_too() -> None:
    program = (
        "import sys, json\n"
        "from tflaunch.documents.writer import screen_streams\n"
        "screen_streams()\n"
        "evil = json.loads(sys.stdin.read())\n"
        "print(evil)\n"
        "import typer\n"
        "typer.echo(evil, err=True)\n"
        "raise ValueError(evil)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(EVIL).encode(), capture_output=True, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 1
    assert said.count("[red]c[/red]") == 3
    harmless(said, own=True, rows=False)
    stream = io.StringIO()
    Screened(stream).writelines([EVIL])  # type: ignore[arg-type]
    assert set(_BAD.findall(stream.getvalue())) == {"\x1b"}, "colours are left alone"


def test_json_has_no_number_that_json_does_not_have() -> None:
    told = to_json({"a": [math.nan, {"b": (math.inf, -math.inf, 1.5)}], EVIL: EVIL})
    assert told.isascii()
    assert not _BAD.search(told)
    assert json.loads(told, parse_constant=pytest.fail) == {"a": [None, {"b": [None, None, 1.5]}], EVIL: EVIL}


def test_only_one_module_draws_with_what_is_richs() -> None:
    of_rich = r"(import|from) rich\.text|import rich\.console|from rich\.console import .*\bConsole\b|from rich import"
    found = {
        path.name
        for path in Path(tflaunch.__file__).parent.rglob("*.py")
        if re.search(of_rich, path.read_text("utf-8"))
    }
    assert found == {"safe_text.py"}


# ---- everything that a reporter shows


EXIT = TaskExit(W0, EVIL, None, 9, 3.0, evil(b""), signal_name=EVIL, attempt=1)
PLAN = ClusterPlan(
    EVIL,
    tuple(
        TaskPlan(task, EVIL, EVIL, 2000, (EVIL,), (EVIL,), (EVIL, EVIL), {EVIL: EVIL}, (EVIL,), EVIL)
        for task in (W0, W1)
    ),
    (EVIL,),
    {EVIL: EVIL},
)
OUTCOMES = [
    Outcome(
        EVIL,
        "failed",
        137,
        3.0,
        {W0: EXIT, W1: dataclasses.replace(EXIT, task=W1)},
        first,
        {EVIL: EVIL},
        {EVIL: (EVIL,)},
        EVIL,
        {W0: EVIL},
        0,
        {EVIL: (GpuLeft(EVIL, False), GpuLeft(EVIL, True))},
    )
    for first in (
        EXIT,
        HostLost(EVIL, EVIL),
        TimedOut(EVIL, (W0, W1), (EVIL, EVIL)),
        EndedByRule(EVIL, (W0,), 65),
        None,
    )
]
FETCHED = Fetched(
    EVIL,
    EVIL,
    3,
    4,
    1,
    apart=[EVIL],
    kept=[EVIL],
    failed={EVIL: EVIL},
    left={EVIL: EVIL},
    hidden=[EVIL],
    unmatched=[EVIL],
    there=[EVIL],
    unreached={EVIL: ConnectError(EVIL, EVIL)},
)
RESULTS = tuple(
    Result(number, {EVIL: EVIL}, math.nan, status, 1, EVIL, EVIL, (EVIL,), 3.0, 2, 0.0, EVIL, EVIL)
    for number, status in enumerate(("succeeded", "failed"))
)
TRIAL, SEAT = Trial(0, {EVIL: EVIL}), Seat(EVIL, (EVIL,), (EVIL,))


def both(*_: None) -> None:
    """After all of them."""


SWEEP: Mapping[str, Callable[[Any], None]] = {
    "begins": lambda shown: shown.begins(EVIL, 2, 2, [SEAT], Metric(EVIL)),
    "planned": lambda shown: shown.planned(Planned(EVIL, (TRIAL,), 1, (SEAT,), {EVIL: 1}, (EVIL,), 7)),
    "progress": lambda shown: both(
        shown.progress(SweepProgress(4, 1, 1, 1, 1, (TrialRow(TRIAL, EVIL, 0.0, 1.0),), RESULTS[0], 3.0)),
        time.sleep(0.4),  # it is a live view
    ),
    "trial": lambda shown: shown.trial(TRIAL, TaskStarted(W0, EVIL, 1, 7), SEAT),
    "result": lambda shown: both(*(shown.result(each) for each in RESULTS)),
    "summary": lambda shown: shown.summary(
        Summary(EVIL, RESULTS, RESULTS[:1], 2, Metric(EVIL), EVIL, (EVIL,), EVIL)
    ),
}


def tensorboard_fails(reporter: Any) -> None:
    class NoTunnel:
        def pause(self) -> None: ...

    shown = TensorBoard(EVIL, EVIL, EVIL, NoTunnel(), reporter)  # type: ignore[arg-type]
    shown.said(
        Message("tensorboard", {"state": "failed", "why": EVIL, "lines": [EVIL, EVIL]}), lambda *_: None
    )


RUN: Mapping[str, Callable[[Any], None]] = {
    "phase": lambda shown: both(*(shown.phase("connecting", done, 2, EVIL) for done in (0, 1))),
    "waiting": lambda shown: shown.waiting(Turn(1, (EVIL,), 0, 2, ((EVIL, EVIL),), (EVIL,))),
    "note": lambda shown: shown.note(EVIL),
    "warn": lambda shown: shown.warn(EVIL),
    "say": lambda shown: shown.say(EVIL),
    "brief plan": lambda shown: shown.plan(PLAN, brief=True),
    "plan": lambda shown: shown.plan(PLAN),
    "log": lambda shown: both(shown.log(W0, EVIL, 0, evil(b"")), shown.log_end(W0)),
    "started": lambda shown: shown.started(TaskStarted(W0, EVIL, 1, 7)),
    "exited": lambda shown: shown.exited(EXIT),
    "unreachable": lambda shown: shown.unreachable(EVIL, EVIL),
    "back": lambda shown: shown.back(EVIL, math.inf),
    "lost": lambda shown: shown.lost(HostLost(EVIL, EVIL)),
    "not connected": lambda shown: shown.failures(ConnectErrors({EVIL: ConnectError(EVIL, EVIL)}, 2)),
    "not launched": lambda shown: shown.failures(LaunchError({EVIL: EVIL}, EVIL, {EVIL: EVIL})),
    "not dialled": lambda shown: shown.error(DialError({EVIL: EVIL}, EVIL, {})),
    "error": lambda shown: shown.error(PlanError(EVIL, EVIL)),
    "hostfile": lambda shown: shown.error(HostfileError([Problem(EVIL, 1, 2, EVIL)])),
    "report": lambda shown: both(*(shown.report(each) for each in OUTCOMES)),
    "servers": lambda shown: shown.servers(PLAN),
    "detached": lambda shown: shown.detached(EVIL, 2, EVIL),
    "stopped": lambda shown: shown.stopped(
        EVIL,
        {
            EVIL: Finished(True, True, (EVIL,), (EVIL,), False, (GpuLeft(EVIL, True),)),
            "b": Finished(True, True, (EVIL,), ()),
        },
    ),
    "TensorBoard": lambda shown: shown.tensorboard(EVIL, "http://127.0.0.1:6006/", EVIL, EVIL),
    "no TensorBoard": tensorboard_fails,
    "fetched": lambda shown: shown.fetched(FETCHED),
}


@pytest.fixture(params=["pipe", "terminal"])
def where(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A stream, and a function that closes it and returns what came."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = pty.openpty() if request.param == "terminal" else os.pipe()
    if request.param == "terminal":
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                parts.append(data)
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    stream = os.fdopen(theirs, "w", encoding="utf-8")

    def finish() -> str:
        stream.close()
        reader.join()
        return b"".join(parts).decode()

    yield stream, finish
    stream.close()
    reader.join()
    os.close(ours)


Where = tuple[TextIO, Callable[[], str]]


@pytest.mark.parametrize("what", RUN)
def test_nothing_that_a_run_shows_acts_on_the_terminal(what: str, where: Where) -> None:
    stream, finish = where
    reporter = open_reporter(stdout=stream, stderr=stream, show_host=True)
    RUN[what](reporter)
    reporter.close()
    said = finish()
    assert said or what in ("phase", "waiting")  # which are shown when they are over, or live
    harmless(said, own=True)


@pytest.mark.parametrize("what", RUN)
def test_with_json_every_line_is_ascii_and_json(what: str) -> None:
    stream = io.StringIO()
    reporter = open_reporter(json=True, stdout=stream, stderr=stream)
    RUN[what](reporter)
    reporter.close()
    assert_json(stream.getvalue())


@pytest.mark.parametrize("what", SWEEP)
def test_nothing_that_a_sweep_shows_does_either(
    what: str, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, finish = where
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    reporter = open_sweep_reporter(json=False)
    SWEEP["begins"](reporter)
    SWEEP[what](reporter)
    reporter.close()
    harmless(finish(), own=True)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    as_json = open_sweep_reporter(json=True)
    SWEEP[what](as_json)
    as_json.close()
    assert_json(out.getvalue())


# ---- tables and pages


_WORDS = frozenset({"kind", "compute_mode", "state", "status", "task", "log"})


def evil_answers() -> list[gpu_overview.Answer]:
    told = []
    for number, answer in enumerate(simulated.FLEET):
        made = evil(answer, _WORDS)
        facts = made.facts
        if facts is not None:  # each is a machine of its own
            queue = (Ticket(EVIL, EVIL, math.nan, False, 3, (EVIL,)),)
            facts = dataclasses.replace(facts, boot_id=f"{EVIL}{number}", queue=queue, queue_error=EVIL)
        told.append(dataclasses.replace(made, host=f"{EVIL}{number}", facts=facts))
    return told


@pytest.mark.parametrize("columns", [40, 60, 80, 130, 200])
def test_no_gpu_acts_on_the_terminal_of_the_watch(columns: int) -> None:
    # Each on a machine of its own, with an error and without.
    told = evil_answers()
    down = [dataclasses.replace(each, host=f"{each.host}d", error=ConnectError(EVIL, EVIL)) for each in told]
    state = WatchView(History(2.0), gpu_overview.WantedGpus())
    pages = Pages(state, 2.0, UNICODE)
    for at in range(3):
        state.take(Look([*told, *down], at * 10.0, 0.0))
    screens = [pages.screen(columns, 100)]
    for keys in ("s", "s", "s", "s", "r", "g", "slash"):
        state.press(keys)
        screens.append(pages.screen(columns, 100))
    state.paste(EVIL)
    screens.append(pages.screen(columns, 100))
    state.press("escape")
    for _ in state.rows.hosts:
        state.press("enter")
        screens.append(pages.screen(columns, 300))
        state.press("escape")
        state.press("down")
    state.press("question_mark")
    screens.append(pages.screen(columns, 100))
    assert any(EVIL[0] in line.plain for line in screens[0])
    for lines in screens:
        for line in lines:
            assert "\n" not in line.plain
            assert line.cell_len <= columns
            harmless(line.plain)
            # Nor is any style, whatever a host has called its GPU.
            made = cells(Text.assemble(line, "\t"), columns, CONSOLE)
            assert not _BAD.search("".join(text for text, _ in made)), line
            assert len(made) == columns


@pytest.mark.parametrize("columns", [40, 80, 130, 200])
def test_no_gpu_acts_on_the_terminal(columns: int) -> None:
    overview = gpu_overview.look(evil_answers())
    view = GpusView(columns)
    for lines in (
        view.page(overview),
        view.frame(overview, EVIL, 40),
        view.frame(overview, EVIL, 8),
        view.topology(overview),
    ):
        for line in lines:
            assert "\n" not in line.plain
            assert line.cell_len <= columns
            harmless(line.plain)


def test_a_field_of_a_table_stays_in_its_field() -> None:
    answers = evil_answers()
    overview = gpu_overview.look(answers)
    devices = sum(len(machine.gpus_or_instances) for machine in overview.machines)
    table = gpu_overview.table(overview)
    harmless(table)
    rows = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == devices
    assert len(table.splitlines()) == devices + 1
    assert len(gpu_overview.in_one_line(overview).splitlines()) == 1
    harmless(gpu_overview.in_one_line(overview))
    assert_json(to_json(gpu_overview.document(overview, answers, 0.0)))


def evil_listing() -> Listing:
    tasks = [
        ps.worker(
            0,
            "exited",
            signal=9,
            signal_name=EVIL,
            tail=EVIL,
            gpus=[EVIL],
            gpu_labels=[EVIL],
            seconds=math.nan,
        ),
        ps.worker(1, EVIL, since=math.inf, output=-math.inf, gpu_labels=[EVIL]),
        ps.worker(
            2,
            "lost",
            before=[
                {"attempt": 0, "code": None, "signal": 9, "signal_name": EVIL, "seconds": 3.0, "ended": 4.0}
            ],
        ),
    ]
    about = {"launcher": EVIL, "command": ["tflaunch", EVIL], "hosts": [EVIL, "h2", "h3"], "planned": 1.0}
    entries = [
        ps.entry("run", EVIL, tasks=tasks, about=about, directory=EVIL, user=EVIL, strays=[EVIL]),
        ps.entry("run", "h2", "strays", strays=[EVIL], directory=EVIL),
        ps.entry(EVIL, EVIL),
        ps.entry("--hosts=evil", EVIL),
        ps.entry(
            "lost",
            "h2",
            "ended",
            ended=5.0,
            outcome={"status": EVIL, "first_failure": {"host": EVIL, "reason": EVIL}},
        ),
        ps.entry(
            "late", "h2", "ended", ended=5.0, outcome={"status": "failed", "first_failure": {"reason": EVIL}}
        ),
    ]
    return listing({"h2": ps.reply(*entries)}, {EVIL: ConnectError(EVIL, EVIL)}, ps.ARRIVED)


@pytest.mark.parametrize("columns", [80, 130, None])
def test_no_run_acts_on_the_terminal(columns: int | None) -> None:
    found = evil_listing()
    assert {run.run_id for run in found.runs} == {"run", "lost", "late"}  # what is no id is no run
    screen = Screen()
    screen.columns = columns
    for line in run_lines(found, screen, ps.NOW):
        assert "\n" not in line.plain
        harmless(line.plain)
    for told in found.runs:
        held = {"age_s": 3.0, "sentences": [EVIL], "blind": [EVIL]}
        run = dataclasses.replace(told, left_out={EVIL: EVIL}, moved=EVIL, holds=held)
        harmless("\n".join(line.plain for line in status_lines(run, EVIL, screen, ps.NOW)))
        assert_json(to_json(run_data(run)))
    place = {
        "hosts": [EVIL], "failed": {EVIL: EVIL}, "unread": [EVIL], "too_large_bytes": 7, "removed": {}, "rest_bytes": 0,
        "stay": {"runs": 0, "bytes": 0}, "code": {"files": 0}, "environments": {"files": 0}, "freed_bytes": 0,
    }  # fmt: skip
    told = {"dry_run": False, "places": [place, {**place, "hosts": [HERE]}], "stays": {EVIL: EVIL}}
    harmless("\n".join(line.plain for line in cleaned_lines(told, screen)))


@pytest.mark.parametrize(
    "changes",
    [
        {"python": 7},
        {"executable": None},
        {"error": ["x"]},
        {"versions": {"numpy": 2}},
        {"limits": {"core": "x"}},
        {"proxies": "http_proxy"},
        {"tensorflow": []},
        {"tensorflow": {"seconds": 3, "build": {"cuda_version": 12}, "gpus": 0}},
        {"tensorflow": {"seconds": math.nan, "build": {}, "gpus": 0}},
        {"tensorflow": {"seconds": 3, "build": {}, "gpus": "all"}},
    ],
)
def test_a_report_that_no_check_writes_is_none(changes: dict[str, Any]) -> None:
    good = {"python": "3.11", "executable": "", "error": "", "versions": {}, "limits": {}, "proxies": []}
    for report, taken in (({**good, **changes}, False), (good, True)):
        log = f"\n{check_task.MARK}{json.dumps(report)}\n".encode()
        assert (TaskAnswer.from_log(log, 0, "", 1.0, False).report is not None) == taken
    assert (
        TaskAnswer.from_log(f"\n{check_task.MARK}{'[' * 100_000}\n".encode(), 0, "", 1.0, False).report
        is None
    )


def test_no_check_acts_on_the_terminal() -> None:
    report = {
        **{"python": EVIL, "executable": EVIL, "limits": {}, "proxies": [EVIL], "error": ""},
        "versions": dict.fromkeys(("tensorflow", "keras", "protobuf", "numpy"), EVIL),
        "tensorflow": {"seconds": 99.0, "gpus": 1, "build": {"cuda_version": EVIL, "cudnn_version": EVIL}},
    }
    broken = {**report, "error": EVIL, "tensorflow": {}}
    hosts = [
        HostAnswer(
            Host(name="a"),
            facts=evil(simulated.facts("a", simulated.gpu(0)), _WORDS),
            task=TaskAnswer(report, 0, "", 1.0),
        ),
        HostAnswer(
            Host(name="b"),
            facts=evil(simulated.facts("b"), _WORDS),
            task=TaskAnswer(None, None, EVIL, 1.0, False, (EVIL, EVIL)),
        ),
        HostAnswer(Host(name="c"), error=ConnectError(EVIL, EVIL)),
        HostAnswer(
            Host(name="f"), facts=simulated.facts("f"), task=TaskAnswer(broken, 0, "", 1.0, False, (EVIL,))
        ),
        HostAnswer(Host(name="d"), facts=simulated.facts("d"), refused=ConnectError(EVIL, EVIL)),
        HostAnswer(Host(name="e"), facts=simulated.facts("e"), lost=ConnectError(EVIL, EVIL), unswept=EVIL),
    ]
    findings = Findings(CheckAnswers(tuple(hosts)))
    for columns in (80, 130):
        screen = Screen()
        screen.columns = columns
        harmless("\n".join(line.plain for line in page(findings, screen)))
    assert_json(to_json(document(findings, 0.0, 70)))
