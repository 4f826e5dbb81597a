"""How many tasks a job has, and the sentences when they do not fit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.planned import PROGRAM, asked, facts, plan, some_gpus
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.plan import plan_cluster
from tflaunch.protocol.errors import EXIT_USAGE, PlanError, UsageError


@pytest.mark.parametrize(
    ("job", "hosts", "slots", "expected"),
    [
        # job, GPUs of each host, slots of each host -> chief, ps, workers
        ({}, [0, 0, 0], {}, (0, 1, 3)),
        ({}, [4, 4], {}, (0, 2, 8)),
        ({}, [4, 0], {}, (0, 1, 4)),
        ({}, [1], {}, (0, 1, 1)),
        ({"gpus_per_worker": 2}, [4, 3], {}, (0, 1, 3)),
        ({"gpus_per_worker": 0}, [4, 4], {}, (0, 1, 2)),
        ({}, [0, 0], {0: 4, 1: 2}, (0, 1, 6)),
        ({}, [4, 4], {0: 1}, (0, 1, 5)),
        ({"workers": 5}, [0, 0], {}, (0, 1, 5)),
        ({"workers": 3, "ps": 2}, [4, 4], {}, (0, 2, 3)),
        ({"ps": 0}, [0, 0], {}, (0, 0, 2)),
        ({"chief": True, "ps": 0}, [0, 0, 0], {}, (1, 0, 2)),
        ({"chief": True}, [0], {}, (1, 1, 1)),
        ({"chief": True}, [4], {}, (1, 1, 3)),
        ({"chief": True, "workers": 0, "ps": 0}, [1], {}, (1, 0, 0)),
        ({"chief": True, "workers": 0}, [0], {}, (1, 1, 0)),
        ({"workers": 0, "ps": 2, "done": "never"}, [0], {}, (0, 2, 0)),
    ],
)
def test_counts(
    job: dict[str, Any], hosts: list[int], slots: dict[int, int], expected: tuple[int, int, int]
) -> None:
    members = [facts(f"g{i}", some_gpus(f"g{i}", count)) for i, count in enumerate(hosts, 1)]
    settings = {f"g{i + 1}": {"slots": count} for i, count in slots.items()}
    jobs = Counter(task.id.job for task in plan(asked(PROGRAM, **job), *members, hosts=settings).tasks)
    assert (jobs["chief"], jobs["ps"], jobs["worker"]) == expected


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"workers": 0, "ps": 0}, "--workers 0 --ps 0 leaves nothing to run"),
        ({"workers": 0}, "there is no worker whose end would end the run"),
        ({"workers": 0, "ps": 2, "done": "chief"}, "there is no worker whose end would end the run"),
        ({"workers": -1}, "--workers -1: a count cannot be negative"),
        ({"ps": -2}, "--ps -2: a count cannot be negative"),
        ({"gpus_per_worker": -1}, "--gpus-per-worker -1: a count cannot be negative"),
        ({"worker_hosts": "nowhere"}, "nowhere"),
    ],
)
def test_counts_that_make_no_job(job: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan(asked(PROGRAM, **job), facts("g1"))
    assert message in raised.value.message
    assert raised.value.exit_code == EXIT_USAGE


def test_no_hosts_with_facts() -> None:
    hostfile = Hostfile("hosts.yaml", (Host(name="g1"), Host(name="g2")))
    with pytest.raises(PlanError, match=r"hosts\.yaml: none of 2 hosts can take a task"):
        plan_cluster(asked(PROGRAM), hostfile, {}, {}, "run")
