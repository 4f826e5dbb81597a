"""How tasks and runs end, and how that is said in JSON; shipped to hosts."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Union

from tflaunch.protocol.errors import EXIT_RECLAIMED
from tflaunch.protocol.job import TaskId

if TYPE_CHECKING:
    from typing import Literal


@dataclass(frozen=True)
class TaskExit:
    """How a task ended: exactly one of `code` and `signal` is set."""

    task: TaskId
    host: str
    code: int | None
    signal: int | None
    seconds: float  # from its start to its end
    tail: bytes = b""  # the end of its log, at most 64 KiB
    stopped: bool = False  # tflaunch had stopped it
    signal_name: str = ""  # as the host calls it: SIGKILL
    attempt: int = 0  # how often it had been restarted
    log_bytes: int = 0  # the size of that attempt's log; 0 where it is not known
    # What the host knows about it (protocol.messages.EXIT_FACTS); {} from an older agent.
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def exit_code(self) -> int:
        """What a shell would show: the code, or 128 + the signal."""
        return self.code if self.code is not None else 128 + (self.signal or 0)


@dataclass(frozen=True)
class HostLost:
    """The launcher, or coordinator, cannot reach a host's agent any more, or the agent has ended the run itself."""

    host: str
    reason: str
    reclaimed: bool = False  # the engine says that the slot is over
    runs_on_s: float = 0.0  # for how long its tasks may still run: nobody has ended them for certain


@dataclass(frozen=True)
class TimedOut:
    """The run has reached a time limit of the user's; `tasks` are the ones that have reached it."""

    reason: str
    tasks: tuple[TaskId, ...]
    states: tuple[str, ...] = ()  # of each, as last seen: `state S, in futex_do_wait`


@dataclass(frozen=True)
class Reclaimed:
    """The engine takes back the slot of that host; `reason` is in the words of the engine, or of the slot holder."""

    reason: str
    host: str

    exit_code = EXIT_RECLAIMED


@dataclass(frozen=True)
class EndedByRule:
    """A rule of the watchdog has ended the run (--require-gpu, --stop-on-nan), because of these tasks."""

    reason: str
    tasks: tuple[TaskId, ...]
    exit_code: int


Failure = Union[
    TaskExit, HostLost, TimedOut, Reclaimed, EndedByRule
]  # why a run ends before its work is done


@dataclass(frozen=True)
class GpuLeft:
    """A GPU of the run that was not free after the run's end."""

    text: str  # `GPU 0 is still in use by pid 4711 of ada, python train.py`
    own: bool  # the run itself still uses it


@dataclass(frozen=True)
class Outcome:
    """How a run ended: what the report shows."""

    run_id: str
    status: Literal["succeeded", "failed", "interrupted"]
    exit_code: int
    seconds: float
    exits: Mapping[TaskId, TaskExit] = field(default_factory=dict)
    first_failure: Failure | None = None  # the first that tflaunch saw
    unverified: Mapping[str, str] = field(default_factory=dict)  # host -> why tflaunch could not check it
    survivors: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # host -> "pid 12 python (D)", still alive
    record: str = ""  # the launcher's directory of this run: logs/worker-0.log, run.json
    host_logs: Mapping[TaskId, str] = field(default_factory=dict)  # path of the full log on its host
    restarts: int = 0  # of single tasks, or of the whole cluster
    gpus: Mapping[str, tuple[GpuLeft, ...]] = field(default_factory=dict)  # host -> GPUs that are not free


def exit_code_of(outcome: Outcome) -> str:
    """Whose exit code the run's is: the task that failed first, `worker/1`, else `tflaunch`."""
    first = outcome.first_failure
    own = outcome.status == "failed" and isinstance(first, TaskExit) and first.exit_code == outcome.exit_code
    return str(first.task) if own and isinstance(first, TaskExit) else "tflaunch"


def signal_name(exit: TaskExit) -> str:
    """The signal that ended a task, as its host calls it: SIGKILL; "" where it ended by itself."""
    return exit.signal_name if exit.signal is None or exit.signal_name else signal_named(exit.signal)


