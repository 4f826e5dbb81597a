"""All runs that this machine has on record, each with how it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tflaunch.protocol.errors import UsageError
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import TaskExit, exits_from
from tflaunch.runs.hidden_values import without_values
from tflaunch.runs.record_files import (
    DAMAGE,
    SLOTS,
    is_locked,
    read_about,
    read_outcome,
    recorded_ids,
    sentence,
    state_root,
)

Status = Literal["running", "detached", "ended", "orphaned", "corrupt"]
MAY_BE_ALIVE = ("running", "detached", "orphaned")


@dataclass(frozen=True)
class RunInfo:
    """One line of the list of runs; of a corrupt record only its id, path and `problem` are known."""

    run_id: str
    status: Status
    path: Path
    started: float = 0.0  # epoch seconds
    command: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    exit_code: int | None = None  # once ended
    problem: str = ""  # why it cannot be read
    # Of a run on slots that is over; of any other its hosts tell more.
    on_slots: bool = False
    tasks: Mapping[TaskId, str] = field(default_factory=dict)  # task -> host
    exits: Mapping[TaskId, TaskExit] = field(default_factory=dict)
    outcome: Mapping[str, Any] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether it waits for slots, or its launcher was killed while it did."""
        return self.on_slots and not self.hosts and self.status in MAY_BE_ALIVE


def list_runs(root: Path | None = None) -> list[RunInfo]:
    """Return all runs on record, newest first, corrupt ones last; raises RecordError."""
    root = root or state_root()
    runs = [_info(root / run_id) for run_id in recorded_ids(root)]
    return sorted(runs, key=lambda run: (run.status == "corrupt", -run.started, run.run_id))


def newest_run() -> RunInfo:
    """Return the newest run on record that can be read; raises UsageError if there is none, RecordError."""
    found = next((each for each in list_runs() if each.status != "corrupt"), None)
    if found is None:
        raise UsageError("no run is on record here", "start one: tflaunch run HOSTS TRAINER.py")
    return found


def _info(path: Path) -> RunInfo:
    try:
        about = read_about(path)
        # The lock first: a launcher writes its outcome, then unlocks.
        locked = is_locked(path)
        outcome = read_outcome(path)
        without_launcher: Status = "detached" if about.get("detached") else "orphaned"
        hosts = about["hostfile"]["hosts"]
        on_slots = (path / SLOTS).exists() or any(host.get("slot") for host in hosts)
        status: Status = "running" if locked else without_launcher if outcome is None else "ended"
        return RunInfo(
            run_id=path.name,
            status=status,
            path=path,
            started=_time(about["started"]),
            command=without_values([str(word) for word in about["command"]]),
            hosts=tuple(str(host["name"]) for host in hosts),
            exit_code=int(outcome["exit_code"]) if outcome and not locked else None,
            on_slots=on_slots,
            tasks={
                TaskId.parse("{}/{}".format(*task["id"])): str(task["host"])
                for task in about["plan"]["tasks"]
            }
            if on_slots
            else {},
            exits=exits_from(outcome) if outcome and on_slots else {},
            outcome=outcome or {} if on_slots else {},
        )
    except OSError as error:
        return RunInfo(path.name, "corrupt", path, problem=sentence(error))
    except DAMAGE as error:
        return RunInfo(path.name, "corrupt", path, problem=f"{type(error).__name__}: {error}")


def _time(told: Any) -> float:
    """That time, in epoch seconds; raises ValueError, TypeError."""
    if not math.isfinite(time := float(told)):
        raise ValueError(f"{time} is no time")
    return time
