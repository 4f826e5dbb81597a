"""Tasks that are bound to CPUs: the agent as it is shipped, with real processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_over_pipes import Host, failure, running, shell, task

SHOWS = (
    "import json, os, sys; print(json.dumps(sorted(os.sched_getaffinity(0))), file=open(sys.argv[1], 'a'))"
)
CPUS = sorted(os.sched_getaffinity(0))

needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU: nothing can be bound")


def showing(place: Path, number: int = 0, **fields: Any) -> dict[str, Any]:
    """A task that writes which CPUs it may use."""
    return task(sys.executable, "-c", SHOWS, str(place / f"cpus{number}"), id=f"worker/{number}", **fields)


def shown(place: Path, number: int = 0) -> list[list[int]]:
    return [json.loads(line) for line in (place / f"cpus{number}").read_text().splitlines()]


@needs_two
def test_each_task_runs_on_its_cpus_and_the_agent_on_all(every_host: Host, tmp_path: Path) -> None:
    channel = every_host.open("start")
    agent = channel.wait("hello")["pid"]
    every_host.watch(agent)
    first, last = CPUS[0], CPUS[-1]
    tasks = [
        showing(tmp_path, 0, cpus=str(first)),
        showing(tmp_path, 1, cpus=str(last)),
        showing(tmp_path, 2),
        # With a setup, a login shell starts the program.
        showing(tmp_path, 3, cpus=f"{first}-{first},4000", setup=["true"]),
    ]
    running(channel, *tasks)
    channel.gather("exit", len(tasks))
    assert [shown(tmp_path, number) for number in range(4)] == [[[first]], [[last]], [CPUS], [[first]]]
    assert sorted(os.sched_getaffinity(agent)) == CPUS


@needs_two
def test_a_task_that_starts_again_is_bound_again(host: Host, tmp_path: Path) -> None:
    channel = host.open("start")
    host.watch(channel.wait("hello")["pid"])
    running(channel, showing(tmp_path, cpus=str(CPUS[0])))
    channel.wait("exit")
    channel.send("restart", tasks={"worker/0": 1})
    assert channel.wait("exit")["code"] == 0
    assert shown(tmp_path) == [CPUS[:1]] * 2


def test_a_host_without_numactl_is_told(host: Host) -> None:
    channel = host.open("start")
    host.watch(channel.wait("hello")["pid"])
    channel.send("probe", lease=False, ports=None, count=1)
    channel.wait("facts")
    fields: dict[str, Any] = {"code": None, "ports": [], "gpus": [], "door": False, "attempt": 0}
    nowhere = shell("true", env={"PATH": "/nowhere"}, numactl="--interleave=0")
    channel.send("stage", tasks=[nowhere], **fields)
    reason, _ = failure(channel)
    assert reason == "--memory-policy: numactl is not on this host: install it"


def test_cpus_that_are_not_there_any_more_are_told(host: Host) -> None:
    channel = host.open("start")
    host.watch(channel.wait("hello")["pid"])
    channel.send("probe", lease=False, ports=None, count=1)
    channel.wait("facts")
    fields: dict[str, Any] = {"code": None, "ports": [], "gpus": [], "door": False, "attempt": 0}
    channel.send("stage", tasks=[shell("true", cpus="4000-4001")], **fields)
    reason, _ = failure(channel)
    assert reason == "worker/0 cannot start: none of the CPUs that it is bound to may be used here any more"
