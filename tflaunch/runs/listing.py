"""The runs on a set of hosts: what several hosts say of one run, put together.  Pure.

What a host says counts before any record.  The records of this machine add what the hosts leave out, and the runs of
hosts that did not answer.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tflaunch.inputs.hostnames import natural
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_STOPPED, ConnectError
from tflaunch.protocol.wire import Message
from tflaunch.runs.hidden_values import without_values
from tflaunch.runs.record_list import MAY_BE_ALIVE, RunInfo
from tflaunch.runs.run_ids import is_run_id
from tflaunch.runs.run_states import LEASE_S, HostShare, RunState, TaskState

# The states of a host's part, the most informative one first.
_RANKS = ("alive", "strays", "ended", "lost", "elsewhere")


@dataclass(frozen=True)
class Listing:
    """All runs that were asked for, the newest first, and the hosts that could not be asked."""

    runs: tuple[RunState, ...]
    others: int  # how many runs are not listed because they are not alive
    failures: Mapping[str, ConnectError]
    tidied: tuple[str, ...] = ()  # a sentence for each host where strays of a run had to be ended


def listing(
    replies: Mapping[str, Message],
    failures: Mapping[str, ConnectError],
    arrived: Mapping[str, float],
    records: Iterable[RunInfo] = (),
    *,
    everything: bool = False,
) -> Listing:
    """Put together what the hosts answered and, for hosts that did not answer, what this machine has on record.

    arrived: when each answer came (epoch seconds): one host may answer long before the last one.
    everything: also runs on slots that are over, which only this machine can tell of.
    """
    entries: dict[str, dict[str, dict[str, Any]]] = {}
    for name, said in replies.items():
        for entry in said["runs"]:
            if not is_run_id(str(entry["run"])):
                continue  # no id: in a command it could read as an option or as two words
            entry["offset"], entry["asked"] = arrived[name] - said["clock"], name
            of_run = entries.setdefault(str(entry["run"]), {})
            before = of_run.get(entry["host"])
            if before is None or _rank(entry) < _rank(before):
                of_run[entry["host"]] = entry
    runs = {run: _run(run, [*of_run.values()], replies, failures) for run, of_run in entries.items()}
    for info in records:
        known = runs.get(info.run_id)
        if known is not None:
            runs[info.run_id] = dataclasses.replace(
                known,
                started=known.started or info.started,
                command=known.command or info.command,
                outcome=known.outcome or _outcome(info.exit_code),
            )
        elif info.status in MAY_BE_ALIVE and not failures.keys().isdisjoint(info.hosts):
            silent = tuple(HostShare(host, "unreachable") for host in info.hosts if host in failures)
            runs[info.run_id] = RunState(info.run_id, silent, started=info.started, command=info.command)
        elif info.waits or (everything and info.on_slots and info.status == "ended"):
            runs[info.run_id] = kept_state(info)
    newest_first = sorted(runs.values(), key=lambda run: (-(run.started or 0.0), run.run_id))
    others = {run for said in replies.values() for run in said["others"]} - runs.keys()
    # Two hosts of one machine that share a directory may both have ended them.
    tidied = {
        f"{each['host']}: ended what {each['run']} had left, whose agent and guard were killed: "
        f"{', '.join(each['killed'])}"
        for said in replies.values()
        for each in said.fields.get("ended", ())
        if is_run_id(str(each["run"]))
    }
    return Listing(tuple(newest_first), len(others), failures, tuple(sorted(tidied)))


def _rank(entry: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """A sort key: of the entries of hosts that share a disk, and so answer for one directory, the lowest counts.

    Entries that are not `elsewhere` come first, then the host's own entry, then the most informative state.
    """
    return entry["state"] == "elsewhere", entry["asked"] != entry["host"], _RANKS.index(entry["state"])


def kept_state(info: RunInfo) -> RunState:
    """A run on slots of which no host tells, as its record here has it: it is over, or waits for its slots."""
    tasks = []
    for task, host in info.tasks.items():
        name = str(task)
        if (exit := info.exits.get(task)) is None:
            tasks.append(TaskState(name, host, "unknown"))
            continue
        end: dict[str, Any] = {"code": exit.code, "signal": exit.signal, "signal_name": exit.signal_name}
        told: dict[str, Any] = {
            **end,
            "seconds": exit.seconds,
            "stopped": exit.stopped,
            "attempts": exit.attempt + 1,
        }
        tasks.append(TaskState(name, exit.host, "exited", **told))
    return RunState(
        info.run_id,
        tuple(HostShare(host, "ended") for host in info.hosts),
        tuple(sorted(tasks, key=lambda task: natural(task.task))),
        started=info.started,
        ended=info.outcome.get("ended"),
        command=info.command,
        detached=info.status == "detached",
        outcome=info.outcome or ({"status": "waiting"} if info.waits else {}),
    )


def _outcome(exit_code: int | None) -> Mapping[str, Any]:
    if exit_code is None:
        return {}
    stopped = exit_code in (EXIT_INTERRUPTED, EXIT_STOPPED)
    return {
        "status": "succeeded" if exit_code == 0 else "interrupted" if stopped else "failed",
        "exit_code": exit_code,
    }


def _run(
    run: str, entries: Sequence[dict[str, Any]], asked: Iterable[str], failures: Mapping[str, ConnectError]
) -> RunState:
    # When a run loses a host, the launcher may plan it anew without that host, which still has the old plan.  So the
    # plan that most hosts have counts; if the run is alive, most of the hosts on which it is.
    alive = [entry["about"] for entry in entries if entry["state"] == "alive"]
    abouts = alive or [entry["about"] for entry in entries]
    votes = Counter(json.dumps(about, sort_keys=True) for about in abouts)
    about = max(
        abouts, key=lambda each: (votes[json.dumps(each, sort_keys=True)], float(each.get("planned") or 0.0))
    )
    outcome: dict[str, Any] = next((entry["outcome"] for entry in entries if entry["outcome"]), {})
    shares = [
        HostShare(
            entry["host"],
            entry["state"],
            entry["directory"],
            entry["agent"],
            tuple(entry["strays"]),
            entry["asked"],
            entry["restarted"] + entry["offset"] if entry.get("restarted") else None,
            str(entry.get("why", "")),
        )
        for entry in entries
    ]
    tasks = [_task(each, entry["host"], entry["offset"]) for entry in entries for each in entry["tasks"]]
    found = {share.host for share in shares}
    for host in map(str, about.get("hosts") or ()):
        if host not in found:
            state = "unreachable" if host in failures else "gone" if host in asked else "unasked"
            shares.append(HostShare(host, state))
    planned = about.get("tasks")
    planned = {str(task): str(host) for task, host in planned.items()} if isinstance(planned, dict) else {}
    tasks = [task for task in tasks if planned.get(task.task, task.host) == task.host]
    known = {task.task for task in tasks}
    tasks += [TaskState(task, host, "unknown") for task, host in planned.items() if task not in known]
    ends = [entry["ended"] + entry["offset"] for entry in entries if entry["ended"]]
    return RunState(
        run_id=run,
        shares=tuple(sorted(shares, key=lambda share: natural(share.host))),
        tasks=tuple(sorted(tasks, key=lambda task: natural(task.task))),
        user=next((entry["user"] for entry in entries if entry["user"]), ""),
        planned=float(about.get("planned") or 0.0),
        started=min((each["started"] + each["offset"] for each in entries if each["started"]), default=None),
        ended=max(ends) if len(ends) == len(entries) else None,
        launcher=str(about.get("launcher") or ""),
        command=without_values([str(word) for word in about.get("command") or ()]),
        detached=bool(about.get("detached")),
        outcome=outcome,
        left_out=about.get("left_out") or {},
        holds=_holds(entries),
        moved=str(about.get("moved") or ""),
        lease_s=max((float(each.get("lease_s", LEASE_S)) for each in entries), default=LEASE_S),
        stopped_by=next((str(each["stopped_by"]) for each in entries if each.get("stopped_by")), ""),
    )


def _holds(entries: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """What the watchdog told the hosts last."""
    told = [entry["holds"] for entry in entries if entry["state"] == "alive" and entry.get("holds")]
    return min(told, key=lambda each: float(each["age_s"]), default=None)


def _task(entry: Mapping[str, Any], host: str, offset: float) -> TaskState:
    """The task that a host describes; `offset` is how many seconds its clock is behind this machine's."""
    names = {each.name for each in dataclasses.fields(TaskState)}
    fields = {name: value for name, value in entry.items() if name in names and value is not None}
    for name in ("since", "ended", "output"):
        if name in fields:
            fields[name] += offset
    for name in ("gpus", "gpu_labels"):
        fields[name] = tuple(fields.get(name, ()))
    fields["before"] = tuple(
        {**end, "ended": (end["ended"] or 0.0) + offset} for end in fields.get("before", ())
    )
    return TaskState(**{**fields, "host": host})
