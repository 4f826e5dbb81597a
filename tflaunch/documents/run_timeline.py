"""What happened in a run, and when: its events, those of many tasks together, and what the samples saw first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tflaunch.diagnosis.rule import names_of
from tflaunch.documents.json_reports import MomentData
from tflaunch.protocol.job import TRIAL
from tflaunch.runs.samples import Sampled
from tflaunch.text.numbers import amount, counted

TOGETHER_S = 5.0  # between ends that are told in one sentence
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
        last = {event["task"]: event["attempt"] for event in starts}
        ended = next((end["time"] for end in ends if last.get(end["task"], 0) <= end["attempt"]), None)
        if first[0]["task"].startswith(f"{TRIAL}/"):
            among = " is the first trial" if len(last) > 1 else ""
            yield _moment(at, "started", f"{first[0]['task']} on {first[0]['host']}{among}")
        else:
            text = f"{counted(len(first), 'task')} on {counted(hosts, 'host')}, until the first is over"
            yield _moment(at, "started", text, ended - at if ended is not None else None)
    for event in starts:
        if event["attempt"]:
            text = f"{event['task']} on {event['host']}: attempt {event['attempt'] + 1}"
            yield _moment(event["time"], "restarted", text)
    for group in _alike(ends):
        end = group[0]
        where = f" on {end['host']}" if len(group) == 1 else ""
        how = f"killed by {end['signal']}" if end["signal"] else f"exit code {end['code']}"
        why = ", stopped by tflaunch" if end["stopped"] else ""
        yield _moment(
            end["time"], "ended", f"{names_of([each['task'] for each in group])}{where}: {how}{why}"
        )


def _alike(ends: Sequence[_Event]) -> list[list[_Event]]:
    """Those that came one after another, soon, and are the same but for the task."""
    groups: list[list[_Event]] = []
    for end in ends:
        before = groups[-1][-1] if groups else None
        soon = before is not None and end["time"] - before["time"] <= TOGETHER_S
        if (
            before is not None
            and soon
            and all(end[name] == before[name] for name in ("code", "signal", "stopped"))
        ):
            groups[-1].append(end)
        else:
            groups.append([end])
    return groups


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
