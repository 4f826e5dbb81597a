"""Connections that are lost at the very end, when the work is done and only lines are on their way."""

from __future__ import annotations

import time

import pytest

from tests.faults import NOTHING, Trial


@pytest.mark.fault(
    "connections reset again and again in a flood of output", "every byte of it comes", NOTHING
)
def test_resets_in_a_flood(trial: Trial) -> None:
    trial.up(2)
    trial.start(lines=200_000, rate=0)
    trial.now()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for host in trial.hosts:
            host.reset_connections()
        time.sleep(0.3)
    trial.check(0, all_lines=200_000)
