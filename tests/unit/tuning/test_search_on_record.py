"""A search that goes on: which records it takes, and what it makes of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tflaunch.api.requests.tune import TuneRequest, request_of
from tflaunch.api.tuning import tune
from tflaunch.cli.options import flatten
from tflaunch.cli.tune import TuneCommand
from tflaunch.hosts import Hostfile
from tflaunch.inputs.options.of_tune import TuneOptions
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import TflaunchError, UsageError
from tflaunch.protocol.outcome import Outcome
from tflaunch.runs.record import Record
from tflaunch.tuning.layouts import TaskLayout
from tflaunch.tuning.tried import Tried, Try

NAME = "lr-abcdef"


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

    def begins(self, run_id: str) -> None:
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
