"""NaN losses: those that go on are told once, those of a first step are not."""

from __future__ import annotations

import json

from tests.unit.diagnosis.gpu_facts import Looks
from tflaunch.diagnosis.nan_loss import NanLoss

LINE = "step 120 loss: nan"


def grow(run: Looks, looks: int, *tasks: str, lines: int = 1, begun: int = 0) -> list[str]:
    said = []
    for number in range(looks):
        run.sign("nan", begun + (number + 1) * lines, LINE if not number else "step 121 loss: nan", *tasks)
        said += run.on(5)
    return said


def test_a_loss_that_stays_nan_is_told_once_with_its_first_line() -> None:
    run = Looks(NanLoss, stop_on_nan=False)
    run.on(30)
    assert grow(run, 2, "worker/1") == []
    (text,) = grow(run, 2, "worker/1", begun=2)
    assert text.startswith("worker/1 on gpu01: the loss is NaN in the last 3 lines that tell it, ")
    assert repr(LINE) in text
    assert "the mean of an empty last batch is NaN: batch(N, drop_remainder=True)" in text
    assert grow(run, 5, begun=10) == []  # the others join
    assert [*run.rule.holds()] == [text]
    assert run.stops == []


def test_many_lines_in_two_looks() -> None:
    assert len(grow(Looks(NanLoss), 2, lines=10)) == 1


def test_nan_in_the_first_step_only() -> None:
    run = Looks(NanLoss, stop_on_nan=True)
    assert grow(run, 1) == []
    assert run.on(300) == []
    assert run.stops == []


def test_a_number_between_them() -> None:
    run = Looks(NanLoss, stop_on_nan=True)
    for number in range(1, 40):
        run.sign("nan", number, LINE)
        run.sign("loss", number, "step 7 loss: 0.3")
        assert run.on(5) == []
    assert run.stops == []


def test_a_number_afterwards() -> None:
    run = Looks(NanLoss)
    assert len(grow(run, 3)) == 1
    run.sign("loss", 1, "step 130 loss: 0.2")
    assert run.on(5) == ["the loss of worker/0, worker/1 is a number again"]
    assert not [*run.rule.holds()]


def test_stop_on_nan() -> None:
    run = Looks(NanLoss, stop_on_nan=True)
    grow(run, 3, "worker/0")
    stop = run.stops[0]
    assert (stop.tasks, stop.exit_code) == (("worker/0",), 1)
    assert stop.reason.endswith("(--stop-on-nan)")


def test_a_new_log_begins_anew() -> None:
    run = Looks(NanLoss)
    grow(run, 2, lines=5)
    run.sign("nan", 1, LINE)
    assert run.on(50) == []


def test_memory() -> None:
    run = Looks(NanLoss)
    grow(run, 3)
    other = Looks(NanLoss)
    other.rule.resume(json.loads(json.dumps(run.rule.memory())))
    assert [*other.rule.holds()] == [*run.rule.holds()]
    other.sign("nan", 9, LINE)
    assert other.on(20) == []
