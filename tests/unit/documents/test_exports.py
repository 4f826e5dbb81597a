"""The report for other programs: a Chrome trace, and OpenMetrics text."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded_run import BEGAN, BINS, recorded, sampled, started
from tflaunch.documents.chrome_trace import chrome_trace
from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.openmetrics import openmetrics
from tflaunch.documents.run_reports import report
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome, TaskExit
from tflaunch.runs.samples import HOST_NAMES, NAMES

TASKS = {"ps/0": "gpu01", "worker/0": 'a "host"\\\n'}
RISING = [float(number) for number in range(BINS)]


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReportDocument:
    """Two runs: one that is over, with samples, and one that goes on, without."""
    phases = [
        {"event": "phase", "name": "connecting", "done": done, "total": 2, "note": "", "time": time}
        for done, time in ((0, 0.5), (2, 1.5))
    ]
    warned = {"event": "warn", "time": 5.0, "text": "worker/0 says <b>"}
    exits = {TaskId.parse("ps/0"): TaskExit(TaskId.parse("ps/0"), "gpu01", 0, None, 30.0, stopped=True)}
    ended = Outcome("trainer-k3f9x2", "succeeded", 0, 61.0, exits=exits)
    first = recorded(
        tmp_path,
        monkeypatch,
        "trainer-k3f9x2",
        TASKS,
        events=[*phases, *started(TASKS), warned],
        outcome=ended,
    )
    sampled(
        first,
        {"gpu01": [[number, 0.0, 1.5] for number in RISING]},
        cores={"ps/0": RISING, "worker/0": RISING},
        step={"worker/0": [*RISING[:-2], None, None]},
    )
    second = recorded(tmp_path, monkeypatch, "trainer-7d01be", TASKS, events=started(TASKS))
    return report([first, second])


def test_a_trace_has_steps_tasks_and_curves(document: ReportDocument) -> None:
    trace = chrome_trace(document)
    events: list[dict[str, Any]] = trace["traceEvents"]
    assert Counter(event["ph"] for event in events)["C"] == 2 * BINS + BINS - 2 + 3 * BINS
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(processes.values()) == sorted(
        [
            "trainer-k3f9x2 (succeeded)",
            "trainer-7d01be (has no known end)",
            *2 * [f"{task} on {TASKS[task]}" for task in TASKS],
            "gpu01",
        ]
    )
    assert len(processes) == 7, "two runs are apart"
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    began = document["runs"][0]["began"]
    assert slices["connecting"]["ts"] == round((BEGAN + 0.5 - began) * 1e6)
    assert slices["connecting"]["dur"] == 1_000_000
    assert slices["ps/0: stopped"]["dur"] == 30_000_000
    assert processes[slices["ps/0: stopped"]["pid"]] == "ps/0 on gpu01"
    (moment,) = [event for event in events if event["ph"] == "i" and "says" in event["name"]]
    assert moment["args"]["text"] == "worker/0 says <b>"
    (cores,) = [
        event
        for event in events
        if event["ph"] == "C" and event["args"].get("cores") == 3 and event["pid"] == 2
    ]
    assert cores["ts"] == round((BEGAN + 2 - began + 3.5 * 5) * 1e6), (
        "a value stands at the middle of its bin"
    )


def test_metrics_have_the_newest_values_and_keep_to_the_format(document: ReportDocument) -> None:
    text = openmetrics(document)
    assert text.endswith("# EOF\n")
    label = r'[a-z]+="(?:[^"\\\n]|\\["\\n])*"'
    sample = re.compile(rf"([a-z_]+)\{{(?:{label})(?:,{label})*\}} -?[0-9][0-9.e+-]*")
    family = ""
    for line in text.splitlines()[:-1]:
        if line.startswith("# TYPE "):
            family = line.split()[2]
            assert line == f"# TYPE {family} gauge"
        elif line.startswith("#"):
            assert line.split()[1] in ("HELP", "UNIT") and line.split()[2] == family
        else:
            found = sample.fullmatch(line)
            assert found and found[1] == family, line
    assert text.count("# TYPE ") == len(set(re.findall("# TYPE (.*)", text))), "a family stands together"
    worker = 'run="trainer-k3f9x2",task="worker/0",host="a \\"host\\"\\\\\\n"'
    assert f"tflaunch_task_cores{{{worker}}} {RISING[-1]:g}" in text
    assert f"tflaunch_task_step{{{worker}}} {RISING[-3]:g}" in text, "the last that is known"
    host = 'run="trainer-k3f9x2",host="gpu01"'
    assert f"tflaunch_host_cpu_pressure_percent{{{host}}} {RISING[-1]:g}" in text
    assert f"tflaunch_host_memory_pressure_percent{{{host}}} 0" in text
    assert f"tflaunch_host_io_pressure_percent{{{host}}} 1.5" in text
    assert 'tflaunch_run_exit_code{run="trainer-k3f9x2"} 0' in text
    assert 'tflaunch_run_exit_code{run="trainer-7d01be"}' not in text


def test_each_column_of_the_samples_has_its_metric(document: ReportDocument) -> None:
    samples = document["runs"][0]["samples"]
    assert samples is not None
    samples["bins"] = [[0, [0, *range(len(NAMES))]]]
    text = openmetrics(document)
    values = set(re.findall(r'^tflaunch_task_\w+\{[^\n]*task="ps/0"[^\n]*\} (\d+)$', text, re.MULTILINE))
    assert values >= {str(number) for number in range(len(NAMES))}
    assert set(re.findall("^tflaunch_host_([a-z_]+)_percent", text, re.MULTILINE)) == set(HOST_NAMES)


def test_no_series_is_there_twice(document: ReportDocument) -> None:
    twice: ReportDocument = {**document, "runs": [*document["runs"], document["runs"][0]]}
    series = [line.rpartition(" ")[0] for line in openmetrics(twice).splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert openmetrics(twice) == openmetrics(document)
