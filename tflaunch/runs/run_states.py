"""The state of a run, of its tasks, and of its part on each host; and which run a user means.  Pure.

All times are of this machine's clock, in epoch seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tflaunch.hosts import Hostfile, fold
from tflaunch.protocol.errors import ConnectError, UsageError
from tflaunch.protocol.job import CHIEF, WORKER
from tflaunch.runs.progress import Progress, progress_of
from tflaunch.runs.run_ids import name_of
from tflaunch.text.times import clock_time

ALIVE = ("waiting", "starting", "running")


STRAYS_SHOWN = 4
LEASE_S = 60.0  # of a run whose agents do not say how long theirs is


def restarted_text(host: str, booted: float) -> str:
    """The sentence for a host that was restarted while the run was alive."""
    return f"{host} was restarted (booted at {clock_time(booted)}): nothing of the run is alive there"


@dataclass(frozen=True)
class TaskState:
    """A task: waiting, staged (ready, at its gate), running, exited, lost (no agent saw its end), or unknown."""

    task: str
    host: str
    state: str
    attempts: int = 1
    pid: int | None = None
    since: float | None = None  # while it is staged or running
    code: int | None = None
    signal: int | None = None
    signal_name: str = ""
    stopped: bool = False  # its agent ended it
    seconds: float | None = None
    ended: float | None = None
    port: int | None = None
    gpus: tuple[str, ...] = ()  # UUIDs
    gpu_labels: tuple[str, ...] = ()  # the same as people see them: "3", or "3.1" for MIG instance 1 of GPU 3
    cpus: str = ""  # that it is bound to: "0-7,64-71"
    log: str = ""  # its path on the host, of the last attempt
    log_bytes: int = 0  # of all attempts
    output: float | None = None  # when it last wrote something
    tail: str = ""  # the end of the log of a task that runs, or failed, if that was asked for
    facts: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # of its end (protocol.messages.EXIT_FACTS)
    # How earlier attempts ended: attempt, code, signal_name, seconds, ended.
    before: tuple[Mapping[str, Any], ...] = ()

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell gives it; None while the task has not exited."""
        if self.state != "exited":
            return None
        return self.code if self.code is not None else 128 + (self.signal or 0)

    @property
    def progress(self) -> Progress | None:
        """How far it is, while it runs, as its log tells."""
        return progress_of(self.tail) if self.state == "running" else None

    @property
    def ends(self) -> tuple[TaskState, ...]:
        """The earlier attempts, each with the state in which it ended."""
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
        """Whether the task exited by itself, and not with 0."""
        return self.exit_code not in (None, 0) and not self.stopped


@dataclass(frozen=True)
class HostShare:
    """A host's part of a run: alive, ended (in order), lost, strays (the agent is dead, but processes of the run live).

    If the state is not known: elsewhere (its directory is of a machine that was not asked), unreachable,
    unasked, gone (the host knows nothing of the run).
    """

    host: str
    state: str
    directory: str = ""
    agent: int = 0  # its pid
    strays: tuple[str, ...] = ()
    asked: str = ""  # the host that answered; mostly `host`, but another hostfile may call it by another name
    restarted: float | None = None  # when the machine rebooted, which ended its part
    why: str = ""  # what ended its part, if that was not the end of the run


