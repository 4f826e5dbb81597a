"""`--require-gpu`: a plan without GPUs is refused with numbers, and with a next step that leads out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.planned import asked, facts, some_gpus
from tflaunch.hosts import Host, Hostfile
from tflaunch.planning.inventory import HostFacts
from tflaunch.planning.plan import plan_cluster
from tflaunch.planning.required_gpus import check_required
from tflaunch.protocol.errors import PlanError


def refused(*there: HostFacts, gpus: Any = "auto", **job: Any) -> tuple[str, str]:
    inventory = {each.host: each for each in there}
    hostfile = Hostfile("hosts.yaml", tuple(Host(name, gpus=gpus) for name in inventory))
    plan = plan_cluster(asked(**job), hostfile, inventory, {name: name for name in inventory}, "run")
    with pytest.raises(PlanError) as error:
        check_required(plan, inventory)
    assert error.value.exit_code == 65
    return error.value.message, error.value.hint


def test_hosts_without_gpus() -> None:
    message, hint = refused(facts("cpu01"), facts("cpu02"))
    assert message == "--require-gpu: no task gets a GPU: cpu01: 0 GPUs, cpu02: 0 GPUs"
    assert re.search("name hosts that have GPUs, or leave --require-gpu out", hint)


def test_a_driver_that_does_not_answer() -> None:
    message, hint = refused(facts("gpu01", gpu_note="NVML: Driver Not Loaded"))
    assert message.endswith("gpu01: 0 GPUs (NVML: Driver Not Loaded)")
    assert hint.startswith("mend the driver there")


def test_gpus_that_nobody_asks_for() -> None:
    message, hint = refused(facts("gpu01", some_gpus("gpu01", 2)), gpus_per_worker=0, workers=1)
    assert message.endswith("gpu01: 2 GPUs")
    assert "--gpus-per-worker 1" in hint
    assert "no `gpus: 0`" in refused(facts("gpu01", some_gpus("gpu01", 2)), gpus=0)[1]


def test_workers_that_have_gpus() -> None:
    inventory = {"gpu01": facts("gpu01", some_gpus("gpu01", 2))}
    hostfile = Hostfile("hosts.yaml", (Host("gpu01"),))
    check_required(plan_cluster(asked(), hostfile, inventory, {"gpu01": ""}, "run"), inventory)