def signal_named(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def how(exit: TaskExit) -> str:
    """How a task ended, as a predicate: `was killed by SIGKILL`, `exited with code 1`."""
    if name := signal_name(exit):
        return f"was killed by {name}"
    return f"exited with code {exit.code}"


def exit_data(exit: TaskExit) -> dict[str, Any]:
    """How a task ended, as JSON can hold it; without the end of its log."""
    return {
        "task": str(exit.task),
        "host": exit.host,
        "code": exit.code,
        "signal": signal_name(exit) or None,
        "seconds": exit.seconds,
        "stopped": exit.stopped,
        "attempt": exit.attempt,
    }


def exits_from(outcome: Mapping[str, Any]) -> Mapping[TaskId, TaskExit]:
    """The exits of tasks in what `outcome_data` has made, as far as it says."""
    found = {}
    for told in outcome.get("exits", ()):
        task, name = TaskId.parse(told["task"]), told["signal"]
        number = getattr(signal, name, 0) if name else None
        exit = TaskExit(task, told["host"], told["code"], number, told["seconds"], stopped=told["stopped"])
        found[task] = replace(exit, signal_name=name or "", attempt=told.get("attempt", 0))
    return found


def gpus_left(told: Iterable[Mapping[str, Any]]) -> tuple[GpuLeft, ...]:
    """The GPUs that an agent has reported as not free."""
    return tuple(GpuLeft(gpu["text"], gpu["own"]) for gpu in told)


def failure_data(first: Failure | None) -> dict[str, Any] | None:
    """The first failure, as JSON can hold it."""
    if first is None:
        return None
    if isinstance(first, HostLost):
        return {"host": first.host, "reason": first.reason}
    if isinstance(first, TaskExit):
        return exit_data(first)
    if isinstance(first, TimedOut):
        return {"reason": first.reason, "tasks": [*map(str, first.tasks)], "states": [*first.states]}
    # An older tflaunch wants `tasks` and `states`: it takes this for a time limit, and shows the reason, which will do.
    data = {"reason": first.reason, "tasks": [], "states": [], "exit_code": first.exit_code}
    if isinstance(first, Reclaimed):
        return {**data, "host": first.host}
    return {**data, "tasks": [*map(str, first.tasks)]}


def outcome_data(outcome: Outcome) -> dict[str, Any]:
    """How a run ended, as JSON can hold it: the fields of Outcome, without `run_id` and `record`."""
    return {
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "seconds": outcome.seconds,
        "exits": [exit_data(exit) for exit in outcome.exits.values()],
        "first_failure": failure_data(outcome.first_failure),
        "unverified": dict(outcome.unverified),
        "survivors": {host: list(left) for host, left in outcome.survivors.items()},
        "gpus": {host: [vars(gpu) for gpu in gpus] for host, gpus in outcome.gpus.items()},
        "host_logs": {str(task): path for task, path in outcome.host_logs.items()},
        "restarts": outcome.restarts,
    }


def outcome_from(run_id: str, data: Mapping[str, Any], exits: Mapping[TaskId, TaskExit]) -> Outcome:
    """The Outcome of what `outcome_data` has made; `exits` are the tasks' last exits, with the ends of their logs."""
    first = data["first_failure"]
    failure: Failure | None = None
    if first and "task" in first:
        failure = exits.get(TaskId.parse(first["task"]))
    elif first and "tasks" in first:
        tasks = tuple(map(TaskId.parse, first["tasks"]))
        if "host" in first:
            failure = Reclaimed(first["reason"], first["host"])
        elif "exit_code" in first:
            failure = EndedByRule(first["reason"], tasks, first["exit_code"])
        else:
            failure = TimedOut(first["reason"], tasks, tuple(first["states"]))
    elif first:
        failure = HostLost(first["host"], first["reason"])
    return Outcome(
        run_id,
        data["status"],
        data["exit_code"],
        data["seconds"],
        exits,
        failure,
        data["unverified"],
        {host: tuple(left) for host, left in data["survivors"].items()},
        restarts=data.get("restarts", 0),
        gpus={host: gpus_left(gpus) for host, gpus in data.get("gpus", {}).items()},
    )
