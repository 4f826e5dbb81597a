"""Faults at random: each schedule follows from its seed, and is played on a bed of its own.

    TFLAUNCH_SCHEDULES=100 .venv/bin/python -m pytest -n 2 tests/faults/test_schedules.py
    TFLAUNCH_SEED=17 TFLAUNCH_SCHEDULES=1 .venv/bin/python -m pytest -n 0 tests/faults/test_schedules.py
    TFLAUNCH_SCHEDULE='run on 2 hosts: run+1.0 agent-hung host2' .venv/bin/python -m pytest -n 0 ...

A failure prints the last of these, with what was played: leave out one part after the other until it does not fail.
"""

from __future__ import annotations

import os

import pytest

from tests.faults import FULL, Trial
from tests.faults.schedules.play import Play
from tests.faults.schedules.schedule import Schedule
from tests.faults.schedules.verdict import Verdict

SEED = int(os.environ.get("TFLAUNCH_SEED", "1"))
COUNT = int(os.environ.get("TFLAUNCH_SCHEDULES", "100" if FULL else "10"))
GIVEN = os.environ.get("TFLAUNCH_SCHEDULE")  # in the words of a schedule
# Each has shown a defect, which is mended.
FOUND = {
    "no-log": "detached on 2 hosts: run+1.6 disk-read-only host1",
    "stopped": "detached on 3 hosts: run+1.1 rebooted host1; run+2.2 stop",
}


def schedules() -> dict[str, Schedule]:
    """What is played, by its name."""
    if GIVEN:
        return {"given": Schedule.parse(GIVEN)}
    seeds = {str(seed): Schedule.of(seed) for seed in range(SEED, SEED + COUNT)}
    found = {} if "TFLAUNCH_SCHEDULES" in os.environ else FOUND
    return {**seeds, **{name: Schedule.parse(line) for name, line in found.items()}}


SCHEDULES = schedules()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.fault(
    "100 schedules of one to three faults at random, on two or three hosts, before and while the tasks run",
    "what the rows above say of each",
    "what the rows above say of each",
)
def test_schedule(trial: Trial, schedule: Schedule) -> None:
    print(schedule.command)
    play = Play(trial, schedule)
    try:
        play.carry_out()
        Verdict(play).give()
    except AssertionError:
        for host in play.hosts:  # nobody has to wait for what is left on it
            host.halt()
        raise


@pytest.mark.parametrize("seed", range(50))
def test_a_schedule_is_what_its_line_says(seed: int) -> None:
    schedule = Schedule.of(seed)
    assert Schedule.parse(str(schedule)) == schedule
