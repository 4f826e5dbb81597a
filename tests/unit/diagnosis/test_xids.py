"""Errors of GPUs that their driver tells of while a run goes on; tests/unit/ends has those at a task's end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.diagnosis.slow_runs import asynchronous, one
from tflaunch.diagnosis.rule import Place, Watched
from tflaunch.diagnosis.xids import Xids

WATCHED = Watched({"worker/1": Place("gpu02", "10.0.0.2", 2222)}, gpus={"worker/1": ["GPU-3"]})
LINK = ["GPU-3", 3, 74, 12.0]


def hear(rule: Xids, *xids: list[Any], host: str = "gpu02") -> list[str]:
    rule.looked(host, {"tasks": {}, "xids": [*xids]}, 1000.0)
    return [each.text for each in rule.sentences(1000.0, frozenset())]


def test_a_sick_card_is_told_once_for_each_error() -> None:
    rule = Xids(WATCHED)
    text = one(hear(rule, LINK))
    assert text == (
        "GPU 3 of gpu02, which worker/1 has, has told of Xid 74: an error of an NVLink; the card, or what it is"
        " plugged into, is at fault, not the program; `nvidia-smi -q -i 3` there tells more, and --exclude gpu02:3"
        " keeps the next run off it"
    )
    assert hear(rule, LINK, LINK) == []
    assert "Xid 79: it has fallen off the bus" in one(hear(rule, LINK, ["GPU-3", 3, 79, 1.0]))
    assert len([*rule.holds()]) == 2


@pytest.mark.parametrize("number", [13, 31, 43, 45, 69, 9999])
def test_what_a_program_does_or_nobody_knows_is_left_to_the_end_of_its_task(number: int) -> None:
    assert hear(Xids(WATCHED), ["GPU-3", 3, number, 1.0]) == []


def test_gpus_of_others_and_hosts_that_lie() -> None:
    assert hear(Xids(WATCHED), ["GPU-other", 3, 79, 1.0]) == []
    assert hear(Xids(WATCHED), LINK, host="gpu01") == []


def test_the_next_watchdog_does_not_say_it_again() -> None:
    old, new = Xids(WATCHED), Xids(WATCHED)
    hear(old, LINK)
    new.resume(json.loads(json.dumps(old.memory())))
    assert hear(new, LINK) == []
    assert [*new.holds()] == [*old.holds()]


def test_a_run_without_gpus_has_no_such_rule() -> None:
    assert "xids" not in asynchronous().watchdog.rules
    assert "xids" in asynchronous(gpus={"worker/1": ["GPU-3"]}).watchdog.rules
