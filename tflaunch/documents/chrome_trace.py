"""The report of runs as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing: steps, tasks, curves.

The format is that of the "Trace Event Format": `X` is a slice, `i` a moment, `C` the value of a counter, `M` a name;
times are microseconds.  Each run begins at 0, so that two lie over each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.json_reports import WORDS, ReportedRunData, ReportedTaskData, SamplesData

_Event = dict[str, Any]
_MOMENTS = "moments"  # the row of what took no time


def chrome_trace(document: ReportDocument) -> dict[str, Any]:
    """The trace, as data of JSON."""
    events: list[_Event] = []
    for run in document["runs"]:
        first = 1 + max((event["pid"] for event in events), default=0)
        events += _of_run(run, first)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _of_run(run: ReportedRunData, pid: int) -> Iterator[_Event]:
    """The run is one process of the trace, numbered `pid`; its tasks are those behind it."""
    yield _named("process_name", pid, f"{run['run_id']} ({_said(run['status'])})")
    rows: dict[str, int] = {}
    for moment in run["timeline"]:
        kind = _said(moment["kind"])
        row = kind if moment["lasted_s"] is not None else _MOMENTS
        if row not in rows:
            rows[row] = len(rows) + 1
            yield _named("thread_name", pid, row, rows[row])
        where = {"pid": pid, "tid": rows[row], "ts": _us(moment["at"] - run["began"]), "cat": moment["kind"]}
        args = {"text": moment["text"]}
        if moment["lasted_s"] is not None:
            yield {"ph": "X", "name": kind, "dur": _us(moment["lasted_s"]), "args": args, **where}
        else:
            yield {"ph": "i", "name": f"{kind}: {moment['text']}", "s": "p", "args": args, **where}
    started = next((each["at"] for each in run["timeline"] if each["kind"] == "started"), None)
    pids = {}
    for number, task in enumerate(run["tasks"], pid + 1):
        pids[task["task"]] = number
        yield _named("process_name", number, f"{task['task']} on {task['host']}")
        if (slice_ := _slice(task, run["began"], started)) is not None:
            yield {**slice_, "pid": number}
    if (samples := run["samples"]) is not None:
        yield from _counters(samples, run["began"], pids)
        first = pid + 1 + len(run["tasks"])
        of_hosts = {each["host"]: number for number, each in enumerate(run["hosts"], first)}
        for host, number in of_hosts.items():
            yield _named("process_name", number, host)
        yield from _counters(_of_hosts(samples), run["began"], of_hosts)


def _slice(task: ReportedTaskData, began: float, started: float | None) -> _Event | None:
    """From the task's start to its end; None where it was started again, or that is not known."""
    end = task["end"]
    if started is None or end is None or end["seconds"] is None or task["restarts"]:
        return None
    how = "stopped" if end["stopped"] else end["signal"] or f"exit code {end['code']}"
    name = f"{task['task']}: {how}"
    return {"ph": "X", "name": name, "tid": 1, "ts": _us(started - began), "dur": _us(end["seconds"])}


def _of_hosts(samples: SamplesData) -> SamplesData:
    """The same with the hosts in the place of the tasks."""
    return {
        **samples,
        "columns": samples["host_columns"],
        "tasks": samples["hosts"],
        "bins": samples["host_bins"],
    }


def _counters(samples: SamplesData, began: float, pids: dict[str, int]) -> Iterator[_Event]:
    names = list(samples["columns"])
    for number, *rows in samples["bins"]:
        ts = _us(samples["began"] - began + (number + 0.5) * samples["every_s"])
        for task, *values in rows:
            pid = pids.get(samples["tasks"][task])
            for name, value in zip(names, values, strict=False):
                if value is not None and pid is not None:
                    yield {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {name: value}}


def _named(what: str, pid: int, name: str, tid: int = 0) -> _Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _said(word: str) -> str:
    """The status, or kind of a moment, as people read it."""
    return WORDS.get(word, word)


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
