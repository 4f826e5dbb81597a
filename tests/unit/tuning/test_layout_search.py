"""A search for a layout: which records it goes on with, and what ends it before anything is measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast

import pytest
import typer

from tflaunch.api.event_feed import EventReporter, Events
from tflaunch.api.requests.tune import TuneRequest, request_of
from tflaunch.api.tuning import NothingMeasured, PreparedTry, _Search, _Trying, tune
from tflaunch.cli.options import flatten
from tflaunch.cli.tune import TuneCommand
from tflaunch.console.pen import Sheet
from tflaunch.console.tune_page import tune_page
from tflaunch.documents.tuned import tuned
from tflaunch.hosts import Hostfile
from tflaunch.inputs.options.of_tune import TuneOptions
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.errors import EXIT_NO_METRIC, EXIT_TIMEOUT, RecordError, TflaunchError, UsageError
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome, TimedOut
from tflaunch.runs.record import Record
from tflaunch.tuning.layouts import TaskLayout
from tflaunch.tuning.tried import FORMAT, TUNE, Tried, Try

NAME = "lr-abcdef"
SLOW = "ps/0 uses all its cores; start more ps"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "TFLAUNCH_ETC"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def record() -> Iterator[Record]:
    """That of a run that has succeeded."""
    plan, command = ClusterPlan(NAME, ()), ("tflaunch", "tune")
    record = Record.create(NAME, plan=plan, hostfile=Hostfile("here", ()), command=command)
    record.finish(Outcome(NAME, "succeeded", 0, 3.0))
    yield record
    record.close()


def request(*words: str) -> TuneRequest:
    """What `tflaunch tune` makes of these words behind HOSTS and the trainer."""
    found: list[TuneOptions] = []

    def take(options: TuneOptions) -> None:
        found.append(options)

    Path("hosts.yaml").write_text("hosts: [here]\ndefaults: {connection: local}\n")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("tune", cls=TuneCommand)(flatten(take))
    app(["hosts.yaml", "t.py", *words], prog_name="tune", standalone_mode=False)
    return request_of(found[0], None, command=("tflaunch", "tune", *words))


class Seen:
    """Sees how far the search is, and what the record says at its beginning."""

    def __init__(self) -> None:
        self.at_its_beginning: tuple[object, int] | None = None
        self.tries: list[object] = []

    def begins(self, run_id: str, tried: Tried) -> None:
        self.known = tried
        record = Record.open(run_id)
        self.at_its_beginning = (record.outcome(), record.about["pid"])

    def trying(self, layout: TaskLayout, number: int, total: int) -> None:
        self.tries.append((layout, number, total))

    def tried(self, layout: TaskLayout, tried: Try, number: int, total: int) -> None:
        self.tries.append((layout, tried, number, total))


def refused(record: Record, request: TuneRequest) -> TflaunchError:
    """The error of a search that is to go on from this record, which stays as it was."""
    before = {path.name: path.read_bytes() for path in record.path.iterdir() if path.is_file()}
    record.close()
    with pytest.raises(TflaunchError) as told:
        tune(request, Seen(), resume=NAME)
    after = {path.name: path.read_bytes() for path in record.path.iterdir() if path.is_file()}
    assert after == before
    assert not Record.open(NAME).running()
    return told.value


def test_a_run_that_is_no_search_stays_as_it_was(record: Record) -> None:
    error = refused(record, request("--ps=0,1"))
    assert isinstance(error, UsageError)
    assert error.message == f"{NAME} is no search for a layout"


def test_another_search_stays_as_it_was(record: Record) -> None:
    mine = request("--ps=0,1")
    Tried(mine.layouts, mine.about).keep_in(record)
    assert "tries other layouts" in refused(record, request("--ps=0,2")).message


def test_a_search_of_another_tflaunch_stays_as_it_was(record: Record) -> None:
    mine = request("--ps=0,1")
    newer = {"layout": {"ps": 0, "cards": 2}, "try": {"rate": 1.0, "watts": 300.0}}
    record.write(TUNE, {"format": 2, "about": mine.about, "tries": [newer]})
    error = refused(record, mine)
    assert isinstance(error, RecordError)
    assert "tune.json has format 2, this tflaunch reads 1" in error.message


def test_a_search_that_goes_on_has_no_outcome_until_its_end(record: Record) -> None:
    mine = request("--ps=0,1")
    known = Tried(mine.layouts, mine.about)
    known.keep_in(record)
    for layout, rate in zip(mine.layouts, (10.0, 20.0), strict=True):
        known.add(layout, Try(0, "lr-layout-abcdef", rate))
    record.write("run.json", {**record.about, "pid": 1})
    record.close()
    seen = Seen()
    name, tried = tune(mine, seen, resume=NAME)
    assert (name, tried.ranked()) == (NAME, [*reversed(mine.layouts)])
    assert seen.tries == []
    assert seen.at_its_beginning == (None, os.getpid())
    after = Record.open(NAME)
    assert (after.outcome() or {})["status"] == "succeeded"
    assert (after.command, after.started) == (mine.command, record.started)


def found(*exit_codes: int) -> Tried:
    """What is known of a search whose runs have all ended without a rate, with these codes."""
    mine = request("--ps=0,1,2")
    tried = Tried(mine.layouts, mine.about)
    for layout, code in zip(mine.layouts, exit_codes, strict=False):
        tried.add(layout, Try(0, "lr-layout-abcdef", None, why=f"code {code}", exit_code=code))
    return tried


@pytest.mark.parametrize(
    ("codes", "code", "hint"),
    [
        ((EXIT_NO_METRIC,), EXIT_NO_METRIC, "have the workers print one now and then"),
        ((EXIT_TIMEOUT, EXIT_NO_METRIC), EXIT_NO_METRIC, "have the workers print one now and then"),
        (
            (EXIT_TIMEOUT, EXIT_TIMEOUT),
            EXIT_TIMEOUT,
            "give it longer, as with --timeout 10m; or have the workers",
        ),
        ((1, 1), 1, "what its tasks printed: tflaunch logs lr-layout-abcdef"),
    ],
)
def test_what_ends_a_search_that_has_measured_nothing(codes: tuple[int, ...], code: int, hint: str) -> None:
    search = _Search(request("--ps=0,1,2"), found(*codes), Seen())
    with pytest.raises(NothingMeasured, match=f"code {code}") as told:
        search._maybe_give_up()
    assert told.value.exit_code == code
    assert (told.value.hint or "").startswith(hint)


@pytest.mark.parametrize("codes", [(), (1,), (EXIT_TIMEOUT,)])
def test_one_layout_that_fails_or_takes_too_long_ends_no_search(codes: tuple[int, ...]) -> None:
    _Search(request("--ps=0,1,2"), found(*codes), Seen())._maybe_give_up()


@pytest.mark.parametrize(
    ("status", "failure", "code"),
    [("failed", TimedOut("--timeout 2m", ()), EXIT_TIMEOUT), ("succeeded", None, EXIT_NO_METRIC)],
)
def test_a_run_without_steps_that_was_ended_is_told_from_one_that_has_ended(
    status: Literal["failed", "succeeded"], failure: TimedOut | None, code: int
) -> None:
    mine = request("--ps=0,1")
    outcome = Outcome(NAME, status, 0, 120.0, first_failure=failure)
    why, found = _Trying(mine, mine.layouts[0], 0, 5)._why_not(outcome, [])
    assert why.startswith("the program has named no step in what it printed ")
    assert found == code


@pytest.mark.parametrize(
    "tries", [{}, [{}], [{"layout": {"of": 1}, "try": {}}], [{"layout": {}, "try": {"limits": 7}}]]
)
def test_a_search_whose_tries_are_damaged_is_an_error_not_a_crash(record: Record, tries: object) -> None:
    tried = Tried((TaskLayout(),), {})
    kept = {"format": FORMAT, "about": {}, **({"tries": tries} if tries else {})}
    record.write(TUNE, kept)
    with pytest.raises(RecordError, match="cannot read the record"):
        tried.go_on(record)


def test_a_clock_that_is_set_while_a_layout_runs_does_not_change_its_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps lie evenly in time; the clock of the machine is set an hour on, and then two hours back."""
    mine, events = request("--ps=0,1"), Events()
    reporter = EventReporter(events)
    trying, steady = _Trying(mine, mine.layouts[0], 0, 5), iter(range(100, 1000))
    clock = SimpleNamespace(monotonic=lambda: float(next(steady)))
    monkeypatch.setattr("tflaunch.api.event_feed.time", clock)
    worker = TaskPlan(TaskId("worker", 0), "here", "here", 2222, (), (), (), {}, (), None)
    reporter.plan(ClusterPlan(NAME, (worker,)))
    reporter.close()
    for step in range(30):
        wall = 1e9 + step + (3600 if 10 <= step < 20 else -3600 if step >= 20 else 0)
        told = {"event": "log", "time": wall, "task": "worker/0", "host": "here", "line": f"step {4 * step}"}
        events.write(json.dumps(told) + "\n")
    events.end()
    prepared = cast(PreparedTry, SimpleNamespace(reporter=reporter))
    for event, at in events.timed():
        trying._take(event, at, prepared)
    rate = trying._rate
    assert rate is not None
    assert (rate.rate, rate.low, rate.high, rate.seconds) == pytest.approx((4.0, 4.0, 4.0, 29.0))


