"""Runs as hosts tell of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.support.agent_over_pipes import Host
from tflaunch.protocol.wire import Message
from tflaunch.runs.listing import Listing
from tflaunch.runs.run_states import RunState

NOW = 1_800_000_000.0
ARRIVED: Mapping[str, float] = defaultdict(lambda: NOW)  # all hosts have answered by now


def entry(run: str, host: str, state: str = "alive", **fields: Any) -> dict[str, Any]:
    return {
        **{
            "run": run,
            "host": host,
            "state": state,
            "directory": f"/runs/{run}/{host}",
            "agent": 7,
            "user": "ada",
        },
        **{"started": NOW - 3600, "ended": None, "about": {}, "outcome": {}, "tasks": [], "strays": []},
        **fields,
    }


def worker(index: int, state: str = "running", **fields: Any) -> dict[str, Any]:
    return {"task": f"worker/{index}", "state": state, "attempts": 1, "log": "/log", "log_bytes": 3, **fields}


def reply(
    *entries: dict[str, Any], clock: float = NOW, machine: str = "m", others: tuple[str, ...] = ()
) -> Message:
    told = {"machine": [machine, "boot"], "place": "1:2", "clock": clock, "runs": list(entries)}
    return Message("runs", {**told, "others": list(others)})


def one(found: Listing) -> RunState:
    (run,) = found.runs
    return run


def told(host: Host, **asked: Any) -> dict[str, dict[str, Any]]:
    visitor = host.open("visit", run="", host="")
    answer = visitor.ask("list", **{"all": True, **asked}, answer="runs")
    return {each["run"]: each for each in answer["runs"]}
