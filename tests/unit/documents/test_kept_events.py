"""The events that a record keeps: which, without secrets, and never too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tflaunch.documents import kept_events
from tflaunch.documents.json_objects import of_event
from tflaunch.documents.kept_events import EVENTS_KEPT, FOR_THE_END, MOST_BYTES, KeptEvents, read_events
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.events import TaskStarted
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit

WORKER = TaskId("worker", 0)
TOKEN, ODD = "geheim1234", 'se"cr\u00e9t'


class Heard:
    """The reporter that shows the run; it notes which methods were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.calls.append(name)


def plan(**env: str) -> ClusterPlan:
    task = TaskPlan(
        WORKER, "gpu01", "10.0.0.1", 2222, (), (), ("python3", "t.py"), env, (), None, masked=("PLAIN",)
    )
    return ClusterPlan("trainer-k3f9x2", (task,))


def kept(directory: Path) -> list[dict[str, Any]]:
    return [dict(event) for event in read_events(directory)]


def test_what_a_run_tells_is_kept_and_shown(tmp_path: Path) -> None:
    shown, keeping = Heard(), KeptEvents()
    reporter: Any = keeping.beside(shown)
    for done in range(4):
        reporter.phase("connecting", done, 3, "gpu01")
    keeping.begin(tmp_path)
    reporter.plan(plan())
    reporter.log(WORKER, "gpu01", 0, b"step 1\\n")
    reporter.started(TaskStarted(WORKER, "gpu01", 0, 4711))
    reporter.warn("it stands still")
    reporter.lost(HostLost("gpu01", "not heard of"))
    reporter.report(Outcome("trainer-k3f9x2", "failed", 71, 9.0))
    keeping.close()
    assert (tmp_path / EVENTS_KEPT).stat().st_mode & 0o777 == 0o600
    events = kept(tmp_path)
    assert [event["event"] for event in events] == [
        "phase",
        "phase",
        "plan",
        "started",
        "warn",
        "lost",
        "report",
    ]
    assert [event["done"] for event in events[:2]] == [0, 3], "of a step, its beginning and its end"
    assert events[2]["tasks"] == [] and events[2]["cluster"] == {}
    assert not [fault for event in events if (fault := of_event(event))]
    assert shown.calls == [*["phase"] * 4, "plan", "log", "started", "warn", "lost", "report"]


def test_a_run_that_has_no_record_leaves_nothing(tmp_path: Path) -> None:
    keeping = KeptEvents()
    reporter: Any = keeping.beside(Heard())
    reporter.warn("nobody is there")
    keeping.close()
    assert not [*tmp_path.iterdir()]


def test_secrets_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    keeping = KeptEvents()
    reporter: Any = keeping.beside(Heard())
    keeping.begin(tmp_path)
    reporter.plan(plan(HF_TOKEN=TOKEN, DB_PASSWORD=ODD, PLAIN="from-a-file", BATCH="128128", EMPTY_KEY=""))
    reporter.warn(f"worker/0 says: login with {TOKEN}, {ODD} and from-a-file failed, batch 128128")
    tail = f"KeyError: {TOKEN}\n".encode()
    exit = TaskExit(WORKER, "gpu01", 1, None, 3.0, tail)
    reporter.report(Outcome("trainer-k3f9x2", "failed", 1, 9.0, {WORKER: exit}, exit))
    keeping.close()
    text = (tmp_path / EVENTS_KEPT).read_text()
    assert TOKEN not in text and "cr\\u00e9t" not in text
    _, told, report = kept(tmp_path)
    assert told["text"] == "worker/0 says: login with ***, *** and *** failed, batch 128128"
    assert report["first_failure"]["tail"] == ["KeyError: ***"]


def test_there_are_never_too_many_and_the_end_is_always_there(tmp_path: Path) -> None:
    keeping = KeptEvents()
    reporter: Any = keeping.beside(Heard())
    keeping.begin(tmp_path)
    for number in range(5000):
        reporter.warn(f"{number}: {'x' * 1000}")
    reporter.exited(TaskExit(WORKER, "gpu01", 1, None, 3.0))
    reporter.report(Outcome("trainer-k3f9x2", "failed", 1, 9.0))
    keeping.close()
    size = (tmp_path / EVENTS_KEPT).stat().st_size
    assert MOST_BYTES - FOR_THE_END - 2000 < size < MOST_BYTES
    events = kept(tmp_path)
    assert events[0]["text"].startswith("0:")
    assert [event["event"] for event in events[-2:]] == ["exited", "report"]


def test_a_torn_line_and_a_disk_that_refuses_are_no_error(tmp_path: Path) -> None:
    (tmp_path / EVENTS_KEPT).write_text('{"event": "note", "time": 1.0, "text": "x"}\n[]\n{"event": "no')
    assert [event["text"] for event in read_events(tmp_path)] == ["x"]
    keeping = KeptEvents()
    reporter: Any = keeping.beside(Heard())
    keeping.begin(tmp_path / "nowhere")
    reporter.warn("lost")
    keeping.close()
    assert not [*read_events(tmp_path / "nowhere")]


def test_every_event_of_a_run_is_kept_but_those_of_logs() -> None:
    assert {"phase", "plan", "exited", "report", "handed_over", "warn_once"} <= kept_events._TOLD
    assert not {"log", "log_end", "gap"} & kept_events._TOLD