def test_what_limited_a_layout_is_what_made_its_run_slow_and_no_other_warning() -> None:
    mine = request("--ps=0,1")
    layout, reporter = mine.layouts[0], EventReporter(Events())
    try:
        worker = TaskPlan(TaskId("worker", 0), "here", "here", 2222, (), (), (), {}, (), None)
        reporter.plan(ClusterPlan(NAME, (worker,)))
        reporter.warn("here cannot be reached")
        for text in (SLOW, "another host is slow", SLOW):
            reporter.slowed(text)
        reporter.report(Outcome(NAME, "succeeded", 0, 3.0))
        trying = _Trying(mine, layout, 0, 5)
        for second in range(3):
            trying._rates.line("worker/0", float(second), f"step {second}")
        prepared = SimpleNamespace(reporter=reporter, request=SimpleNamespace(run_id=NAME))
        found = trying._result(cast(PreparedTry, prepared), cut_short=False, enough=False)
    finally:
        reporter.close()
    assert found.limits == (SLOW, "another host is slow")
    tried = Tried((layout,), {})
    tried.add(layout, found)
    page = [line.plain for line in tune_page(tuned(NAME, tried, 5, ("tflaunch", "run")), Sheet(200))]
    assert page[0].rstrip().endswith("what limited it")
    assert "  ps/0 uses all its cores; 2 of 5 steps" in page[1]


def test_a_program_that_is_not_there_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        tune(request("--ps=0,2"), Seen())
    assert not list(tmp_path.glob("**/run.json"))