@dataclass(frozen=True)
class RunState:
    """One run, on all its hosts as far as they are known."""

    run_id: str
    shares: tuple[HostShare, ...] = ()
    tasks: tuple[TaskState, ...] = ()
    user: str = ""
    started: float | None = None
    ended: float | None = None
    launcher: str = ""  # ada@laptop
    command: tuple[str, ...] = ()
    detached: bool = False
    outcome: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    planned: float = 0.0  # when the plan was made, by the launcher's clock
    left_out: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # host -> why the plan goes without it
    holds: Mapping[str, Any] | None = None  # what the watchdog says of it now: age_s, sentences, blind
    lease_s: float = LEASE_S
    stopped_by: str = ""  # who has asked for its end, if that is not its user
    moved: str = ""  # a sentence, if the task that writes checkpoints is on another host than before

    @property
    def progress(self) -> Progress | None:
        """How far the first task is whose log tells it, a chief's before a worker's."""
        order = {CHIEF: 0, "master": 0, WORKER: 1}
        ranked = sorted(self.tasks, key=lambda task: order.get(task.task.partition("/")[0], 2))
        return next((each for task in ranked if (each := task.progress) is not None), None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of its hosts."""
        return tuple(share.host for share in self.shares)

    @property
    def state(self) -> str:
        """waiting (for slots), starting, running; succeeded, failed, stopped, ended; lost (no order), unknown."""
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
        if self.detached and any(share.why for share in self.shares):
            return "lost"  # nobody was there any more to decide how it ends
        ended = [task for task in self.tasks if task.state == "exited"]
        return "stopped" if ended and all(task.stopped for task in ended) else "ended"

    @property
    def troubles(self) -> list[str]:
        """A sentence, with the next step, for each host on which its part did not end in order."""
        found = []
        for share in self.shares:
            if share.strays:
                left = ", ".join(share.strays[:STRAYS_SHOWN])
                more = len(share.strays) - STRAYS_SHOWN
                left += f" and {more} more" if more > 0 else ""
                found.append(
                    f"{share.host}: the agent is dead, but these live on: {left}; to end them: "
                    f"tflaunch stop {self.run_id}"
                )
            elif share.restarted:
                found.append(restarted_text(share.host, share.restarted))
            elif share.why:
                found.append(f"{share.host}: {share.why}")
        return found

    @property
    def alive(self) -> bool:
        """Whether something of the run is known to live."""
        return self.state in ALIVE

    @property
    def running(self) -> int:
        """How many of its tasks are running."""
        return sum(task.state == "running" for task in self.tasks)

    @property
    def over(self) -> int:
        """How many of its tasks have ended."""
        return sum(task.state == "exited" for task in self.tasks)

    @property
    def seconds(self) -> float | None:
        """How long it took, if it is over and that is known."""
        if self.started is None or self.ended is None or self.alive:
            return None
        return max(0.0, self.ended - self.started)

    @property
    def gpus(self) -> int:
        """How many different GPUs its tasks were given."""
        return len({uuid for task in self.tasks for uuid in task.gpus})

    @property
    def first_failure(self) -> TaskState | None:
        """The task that failed first."""
        failed = [task for task in self.tasks if task.failed]
        return min(failed, key=lambda task: task.ended or 0.0, default=None)


def pick_run(run: str | None, found: Sequence[RunState], asked: Hostfile | None = None) -> RunState:
    """The run that the user means: by its id, its name or the beginning of it; `found` begins with the newest.

    With None, the only run that is alive or, if none is, the newest.  Of several runs with that name, the one that is
    alive or, if none is, the newest.  Raises UsageError, which names the hosts that were `asked`.
    """
    if run is None:
        return _pick_newest(found, asked)
    if exact := [each for each in found if each.run_id == run]:
        return exact[0]
    fitting = [each for each in found if each.run_id.startswith(run)]
    if named := [each for each in fitting if name_of(each.run_id) == run]:
        alive = [each for each in named if each.alive]
        if len(alive) < 2:
            return (alive or named)[0]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(each.run_id for each in fitting[:8])
    if fitting:
        raise UsageError(f"{len(fitting)} runs begin with {run}: {names}", "write more of the id")
    names = ", ".join(each.run_id for each in found if each.alive)
    raise UsageError(
        f"no run {run} is known on {_named(asked)}" if asked else f"these hosts know no run {run}",
        f"alive: {names}" if names else "tflaunch ps -a lists all that they know",
    )


def _named(asked: Hostfile) -> str:
    return f"{fold([host.name for host in asked.hosts])} ({asked.source})"


def _pick_newest(found: Sequence[RunState], asked: Hostfile | None) -> RunState:
    alive = [each for each in found if each.alive]
    if len(alive) > 1:
        names = ", ".join(each.run_id for each in alive[:8])
        raise UsageError(f"{len(alive)} runs are alive: {names}", "say which one you mean")
    if not found:
        where = _named(asked) if asked else "these hosts"
        raise UsageError(f"no run is alive on {where}", "tflaunch ps -a lists those that have ended, too")
    return (alive or found)[0]


def why_picked(run: RunState) -> str:
    """The sentence for a run that `pick_run` has picked though none was named."""
    return f"{run.run_id}: " + ("the only run alive" if run.alive else "the newest run; none is alive")


def failures_of(run: RunState, failures: Mapping[str, ConnectError]) -> dict[str, ConnectError]:
    """Those hosts of `failures` that may have a part of this run."""
    all_known = run.launcher and not any(share.state == "unasked" for share in run.shares)
    return {host: error for host, error in failures.items() if host in run.hosts or not all_known}


def run_data(run: RunState) -> dict[str, Any]:
    """The run as JSON can hold it."""
    first = run.first_failure
    data = dataclasses.asdict(run)
    for task, state in zip(data["tasks"], run.tasks, strict=True):
        progress = state.progress
        task.update(
            exit_code=state.exit_code,
            failed=state.failed,
            progress=None if progress is None else progress._asdict(),
        )
        if state.state == "running":
            task["tail"] = ""
    data.update(
        state=run.state, alive=run.alive, running=run.running, first_failure=first.task if first else None
    )
    data["hosts"] = data.pop("shares")
    return data
