"""Events as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.endings import FAILED, FAILURES, FIRST, PLAN, TURN
from tests.support.screen import W0, W1, shown
from tflaunch.documents import json_lines, json_sweep
from tflaunch.documents.json_events import EVENTS, SWEEP_EVENTS
from tflaunch.documents.json_objects import of_event
from tflaunch.documents.reporter import Reporter
from tflaunch.protocol.errors import (
    HostfileError,
    Problem,
    UsageError,
)
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit


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
    assert not [fault for event in events if (fault := of_event(event))]
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
        "lines": [],
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


def test_every_event_that_is_written_is_declared_and_none_besides() -> None:
    def written(module: ModuleType) -> set[str]:
        text = Path(str(module.__file__)).read_text()
        return {*re.findall(r'_event\(\s*"(\w+)"', text), *re.findall(r'"event": "(\w+)"', text)}

    assert written(json_lines) == EVENTS.keys()
    assert written(json_sweep) | written(json_lines) - {"log"} == SWEEP_EVENTS.keys()


def test_an_event_that_differs_from_its_declaration_is_found() -> None:
    log = {"event": "log", "time": 0.0, "task": "worker/0", "host": "gpu01", "line": "x"}
    assert of_event(log) == ""
    assert of_event({**log, "partial": True}) == ""
    assert of_event({**log, "colour": "red"}) == "log: colour: undeclared field"
    assert of_event({"event": "note", "time": 0.0}) == "note: text: missing field"
    assert of_event({**log, "line": 7}) == "log: line: Input should be a valid string"
    assert of_event({"event": "party", "time": 0.0}) == "party: no such event is declared"


def test_whose_exit_code_it_is() -> None:
    """argparse ends a trainer with 2, as tflaunch ends for a wrong command line."""

    def last(act: Any) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(shown(act, json=True)[0].splitlines()[-1])
        return event

    wrong = TaskExit(W1, "gpu02", 2, None, 1.0, b"usage: trainer.py [-h]\ntrainer.py: error: no such flag\n")
    failed = Outcome("r-1", "failed", 2, 1.0, {W1: wrong}, wrong)
    told = last(lambda reporter: reporter.report(failed))
    assert (told["exit_code"], told["exit_code_of"]) == (2, "worker/1")
    told = last(lambda reporter: reporter.error(UsageError("--workers x: not a number")))
    assert (told["exit_code"], told["exit_code_of"]) == (2, "tflaunch")
    for ended in (
        Outcome("r-1", "succeeded", 73, 1.0),
        Outcome("r-1", "failed", 76, 1.0, first_failure=HostLost("gpu01", "gone")),
        Outcome("r-1", "interrupted", 130, 1.0, {W1: wrong}, wrong),
        Outcome("r-1", "failed", 70, 1.0, {W1: wrong}, wrong),  # a sweep that no host could prepare
    ):
        assert last(lambda reporter, ended=ended: reporter.report(ended))["exit_code_of"] == "tflaunch"
    assert shown(lambda reporter: reporter.report(failed))[1].splitlines()[-1] == (
        "✗ r-1 failed after 1.0 s, exit code 2 (of worker/1); nothing is left running"
    )
    assert (
        "succeeded: 0 tasks in 1.0 s, exit code 73"
        in shown(lambda reporter: reporter.report(Outcome("r-1", "succeeded", 73, 1.0)))[1]
    )
