"""An agent.json that something else has written over: the other runs of the host are still told and cleaned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tflaunch.agent import garbage, ledger, visit
from tflaunch.agent.host import strays
from tflaunch.agent.host.rundir import RunDirectory
from tflaunch.agent.visit import Visit
from tflaunch.protocol import wire

DAMAGED: list[dict[str, Any]] = [
    {"pid": "x", "start": 0},
    {"guard": {}, "guard_start": 1},
    {"machine": 5},
    {"machine": {"a": 1, "b": 2}},
    {"machine": [None, None]},
    {"machine": ["one"]},
]


def left(parent: Path, run: str, about: dict[str, Any]) -> RunDirectory:
    directory = RunDirectory(str(parent), run, "h1")
    Path(directory.path).mkdir(parents=True)
    directory.write("agent.json", about)
    return directory


@pytest.mark.parametrize("about", DAMAGED)
def test_the_other_runs_are_told_and_cleaned(tmp_path: Path, about: dict[str, Any]) -> None:
    damaged = left(tmp_path, "run-damaged", about)
    left(tmp_path, "run-sound", {"pid": 1, "start": 1, "over": True})
    (Path(damaged.path) / "agent.sock").touch()  # as where the agent was killed
    assert strays.end_all(str(tmp_path)) == []
    assert strays.leases(str(tmp_path)) == {}
    told = ledger.runs(str(tmp_path), True)["runs"]
    assert {each["run"]: each["state"] for each in told} == {"run-damaged": "lost", "run-sound": "ended"}
    assert ledger.restarted(damaged) == 0.0
    kept = garbage.usage(str(tmp_path))["runs"]
    assert {each["run"]: each["keep"] for each in kept} == {"run-damaged": "", "run-sound": ""}
    done = garbage.clean(str(tmp_path), ["run-damaged", "run-sound"], None)
    assert (set(done["removed"]), done["left"]) == ({"run-damaged", "run-sound"}, {})


def test_a_visit_ends_such_a_run(tmp_path: Path) -> None:
    left(tmp_path, "run-damaged", {"pid": "x", "start": 1, "guard": [], "guard_start": 1, "machine": 5})
    (answer,) = answers(tmp_path, wire.encode("finish", run="run-damaged", grace_s=0.0))
    assert (answer.type, answer["survivors"]) == ("finished", [])


def test_code_of_a_plan_that_is_damaged_belongs_to_nobody(tmp_path: Path) -> None:
    left(tmp_path, "run-damaged", {"over": True}).write("plan.json", {"code": 5, "about": {"hosts": 7}})
    assert [each["hosts"] for each in garbage.usage(str(tmp_path))["runs"]] == [["h1"]]
    assert set(garbage.clean(str(tmp_path), ["run-damaged"], None)["removed"]) == {"run-damaged"}


def answers(parent: Path, *messages: bytes) -> list[wire.Message]:
    """What a visit there answers to these messages."""
    parent.chmod(0o700)
    theirs, ours = os.pipe()
    got, out = os.pipe()
    os.close(ours)
    Visit(str(parent), theirs, out).run(b"".join(messages))
    os.close(out)
    os.close(theirs)
    with os.fdopen(got, "rb") as file:
        hello, *more = wire.Decoder().feed(file.read())
    assert hello.type == "hello"
    return more


def test_a_defect_in_one_request_is_told_and_ends_no_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("out of order")

    monkeypatch.setattr(visit.ledger, "runs", breaks)
    failed, usage = answers(tmp_path, wire.encode("list"), wire.encode("measure"))
    assert (failed.type, usage.type) == ("failed", "usage")
    assert failed["reason"].startswith("a defect of tflaunch's agent:\nTraceback")
    assert failed["reason"].endswith(
        "in breaks\n    raise KeyError(\"out of order\")\nKeyError: 'out of order'\n"
    )
