"""What stands out in a run that is looked at later: three sentences at most, with their numbers, the gravest first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tflaunch.diagnosis.rule import names_of, trains
from tflaunch.documents.json_reports import ReportedRunData, ReportedTaskData, VerdictData
from tflaunch.protocol.outcome import HostLost, Reclaimed, TaskExit, exits_from, how, outcome_from
from tflaunch.runs.samples import NAMES, Sampled
from tflaunch.text.numbers import amount, counted
from tflaunch.text.times import duration

MOST = 3
# The numbers from which on something is said.
SLOW = 0.7  # of the pace of the others' median
SLOW_OF_TWO = 0.5  # where there is only one other
FELLOWS = 2
LEAST_BINS = 3  # in which all of a job are seen
LEAST_BYTES_S = 10_000.0  # of the median
IDLE_GPU, IDLE_BINS = 50.0, 6  # percent
START_SHARE, START_S = 0.3, 30.0
_OF_TASKS = "the last lines of its tasks"

_Event = Mapping[str, Any]


def verdicts(
    run: ReportedRunData,
    events: Sequence[_Event],
    sampled: Sampled | None,
    outcome: Mapping[str, Any] | None,
) -> list[VerdictData]:
    """What stands out in that run, whose own `verdicts` are not looked at."""
    found = [*_failure(run, events, outcome), *_warnings(run, events)]
    if sampled is not None:
        found += [*_stragglers(run, sampled), *_idle_gpus(run, sampled)]
    return [*found, *_slow_start(run)][:MOST]


def _verdict(kind: Any, text: str, advice: str = "") -> VerdictData:
    return {"kind": kind, "text": text, "advice": advice}


def _failure(
    run: ReportedRunData, events: Sequence[_Event], outcome: Mapping[str, Any] | None
) -> Iterator[VerdictData]:
    if outcome is None or outcome["status"] == "succeeded" or not outcome["first_failure"]:
        return
    first = outcome_from(run["run_id"], outcome, exits_from(outcome)).first_failure
    told: _Event = next((event for event in reversed(events) if event["event"] == "report"), {})
    if isinstance(first, TaskExit):
        text = f"{first.task} on {first.host} {how(first)} after {duration(first.seconds)}"
        if error := (told.get("first_failure") or {}).get("error") or _of_trial(run, str(first.task)):
            text += f": {error}"
    elif isinstance(first, (HostLost, Reclaimed)):
        text = f"{first.host} was lost: {first.reason}"
    elif first is not None:
        text = first.reason
    else:
        return
    whose, task = ("its last lines", f" {first.task}") if isinstance(first, TaskExit) else (_OF_TASKS, "")
    last = f"{whose}: tflaunch logs {run['run_id']}{task} --tail 30"
    yield _verdict("failure", text, told.get("hint") or last)


def _of_trial(run: ReportedRunData, task: str) -> str:
    """The line by which that trial said why it failed; "" where none is known, or it is no trial."""
    whys = [each["trial"]["why"] for each in run["tasks"] if each["task"] == task and each["trial"]]
    return next((why.partition(": ")[2] for why in whys), "")


def _warnings(run: ReportedRunData, events: Sequence[_Event]) -> Iterator[VerdictData]:
    begun = next((event["time"] for event in events if event["event"] == "started"), None)
    told = [
        event for event in events if event["event"] == "warn" and begun is not None and event["time"] > begun
    ]
    if told:
        more = f" (and {counted(len(told) - 1, 'more warning')})" if len(told) > 1 else ""
        after = duration(told[0]["time"] - run["began"])
        yield _verdict("warning", f"after {after}: {told[0]['text']}{more}")


def _stragglers(run: ReportedRunData, sampled: Sampled) -> Iterator[VerdictData]:
    jobs: dict[str, list[ReportedTaskData]] = {}
    for task in run["tasks"]:
        if trains(task["task"]):
            jobs.setdefault(task["task"].partition("/")[0], []).append(task)
    for tasks in jobs.values():
        if len(tasks) < FELLOWS:
            continue
        paces, unit, of_what = _paces(tasks, sampled)
        if not paces:
            continue
        slowest = min(paces, key=lambda name: paces[name])
        others = [pace for name, pace in paces.items() if name != slowest]
        median = statistics.median(others)
        if not median or paces[slowest] / median >= (SLOW if len(others) > 1 else SLOW_OF_TWO):
            continue
        slow = [name for name, pace in paces.items() if pace < SLOW * median]
        by_name = {task["task"]: task for task in tasks}
        who = f"{slowest} on {by_name[slowest]['host']}" if len(slow) == 1 else names_of(slow)
        share = paces[slowest] / median
        text = (
            f"{who} went at {share:.2f} of the others' pace: {unit(paces[slowest])}{of_what}"
            f"{' at the slowest' if len(slow) > 1 else ''}, their median {unit(median)}"
        )
        text += _beside(by_name, slowest)
        advice = (
            "see what else its host does (CPU, disk, heat), and its link: tflaunch check --bandwidth; while a run goes"
            f" on: tflaunch stacks {run['run_id']} {slowest}"
        )
        yield _verdict("straggler", text, advice)


def _paces(
    tasks: Sequence[ReportedTaskData], sampled: Sampled
) -> tuple[dict[str, float], Callable[[float], str], str]:
    """(task -> how fast it went, while all of them ran; how a pace is said; of what): no task where it is not known."""
    if all(task["steps_s"] is not None for task in tasks):
        return {task["task"]: task["steps_s"] or 0.0 for task in tasks}, _steps, ""
    names, at = [task["task"] for task in tasks], NAMES.index("peers")
    moved: dict[str, list[float]] = {name: [] for name in names}
    for _, rows in sampled.bins:
        row = {name: rows[name][at] for name in names if name in rows and len(rows[name]) > at}
        if len(row) == len(names) and None not in row.values():
            for name, value in row.items():
                moved[name].append(value or 0.0)
    if len(moved[names[0]]) < LEAST_BINS:
        return {}, _bytes, ""
    means = {name: statistics.fmean(values) for name, values in moved.items()}
    seen = statistics.median(means.values()) >= LEAST_BYTES_S
    return means if seen else {}, _bytes, " to and from other tasks"


def _steps(pace: float) -> str:
    return f"{pace:.3g} steps/s"


def _bytes(pace: float) -> str:
    return f"{amount(pace)}/s"


def _beside(tasks: Mapping[str, ReportedTaskData], slowest: str) -> str:
    """What else it used more or less of than the others."""
    said = []
    for column, unit in (("cores", "cores"), ("gpu", "% GPU")):
        own = tasks[slowest]["means"].get(column)
        others = [
            task["means"][column]
            for name, task in tasks.items()
            if name != slowest and column in task["means"]
        ]
        if own is not None and others:
            said.append(f"{own:.2g} {unit} against {statistics.median(others):.2g}")
    return f"; {', '.join(said)}" if said else ""


def _idle_gpus(run: ReportedRunData, sampled: Sampled) -> Iterator[VerdictData]:
    if len(sampled.bins) < IDLE_BINS:
        return
    means = {task["task"]: task["means"]["gpu"] for task in run["tasks"] if "gpu" in task["means"]}
    if means and (mean := statistics.fmean(means.values())) <= IDLE_GPU:
        low, high = min(means.values()), max(means.values())
        yield _verdict(
            "idle GPUs",
            f"the GPUs computed {mean:.0f} % of the time, those of {counted(len(means), 'task')} between {low:.0f} and"
            f" {high:.0f} %",
            "larger batches, input that is read ahead (prefetch, more threads), or more ps; fewer GPUs do as well",
        )


def _slow_start(run: ReportedRunData) -> Iterator[VerdictData]:
    began = next((moment["at"] for moment in run["timeline"] if moment["kind"] == "started"), None)
    if began is None or not run["seconds"]:
        return
    start_s = began - run["began"]
    whole_s = run["seconds"]
    if start_s >= START_S and start_s >= START_SHARE * whole_s:
        steps = [each for each in run["timeline"] if each["lasted_s"] and each["at"] < began]
        steps.sort(key=lambda each: -(each["lasted_s"] or 0.0))
        shown = ", ".join(f"{each['kind']} {duration(each['lasted_s'] or 0.0)}" for each in steps[:3])
        yield _verdict(
            "slow start", f"{duration(start_s)} of {duration(whole_s)} went by before the tasks ran: {shown}"
        )
