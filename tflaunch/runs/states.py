"""How runs are, as their hosts tell it: what several hosts say of one run put together.  Pure.

The hosts hold the truth; what this machine has recorded fills in what they leave out, and names runs of hosts
that cannot be asked.  All times are of this machine's clock, in epoch seconds.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tflaunch.inputs.times import clock_time
from tflaunch.protocol.errors import EXIT_INTERRUPTED, EXIT_STOPPED, ConnectError, UsageError
from tflaunch.protocol.wire import Message
from tflaunch.runs.record import LIVELY, RunInfo, is_run_id, without_values

ALIVE = ("starting", "running")

# What a host knows of a run, most first.
_RANKS = ("alive", "strays", "ended", "lost", "elsewhere")


STRAYS_SHOWN = 4


def was_restarted(host: str, booted: float) -> str:
    """The sentence for a host that started anew under a run."""
    return f"{host} was restarted (booted at {clock_time(booted)}): nothing of the run is alive there"


@dataclass(frozen=True)
class TaskState:
    """A task: waiting, staged (ready, at its gate), running, exited, lost (nobody saw its end), or unknown."""

    task: str
    host: str
    state: str
    attempts: int = 1
    pid: int | None = None
    since: float | None = None  # while it is staged or running
    code: int | None = None
    signal: int | None = None
    signal_name: str = ""
    stopped: bool = False  # it was asked to end
    seconds: float | None = None
    ended: float | None = None
    port: int | None = None
    gpus: tuple[str, ...] = ()  # UUIDs
    gpu_labels: tuple[str, ...] = ()  # the same as people see them: "3", or "3.1" for instance 1 of card 3
    log: str = ""  # its path on the host, of the last attempt
    log_bytes: int = 0  # of all attempts
    output: float | None = None  # when it last wrote something
    tail: str = ""  # the end of the log, if it failed and that was asked for
    before: tuple[
        Mapping[str, Any], ...
    ] = ()  # how earlier attempts ended: attempt, code, signal_name, seconds, ended

    @property
    def exit_code(self) -> int | None:
        """As a shell gives it; None while it has not exited."""
        if self.state != "exited":
            return None
        return self.code if self.code is not None else 128 + (self.signal or 0)

    @property
    def ends(self) -> tuple[TaskState, ...]:
        """Its earlier attempts, each as it was when it had ended."""
        names = ("code", "signal", "signal_name", "seconds", "ended", "stopped")
        return tuple(
            TaskState(
                self.task,
                self.host,
                "exited",
                int(end.get("attempt") or 0) + 1,
                **{name: end[name] for name in names if end.get(name) is not None},
            )
            for end in self.before
        )

    @property
    def failed(self) -> bool:
        """Whether it exited by itself, and not with 0."""
        return self.exit_code not in (None, 0) and not self.stopped


@dataclass(frozen=True)
class Share:
    """What a host has of a run: alive, ended (in order), lost, strays (the agent is dead, something else lives).

    Or it cannot be told: elsewhere (the directory is of a machine that was not asked), unreachable, unasked, gone.
    """

    host: str
    state: str
    directory: str = ""
    agent: int = 0
    strays: tuple[str, ...] = ()
    asked: str = (
        ""  # the host that told it; mostly the same: a hostfile elsewhere may call it by another name
    )
    restarted: float | None = None  # when that machine was, under the run: nothing of it has survived


@dataclass(frozen=True)
class RunState:
    """One run, on all hosts that are known of."""

    run_id: str
    shares: tuple[Share, ...] = ()
    tasks: tuple[TaskState, ...] = ()
    user: str = ""
    started: float | None = None
    ended: float | None = None
    launcher: str = ""  # ada@laptop
    command: tuple[str, ...] = ()
    detached: bool = False
    outcome: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    planned: float = 0.0  # by the launcher's clock; later where it was planned anew
    left_out: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # hosts that the plan goes without: why
    moved: str = ""  # the task that writes checkpoints is not where they may lie

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(share.host for share in self.shares)

    @property
    def state(self) -> str:
        """starting, running; succeeded, failed, stopped, ended; lost (it did not end in order), or unknown."""
        shares = {share.state for share in self.shares}
        if shares & {"alive", "strays"}:
            begun = any(task.state in ("running", "exited", "lost") for task in self.tasks)
            return "running" if begun else "starting"
        if self.outcome:
            return {"interrupted": "stopped"}.get(
                str(self.outcome.get("status")), str(self.outcome.get("status"))
            )
        if "ended" not in shares:
            return "unknown" if shares - {"lost", "gone"} or not shares else "lost"
        if self.first_failure:
            return "failed"
        ended = [task for task in self.tasks if task.state == "exited"]
        return "stopped" if ended and all(task.stopped for task in ended) else "ended"

    @property
    def troubles(self) -> list[str]:
        """What became of its part on hosts that it did not end on in order: a sentence for each, with the next step."""
        told = []
        for share in self.shares:
            if share.strays:
                left = ", ".join(share.strays[:STRAYS_SHOWN])
                more = len(share.strays) - STRAYS_SHOWN
                left += f" and {more} more" if more > 0 else ""
                told.append(
                    f"{share.host}: the agent is dead, and alive is {left}; end that: tflaunch stop {self.run_id}"
                )
            elif share.restarted:
                told.append(was_restarted(share.host, share.restarted))
        return told

    @property
    def alive(self) -> bool:
        """Whether anything of it is known to live."""
        return self.state in ALIVE

    @property
    def running(self) -> int:
        """How many of its tasks run."""
        return sum(task.state == "running" for task in self.tasks)

    @property
    def gpus(self) -> int:
        """How many GPUs its tasks were given, one after the other or side by side."""
        return len({uuid for task in self.tasks for uuid in task.gpus})

    @property
    def first_failure(self) -> TaskState | None:
        """The task that failed first."""
        failed = [task for task in self.tasks if task.failed]
        return min(failed, key=lambda task: task.ended or 0.0, default=None)


@dataclass(frozen=True)
class Listing:
    """All runs that were asked for, the newest first, and the hosts that could not be asked."""

    runs: tuple[RunState, ...]
    others: int  # runs that are not alive, if these were not asked for
    failures: Mapping[str, ConnectError]


def listing(
    replies: Mapping[str, Message],
    failures: Mapping[str, ConnectError],
    now: float,
    records: Iterable[RunInfo] = (),
) -> Listing:
    """What the hosts have told, and of hosts that told nothing what the records here know."""
    entries: dict[str, dict[str, dict[str, Any]]] = {}
    for name, said in replies.items():
        for entry in said["runs"]:
            if not is_run_id(str(entry["run"])):
                continue  # it would be an option, or two words, where ids are handed on
            entry["offset"], entry["asked"] = now - said["clock"], name
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
        elif info.status in LIVELY and not failures.keys().isdisjoint(info.hosts):
            silent = tuple(Share(host, "unreachable") for host in info.hosts if host in failures)
            runs[info.run_id] = RunState(info.run_id, silent, started=info.started, command=info.command)
    newest_first = sorted(runs.values(), key=lambda run: (-(run.started or 0.0), run.run_id))
    others = {run for said in replies.values() for run in said["others"]} - runs.keys()
    return Listing(tuple(newest_first), len(others), failures)


def _rank(entry: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """Whose word counts, when several hosts tell of one directory: lowest first.

    A host's own word about itself, unless its disk shows it the directory of another machine; then who knows more.
    """
    return entry["state"] == "elsewhere", entry["asked"] != entry["host"], _RANKS.index(entry["state"])


def _outcome(exit_code: int | None) -> Mapping[str, Any]:
    if exit_code is None:
        return {}
    stopped = exit_code in (EXIT_INTERRUPTED, EXIT_STOPPED)
    return {
        "status": "succeeded" if exit_code == 0 else "stopped" if stopped else "failed",
        "exit_code": exit_code,
    }


def _run(
    run: str, entries: Sequence[dict[str, Any]], asked: Iterable[str], failures: Mapping[str, ConnectError]
) -> RunState:
    # A run whose host was lost may have been planned anew, without that host.  What most hosts tell goes before what
    # one of them alone tells, of those on which it is alive, if it is.
    alive = [entry["about"] for entry in entries if entry["state"] == "alive"]
    abouts = alive or [entry["about"] for entry in entries]
    votes = Counter(json.dumps(about, sort_keys=True) for about in abouts)
    about = max(
        abouts, key=lambda told: (votes[json.dumps(told, sort_keys=True)], float(told.get("planned") or 0.0))
    )
    outcome: dict[str, Any] = next((entry["outcome"] for entry in entries if entry["outcome"]), {})
    shares = [
        Share(
            entry["host"],
            entry["state"],
            entry["directory"],
            entry["agent"],
            tuple(entry["strays"]),
            entry["asked"],
            entry["restarted"] + entry["offset"] if entry.get("restarted") else None,
        )
        for entry in entries
    ]
    tasks = [_task(told, entry["host"], entry["offset"]) for entry in entries for told in entry["tasks"]]
    found = {share.host for share in shares}
    for host in map(str, about.get("hosts") or ()):
        if host not in found:
            state = "unreachable" if host in failures else "gone" if host in asked else "unasked"
            shares.append(Share(host, state))
    planned = about.get("tasks")
    planned = {str(task): str(host) for task, host in planned.items()} if isinstance(planned, dict) else {}
    tasks = [task for task in tasks if planned.get(task.task, task.host) == task.host]
    told_of = {task.task for task in tasks}
    tasks += [TaskState(task, host, "unknown") for task, host in planned.items() if task not in told_of]
    ends = [entry["ended"] + entry["offset"] for entry in entries if entry["ended"]]
    return RunState(
        run_id=run,
        shares=tuple(sorted(shares, key=lambda share: _natural(share.host))),
        tasks=tuple(sorted(tasks, key=lambda task: _natural(task.task))),
        user=next((entry["user"] for entry in entries if entry["user"]), ""),
        planned=float(about.get("planned") or 0.0),
        started=min((each["started"] + each["offset"] for each in entries if each["started"]), default=None),
        ended=max(ends) if len(ends) == len(entries) else None,
        launcher=str(about.get("launcher") or ""),
        command=without_values([str(word) for word in about.get("command") or ()]),
        detached=bool(about.get("detached")),
        outcome=outcome,
        left_out=about.get("left_out") or {},
        moved=str(about.get("moved") or ""),
    )


def _task(told: Mapping[str, Any], host: str, offset: float) -> TaskState:
    names = {each.name for each in dataclasses.fields(TaskState)}
    fields = {name: value for name, value in told.items() if name in names and value is not None}
    for name in ("since", "ended", "output"):
        if name in fields:
            fields[name] += offset
    for name in ("gpus", "gpu_labels"):
        fields[name] = tuple(fields.get(name, ()))
    fields["before"] = tuple(
        {**end, "ended": (end["ended"] or 0.0) + offset} for end in fields.get("before", ())
    )
    return TaskState(**{**fields, "host": host})


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which worker/2 comes before worker/10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]+)", name)]


def chosen(run: str | None, found: Sequence[RunState]) -> RunState:
    """The run that is meant: by its id or how that begins, without one the only one alive. Raises UsageError."""
    fitting = [each for each in found if (each.alive if run is None else each.run_id.startswith(run))]
    if exact := [each for each in fitting if each.run_id == run]:
        return exact[0]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(each.run_id for each in fitting[:8])
    if run is None and fitting:
        raise UsageError(f"{len(fitting)} runs are alive: {names}", "say which one is meant")
    if run is None:
        raise UsageError(
            "no run is alive on these hosts", "name one: tflaunch ps -a lists those that have ended"
        )
    if fitting:
        raise UsageError(f"{run} fits {len(fitting)} runs: {names}", "write more of the id")
    alive = ", ".join(each.run_id for each in found if each.alive)
    raise UsageError(
        f"these hosts know no run {run}",
        f"alive is: {alive}" if alive else "tflaunch ps -a lists those there are",
    )


def missing_from(run: RunState, failures: Mapping[str, ConnectError]) -> dict[str, ConnectError]:
    """Those hosts of `failures` that may have a part of this run."""
    sure = run.launcher and not any(share.state == "unasked" for share in run.shares)
    return {host: error for host, error in failures.items() if host in run.hosts or not sure}


def data(run: RunState) -> dict[str, Any]:
    """It, as what JSON can hold."""
    first = run.first_failure
    told = dataclasses.asdict(run)
    for task, state in zip(told["tasks"], run.tasks, strict=True):
        task.update(exit_code=state.exit_code, failed=state.failed)
    told.update(
        state=run.state, alive=run.alive, running=run.running, first_failure=first.task if first else None
    )
    told["hosts"] = told.pop("shares")
    return told
