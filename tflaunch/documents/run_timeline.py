"""What happened in a run, and when: its events, those of many tasks together, and what the samples saw first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.diagnosis.rule import names_of
from tflaunch.documents.json_things import MomentData
from tflaunch.runs.samples import Sampled
from tflaunch.text.numbers import amount, counted

MOST = 400  # moments; of more, those in the middle are left out
_TOLD = ("warn", "note", "say")
_Event = Mapping[str, Any]


def timeline(events: Sequence[_Event], sampled: Sampled | None) -> list[MomentData]:
    """What happened, in order."""
    found = [*_of_steps(events), *_of_tasks(events), *_of_hosts(events)]
    found += [
        _moment(event["time"], event["event"], event["text"]) for event in events if event["event"] in _TOLD
    ]
    found += _firsts(sampled) if sampled is not None else []
    found.sort(key=lambda moment: moment["at"])
    if len(found) > MOST:
        left_out = len(found) - MOST
        at = found[MOST // 2]["at"]
        found[MOST // 2 : -MOST // 2] = [_moment(at, "note", f"{left_out} more are left out here")]
    return found


def _moment(at: float, kind: str, text: str, lasted_s: float | None = None) -> MomentData:
    return {"at": at, "kind": kind, "text": text, "lasted_s": lasted_s}


def _of_steps(events: Sequence[_Event]) -> Iterator[MomentData]:
    """The steps of the start, each with how long it took."""
    open_steps: dict[str, float] = {}
    for event in events:
        if event["event"] == "phase" and event["name"] != "training":
            name = event["name"]
            if event["done"] < event["total"]:
                open_steps.setdefault(name, event["time"])
            elif name in open_steps:
                begun = open_steps.pop(name)
                yield _moment(begun, name, event["note"], event["time"] - begun)
        elif event["event"] == "shipped":
            yield _moment(
                event["time"],
                "shipped",
                f"{counted(event['files'], 'file')}, {amount(event['bytes'])}, {event['digest']}",
            )
    for name, begun in open_steps.items():
        yield _moment(begun, name, "not finished")


def _of_tasks(events: Sequence[_Event]) -> Iterator[MomentData]:
    starts = [event for event in events if event["event"] == "started"]
    ends = [event for event in events if event["event"] == "exited"]
    if first := [event for event in starts if not event["attempt"]]:
        at, hosts = first[0]["time"], len({event["host"] for event in first})
        text = f"{counted(len(first), 'task')} on {counted(hosts, 'host')}, until the first end"
        yield _moment(at, "started", text, ends[0]["time"] - at if ends else None)
    for event in starts:
        if event["attempt"]:
            yield _moment(
                event["time"],
                "restarted",
                f"{event['task']} on {event['host']}: attempt {event['attempt'] + 1}",
            )
    for (code, signal, stopped), alike in itertools.groupby(
        ends, lambda end: (end["code"], end["signal"], end["stopped"])
    ):
        group = list(alike)
        where = f" on {group[0]['host']}" if len(group) == 1 else ""
        how = f"killed by {signal}" if signal else f"exit code {code}"
        why = ", stopped by tflaunch" if stopped else ""
        text = f"{names_of([end['task'] for end in group])}{where}: {how}{why}"
        yield _moment(group[0]["time"], "ended", text)


def _of_hosts(events: Sequence[_Event]) -> Iterator[MomentData]:
    for event in events:
        kind = event["event"]
        if kind in ("unreachable", "lost"):
            yield _moment(event["time"], kind, f"{event['host']}: {event['reason']}")
        elif kind == "back":
            yield _moment(event["time"], kind, event["host"], event["seconds"])
        elif kind == "detached":
            where = f" {event['host']} decides" if event["host"] else ""
            yield _moment(event["time"], kind, f"the run goes on without its launcher{where and ';'}{where}")
        elif kind == "waiting":
            yield _moment(
                event["time"],
                kind,
                f"{event['place']}. in line; {event['free']} of {event['needed']} GPUs are free",
            )
        elif kind == "report":
            yield _moment(event["time"], event["status"], f"exit code {event['exit_code']}")


_FIRSTS = {
    "printed": ("first", "prints its first line"),
    "listens": ("last", "is the last to open its port"),
    "peers": ("first", "is the first to exchange bytes with another task"),
}


def _firsts(sampled: Sampled) -> Iterator[MomentData]:
    """When the tasks were seen to do something for the first time; looks are some seconds apart."""
    for what, (which, does) in _FIRSTS.items():
        seen = sorted((firsts[what], task) for task, firsts in sampled.firsts.items() if what in firsts)
        if seen:
            at, task = seen[0 if which == "first" else -1]
            yield _moment(sampled.began + at, what, f"{task} {does}")
