"""The report of a run as data: what stands out, with its numbers, and what does not; the timeline; two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded_run import BEGAN, BINS, recorded, sampled, started
from tflaunch.documents.json_objects import of_document
from tflaunch.documents.run_reports import report, run_report
from tflaunch.documents.run_timeline import MOST
from tflaunch.protocol.errors import RecordError, UsageError
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import HostLost, Outcome, TaskExit
from tflaunch.runs.host_samples import HOST_SAMPLES
from tflaunch.runs.record import Record
from tflaunch.sweeps.results import Result, Results
from tflaunch.tuning.tried import FORMAT, TUNE

TASKS = {"ps/0": "gpu01", "worker/0": "gpu01", "worker/1": "gpu02", "worker/2": "gpu03"}
WORKERS = [task for task in TASKS if task.startswith("worker")]
RUN = "trainer-k3f9x2"
MIB = 2.0**20
LEFT = {"event": "detached", "time": 9.0, "run_id": RUN, "tasks": 4, "host": "gpu01"}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda run=RUN, tasks=TASKS, **more: recorded(
        tmp_path, monkeypatch, run, tasks, **{"events": started(tasks), **more}
    )


def kinds(record: Any) -> list[str]:
    return [verdict["kind"] for verdict in run_report(record)["verdicts"]]


def pace(**values: float) -> Mapping[str, list[float]]:
    """Bytes a second of each worker, the same in each bin."""
    return {name.replace("_", "/"): [value] * BINS for name, value in values.items()}


@pytest.mark.parametrize(
    "event",
    [
        {"event": "exited", "time": 9.0},
        {"event": "started", "time": 9.0, "task": "worker/0"},
        {"event": "started", "time": 9.0, "task": "worker/0", "host": "gpu01", "attempt": "x"},
        {"event": "warn", "time": 9.0},
    ],
)
def test_events_that_are_damaged_are_an_error_not_a_crash(make: Any, event: Mapping[str, Any]) -> None:
    record = make(events=[*started(TASKS), event])
    with pytest.raises(RecordError, match="cannot read the record"):
        run_report(record)


def test_a_straggler_is_seen_by_its_bytes(make: Any) -> None:
    record = make()
    peers = pace(worker_0=4 * MIB, worker_1=MIB, worker_2=4 * MIB, ps_0=9 * MIB)
    sampled(record, peers=peers, cores=pace(worker_0=1.0, worker_1=0.2, worker_2=0.9))
    (verdict,) = run_report(record)["verdicts"]
    assert verdict["kind"] == "straggler"
    assert verdict["text"] == (
        "worker/1 on gpu02 went at 0.25 of the others' pace: 1.0 MiB/s to and from other tasks, their median 4.0 MiB/s;"
        " 0.2 cores against 0.95"
    ), verdict["text"]
    assert "tflaunch check --bandwidth" in verdict["advice"]


def test_a_straggler_is_seen_by_its_steps_also_where_a_task_was_started_again(make: Any) -> None:
    record = make()
    even = [10.0 * number for number in range(BINS)]
    again = [10.0 * (number % 6) for number in range(BINS)]  # from step 0 once more
    sampled(record, step={"worker/0": even, "worker/1": again, "worker/2": [each / 4 for each in even]})
    (verdict,) = run_report(record)["verdicts"]
    assert verdict["text"].startswith(
        "worker/2 on gpu03 went at 0.25 of the others' pace: 0.5 steps/s, their median 2 "
    )
    assert [task["steps_s"] for task in run_report(record)["tasks"]] == [None, 2.0, 2.0, 0.5]


@pytest.mark.parametrize(
    "values",
    [
        {"worker_0": 4 * MIB, "worker_1": 3 * MIB, "worker_2": 3.9 * MIB},  # not far enough behind
        {"worker_0": 4.0, "worker_1": 1.0, "worker_2": 4.0},  # heartbeats
        {"worker_0": MIB, "ps_0": 9 * MIB, "evaluator_0": 1.0},  # no fellow in its job
        {"worker_0": 4 * MIB, "worker_1": 2.2 * MIB},  # of two one cannot say which is the odd one
    ],
)
def test_nothing_is_said_of_who_keeps_up(make: Any, values: Mapping[str, float]) -> None:
    tasks = {name.replace("_", "/"): "gpu01" for name in values}
    record = make(tasks=tasks)
    sampled(record, peers=pace(**values))
    assert kinds(record) == []


def test_workers_in_step_are_no_stragglers_whatever_they_move(make: Any) -> None:
    record = make()
    steps = {worker: [10.0 * number for number in range(BINS)] for worker in WORKERS}
    sampled(record, peers=pace(worker_0=4 * MIB, worker_1=MIB, worker_2=4 * MIB), step=steps)
    assert kinds(record) == []


def test_the_time_after_the_others_have_ended_does_not_count(make: Any) -> None:
    record = make()
    peers = {"worker/0": [MIB] * 4, "worker/1": [MIB] * 4 + [0.0] * 20, "worker/2": [MIB] * 4}
    sampled(record, peers=peers)
    assert kinds(record) == []


def test_the_gravest_comes_first_and_there_are_three_at_most(make: Any) -> None:
    first = TaskExit(TaskId("worker", 1), "gpu02", 1, None, 70.0)
    told = {"task": "worker/1", "error": "ValueError: no"}
    events = [
        *started(TASKS, 60.0),
        {"event": "warn", "time": 90.0, "text": "worker/1 stands still"},
        {"event": "warn", "time": 95.0, "text": "worker/2 stands still"},
        {
            "event": "report",
            "time": 130.0,
            "status": "failed",
            "exit_code": 1,
            "first_failure": told,
            "hint": "mend it",
        },
    ]
    events.insert(0, {"event": "phase", "time": 0.0, "name": "connecting", "done": 0, "total": 3, "note": ""})
    record = make(events=events, outcome=Outcome(RUN, "failed", 1, 130.0, {first.task: first}, first))
    sampled(
        record,
        peers=pace(worker_0=4 * MIB, worker_1=MIB, worker_2=4 * MIB),
        gpu=pace(worker_0=10.0, worker_1=20.0, worker_2=30.0),
    )
    found = run_report(record)
    failure, warning, straggler = found["verdicts"]
    assert failure["text"] == "worker/1 on gpu02 exited with code 1 after 1 min 10 s: ValueError: no"
    assert failure["advice"] == "mend it"
    assert warning["text"] == "after 1 min 30 s: worker/1 stands still (and 1 more warning)"
    assert straggler["kind"] == "straggler"
    assert (found["status"], found["exit_code"], found["seconds"]) == ("failed", 1, 130.0)
    assert found["tasks"][2]["end"]["code"] == 1


def test_idle_gpus_and_a_slow_start_are_told_with_their_numbers(make: Any) -> None:
    steps = [
        {"event": "phase", "time": 0.0, "name": "connecting", "done": 0, "total": 3, "note": ""},
        {"event": "phase", "time": 40.0, "name": "connecting", "done": 3, "total": 3, "note": ""},
    ]
    record = make(events=[*steps, *started(TASKS, 45.0)], outcome=Outcome(RUN, "succeeded", 0, 100.0))
    sampled(record, gpu=pace(worker_0=10.0, worker_1=20.0, worker_2=30.0))
    idle, slow = run_report(record)["verdicts"]
    assert idle["text"] == "the GPUs computed 20 % of the time, those of 3 tasks between 10 and 30 %"
    assert slow["text"] == "45 s of 1 min 40 s went by before the tasks ran: connecting 40 s"


def test_a_lost_host_is_named(make: Any) -> None:
    record = make(
        outcome=Outcome(RUN, "failed", 71, 9.0, first_failure=HostLost("gpu02", "not heard of for 60 s"))
    )
    (verdict,) = run_report(record)["verdicts"]
    assert verdict["text"] == "gpu02 was lost: not heard of for 60 s"
    assert f"tflaunch logs {RUN}" in verdict["advice"]


def test_the_timeline_is_in_order_and_says_what_many_tasks_did_once(make: Any) -> None:
    end = {"event": "exited", "host": "gpu01", "signal": None, "seconds": 9.0, "attempt": 0, "missing": 0}
    events = [
        {"event": "phase", "time": 0.0, "name": "connecting", "done": 0, "total": 3, "note": "gpu01"},
        {"event": "phase", "time": 1.5, "name": "connecting", "done": 3, "total": 3, "note": ""},
        {"event": "phase", "time": 1.6, "name": "training", "done": 0, "total": 4, "note": ""},
        *started(TASKS),
        {"event": "unreachable", "time": 8.0, "host": "gpu03", "reason": "it is silent"},
        {"event": "back", "time": 9.0, "host": "gpu03", "seconds": 1.0},
        {**started({"worker/1": "gpu02"}, 9.5)[0], "attempt": 1},
        *({**end, "time": 11.0, "task": task, "code": 0, "stopped": False} for task in WORKERS[:2]),
        {**end, "time": 40.0, "task": "worker/2", "code": 0, "stopped": False},
        {**end, "time": 41.0, "task": "ps/0", "code": None, "signal": "SIGTERM", "stopped": True},
        {"event": "detached", "time": 43.0, "run_id": RUN, "tasks": 4, "host": "gpu01"},
    ]
    found = run_report(make(events=events))
    told = [(moment["at"] - BEGAN, moment["kind"], moment["text"]) for moment in found["timeline"]]
    assert told == [
        (0.0, "connecting", ""),
        (2.0, "started", "4 tasks on 3 hosts, until the first is over"),
        (8.0, "unreachable", "gpu03: it is silent"),
        (9.0, "back", "gpu03"),
        (9.5, "restarted", "worker/1 on gpu02: attempt 2"),
        (11.0, "ended", "worker/0, worker/1: exit code 0"),
        (40.0, "ended", "worker/2 on gpu01: exit code 0"),
        (41.0, "ended", "ps/0 on gpu01: killed by SIGTERM, stopped by tflaunch"),
        (43.0, "detached", "the run goes on without its launcher; gpu01 decides"),
    ]
    assert [moment["lasted_s"] for moment in found["timeline"][:4]] == [1.5, 9.0, None, 1.0]
    assert found["status"] == "detached", "also where the disk refused the note of it"
    assert any(each.endswith(f"tflaunch status {RUN}") for each in found["missing"])


def test_a_long_timeline_loses_its_middle(make: Any) -> None:
    events = [{"event": "warn", "time": float(number), "text": str(number)} for number in range(3 * MOST)]
    moments = run_report(make(events=events))["timeline"]
    assert len(moments) == MOST + 1
    assert moments[MOST // 2]["text"] == f"{2 * MOST} more are left out here"
    assert (moments[0]["text"], moments[-1]["text"]) == ("0", str(3 * MOST - 1))


def test_two_runs_stand_side_by_side(make: Any) -> None:
    one = make(outcome=Outcome(RUN, "succeeded", 0, 100.0))
    two = make(
        "trainer-7d01be", {"worker/0": "gpu01"}, outcome=Outcome("trainer-7d01be", "succeeded", 0, 50.0)
    )
    sampled(one, cores=pace(worker_0=1.0, worker_1=3.0))
    document = report([one, two])
    assert not of_document("report", dict(document))
    rows = {row["what"].partition(":")[0]: row for row in document["compared"]}
    assert rows["tasks"]["values"] == [4.0, 1.0]
    assert rows["seconds, from the command to the end"]["ratio"] == 0.5
    assert rows["cores"] == {"what": rows["cores"]["what"], "values": [2.0, None], "ratio": None}
    assert "GPUs" not in rows


@pytest.mark.parametrize(
    ("detached", "said"),
    [(False, "no samples"), (True, f"tflaunch status {RUN}")],
    ids=["launcher", "detached"],
)
def test_what_is_missing_is_said(make: Any, detached: bool, said: str) -> None:
    found = run_report(make(detached=detached, events=[*started(TASKS), *[LEFT] * detached]))
    assert said in "".join(found["missing"])
    assert found["status"] == ("detached" if detached else "unknown")
    assert found["samples"] is None
    assert not of_document("report", dict(report([make("of-old-a1b2c3", events=())])))


FAILED = Outcome(RUN, "failed", 69, 3.0)


@pytest.mark.parametrize(
    ("left", "outcome", "said"),
    [
        (False, FAILED, ""),  # it failed before it was detached: all of it is here
        (True, FAILED, "it was detached: what happened between that and its end is not on this machine"),
        (False, None, "its launcher has gone without a word"),
        (True, None, "it was detached: what happened after that is not on this machine"),
    ],
)
def test_a_run_was_detached_once_its_launcher_has_left_it(
    make: Any, left: bool, outcome: Outcome | None, said: str
) -> None:
    record = make(detached=True, outcome=outcome, events=[*started(TASKS), *[LEFT] * left])
    missing = run_report(record)["missing"]
    assert any(each.startswith(said) for each in missing) if said else len(missing) == 1
    old = run_report(make("of-old-a1b2c3", detached=True, outcome=outcome, events=()))
    assert any(each.startswith("it was detached: ") for each in old["missing"]), "the note alone tells it"


def test_a_run_that_is_to_be_detached_and_still_begins_was_not(make: Any) -> None:
    make(detached=True).close()
    record = Record.reopen(RUN)  # as its launcher holds it
    try:
        found = run_report(Record.open(RUN))
    finally:
        record.close()
    assert found["status"] == "running"
    assert len(found["missing"]) == 1, "no samples yet"


def test_a_search_for_a_layout_that_nobody_ended_is_gone_on_with(make: Any) -> None:
    record = make("tune-a1b2c3", tasks={}, events=())
    record.write(TUNE, {"format": FORMAT, "about": {}, "tries": []})
    found = run_report(record)
    assert found["status"] == "unknown"
    gone, runs = found["missing"]
    assert gone.endswith("this goes on with it: tflaunch tune --resume tune-a1b2c3")
    assert "a run of its own" in runs


def test_what_a_detached_runs_hosts_have_kept_is_reported_and_else_why_it_is_not_here(make: Any) -> None:
    record = make(detached=True, spares=["gpu09"], events=[*started(TASKS), LEFT])
    [_, missing] = run_report(record, "gpu01: timed out")["missing"]
    assert missing.endswith("do not tell it now: gpu01: timed out")
    tallies = [[at, {"worker/0": [2 * at, *[None] * 4, 0, at, *[None] * 4, 1]}] for at in (0, 5, 10)]
    for at, line in zip((0, 5, 10), tallies, strict=True):
        line[1] |= {host: [1000 * at, 0, 100 * at, 0] for host in ("gpu09", "gpu01", "elsewhere")}  # type: ignore[operator]
    lines = [{"format": 1, "began": BEGAN, "every_s": 5.0}, *tallies]
    (record.path / HOST_SAMPLES).write_text("\n".join(map(json.dumps, lines)))
    found = run_report(record)
    assert len(found["missing"]) == 1
    (worker,) = [task for task in found["tasks"] if task["task"] == "worker/0"]
    assert (worker["means"]["cores"], worker["step"]) == (2.0, 10)
    assert "printed" in [moment["kind"] for moment in found["timeline"]]
    assert [host["host"] for host in found["hosts"]] == ["gpu01", "gpu09"], "one was a spare when it began"
    assert all(host["means"]["io_pressure"] == 10 for host in found["hosts"])


def test_hosts_have_what_their_programs_waited_for(make: Any) -> None:
    record = make()
    hosts = {"gpu03": [[1.0, 0.0, 0.0]], "gpu01": [[10.0, 0.0, None], [30.0, 2.0, 5.0]]}
    sampled(record, hosts, cores=pace(worker_0=1.0, worker_2=1.0))
    found = run_report(record)
    assert not of_document("report", dict(report([record])))
    assert found["hosts"] == [
        {
            "host": "gpu01",
            "means": {"cpu_pressure": 20, "memory_pressure": 1, "io_pressure": 5},
            "most": {"cpu_pressure": 30, "memory_pressure": 2, "io_pressure": 5},
        },
        {
            "host": "gpu03",
            "means": {"cpu_pressure": 1, "memory_pressure": 0, "io_pressure": 0},
            "most": {"cpu_pressure": 1, "memory_pressure": 0, "io_pressure": 0},
        },
    ]
    assert [host["host"] for host in run_report(record, only="worker/2")["hosts"]] == ["gpu03"]
    rows = {row["what"].partition(":")[0]: row for row in report([record, record])["compared"]}
    assert rows["cpu_pressure"]["values"] == [10.5, 10.5]


def ended_trial(number: int, status: Any = "succeeded", **more: Any) -> Result:
    """A trial on gpu01 that took 20 s, the second half a minute after the first."""
    end = {"exit_code": 0, "signal": None, "seconds": 20.0, "ended": BEGAN + 30 + 30 * number, **more}
    return Result(
        number, {"lr": number}, 0.5, status, host="gpu01", gpus=("0",), attempts=number + 1, log="", **end
    )


def test_a_sweep_has_its_trials_with_their_values_and_curves(make: Any) -> None:
    record = make("lr-k3f9x2", {}, events=[])
    results = Results(record)
    results.keep_trials(
        [{"lr": str(number)} for number in range(4)], 7, {"program": ["t.py"], "args": ["-v"]}
    )
    results.add(ended_trial(0))
    results.add(ended_trial(1, "failed", exit_code=137, signal="SIGKILL", why="was killed by SIGKILL"))
    cores = {"trial/0": [1.0] * 4, "trial/1": [*[None] * 6, 2.0, 2.0], "trial/2": [*[None] * 9, 3.0]}
    sampled(record, cores=cores, step={"trial/1": [*[None] * 6, 10, 60]})
    run = run_report(record)
    assert not of_document("report", report([record]))
    assert [task["task"] for task in run["tasks"]] == ["trial/0", "trial/1", "trial/2"], "trial/3 waits"
    first, second, third = run["tasks"]
    assert first["trial"] == {"params": {"lr": "0"}, "metric": 0.5, "status": "succeeded", "why": ""}
    assert (first["end"]["code"], second["end"]["signal"], second["restarts"]) == (0, "SIGKILL", 1)
    assert (third["trial"]["status"], third["end"], third["means"]) == ("running", None, {"cores": 3.0})
    assert run["programs"] == {"trial": ["t.py", "-v"]}
    (missing,) = run["missing"]
    assert missing.endswith("this goes on with it: tflaunch sweep --resume lr-k3f9x2")
    told = [(each["kind"], each["text"]) for each in run["timeline"]]
    assert told == [
        ("started", "trial/0 on gpu01 is the first trial"),
        ("ended", "trial/0 on gpu01: exit code 0"),
        ("restarted", "trial/1 on gpu01: attempt 2"),
        ("ended", "trial/1 on gpu01: killed by SIGKILL"),
    ]
    alone = run_report(record, only="trial/1")
    assert [task["task"] for task in alone["tasks"]] == alone["samples"]["tasks"] == ["trial/1"]
    assert [number for number, *_ in alone["samples"]["bins"]] == [0, 1], "it begins with its own start"
    assert alone["samples"]["began"] == run["samples"]["began"] + 6 * run["samples"]["every_s"]
    assert [each["kind"] for each in alone["timeline"]] == ["restarted", "ended"]
    with pytest.raises(UsageError, match="lr-k3f9x2 has no trial/3"):
        run_report(record, only="trial/3")


def test_the_trial_that_failed_first_is_told_with_its_error(make: Any) -> None:
    failed = TaskExit(TaskId("trial", 0), "gpu01", 1, None, 20.0, stopped=False)
    ended = Outcome("lr-k3f9x2", "failed", 1, 30.0, first_failure=failed, exits={failed.task: failed})
    record = make("lr-k3f9x2", {}, events=[], outcome=ended)
    results = Results(record)
    results.keep_trials([{"lr": "0"}], 7, {"program": ["t.py"], "args": []})
    results.add(ended_trial(0, "failed", exit_code=1, why="exited with code 1: ValueError: lr: 0"))
    (verdict,) = run_report(record)["verdicts"]
    assert verdict["text"] == "trial/0 on gpu01 exited with code 1 after 20 s: ValueError: lr: 0"
    assert verdict["advice"] == "its last lines: tflaunch logs lr-k3f9x2 trial/0 --tail 30"


def test_one_task_of_a_run_has_its_own_failure_alone(make: Any) -> None:
    first = TaskExit(TaskId("worker", 1), "gpu02", 1, None, 70.0)
    events = [*started(TASKS), {"event": "note", "time": 3.0, "text": "of all"}]
    record = make(events=events, outcome=Outcome(RUN, "failed", 1, 130.0, {first.task: first}, first))
    sampled(record, cores=pace(worker_0=1.0, worker_1=0.2))
    assert [each["kind"] for each in run_report(record, only="worker/1")["verdicts"]] == ["failure"]
    other = run_report(record, only="worker/0")
    assert (other["verdicts"], other["status"]) == ([], "failed")
    assert "of all" in [each["text"] for each in other["timeline"]]
