"""The record of a sweep that cannot begin, or go on: it is free again, and a new one is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tflaunch.hosts import Hostfile
from tflaunch.planning.cluster_plan import ClusterPlan
from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.runs.record import Record
from tflaunch.runs.record_list import list_runs
from tflaunch.sweeps.results import TRIALS
from tflaunch.sweeps.resume import NAMED, known_sweep, record_of, waiting_on_record
from tflaunch.sweeps.whole_sweep import _kept_if_begun

NAME = "lr-abcdef"
RUN: Any = SimpleNamespace(
    run_id="trainer-abcdef",
    hostfile=Hostfile("here", ()),
    command=("tflaunch",),
    ssh_config=None,
    bundle=None,
)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_STATE", str(tmp_path / "runs"))


def request(name: str, *, must_exist: bool = False) -> Any:
    return SimpleNamespace(run=RUN, name=name, must_exist=must_exist)


def damaged() -> Record:
    """A record whose trials cannot be read; it is locked."""
    plan = ClusterPlan(NAME, ())
    record = Record.create(NAME, plan=plan, hostfile=RUN.hostfile, command=RUN.command)
    (record.path / TRIALS).write_text("[")
    return record


def test_a_sweep_whose_name_cannot_be_kept_leaves_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Record.write

    def full(record: Record, name: str, value: Any) -> None:
        if name == NAMED:
            raise RecordError("no space left")
        write(record, name, value)

    with monkeypatch.context() as patch, pytest.raises(RecordError, match="no space left"):
        patch.setattr(Record, "write", full)
        record_of(request("lr"))
    assert list_runs() == []
    record_of(request("lr")).close()
    assert [run.run_id.rpartition("-")[0] for run in list_runs()] == ["lr"]


def test_a_sweep_that_is_damaged_is_not_locked_afterwards() -> None:
    damaged().close()
    with pytest.raises(RecordError, match="cannot read the record"):
        known_sweep(request(NAME, must_exist=True))
    with pytest.raises(RecordError, match="cannot read the record"), _kept_if_begun(Record.reopen(NAME)):
        pass
    with (
        pytest.raises(RecordError, match="cannot read the record"),
        waiting_on_record(Record.reopen(NAME), RUN),
    ):
        pass
    again = Record.reopen(NAME)
    (again.path / TRIALS).unlink()
    again.close()
    with pytest.raises(UsageError, match="is no sweep"):
        known_sweep(request(NAME, must_exist=True))
    Record.reopen(NAME).close()


def test_a_sweep_that_cannot_be_put_back_after_its_wait_is_not_locked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = damaged()
    (record.path / TRIALS).write_text("{}")

    def full(*_: object) -> None:
        raise RecordError("no space left")

    monkeypatch.setattr(Record, "restore", full)
    with pytest.raises(RecordError, match="no space left"), waiting_on_record(record, RUN):
        pass
    Record.reopen(NAME).close()
