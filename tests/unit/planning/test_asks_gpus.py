"""Whether a run asks a host's driver at all, and what is said of one that is sick."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.planned import asked, facts, plan
from tflaunch.gpu_probe import CRASHED, HANGS, NOT_ASKED, SLOW
from tflaunch.hosts import Host
from tflaunch.planning.gpu_words import advice
from tflaunch.planning.usable_hosts import asks_gpus
from tflaunch.protocol.job import JobSpec, Role

PROGRAM = ("train.py",)


@pytest.mark.parametrize(
    ("roles", "gpus", "asks"),
    [
        ({}, "auto", True),
        ({}, 0, False),
        ({}, (), False),
        ({}, (1,), True),
        ({"worker": Role(gpus=0)}, "auto", False),
        ({"worker": Role(gpus=0)}, 2, False),
        ({"worker": Role(gpus=0), "chief": Role(count=1)}, "auto", False),
        ({"worker": Role(gpus=0), "chief": Role(count=1, hosts="g2")}, "auto", False),
        ({"worker": Role(gpus=0), "chief": Role(count=1, gpus=1)}, "auto", True),
        ({"worker": Role(gpus=0), "chief": Role(count=1, gpus=0)}, "auto", False),
        ({"worker": Role(gpus=0), "evaluator": Role(count=1)}, "auto", False),
        ({"worker": Role(gpus=0), "evaluator": Role(count=1, gpus=1)}, "auto", True),
        ({"worker": Role(gpus=0), "ps": Role(count=1, gpus=1)}, "auto", True),
        ({"worker": Role(count=0), "ps": Role(count=1)}, "auto", False),
        ({"worker": Role(gpus="all")}, "auto", True),
    ],
)
def test_only_a_run_that_can_use_gpus_asks_for_them(roles: dict[str, Role], gpus: Any, asks: bool) -> None:
    assert asks_gpus(JobSpec(PROGRAM, roles=roles), Host("g1", gpus=gpus)) is asks


@pytest.mark.parametrize(
    "said", [HANGS, CRASHED, SLOW, NOT_ASKED, "RM has detected an NVML/RM version mismatch."]
)
def test_every_sickness_has_its_advice(said: str) -> None:
    way = advice(f"NVML: nvmlInit {said}")
    assert way
    (note,) = plan(asked(PROGRAM), facts("g1", gpu_note=f"NVML: nvmlInit {said}")).notes
    assert note == f"g1: no GPUs can be seen: NVML: nvmlInit {said}; on g1, {way}"
