"""Which layouts are tried, how their rates are read from logs, which of them go on, and what is predicted."""

from __future__ import annotations

import pytest

from tflaunch.protocol.errors import UsageError
from tflaunch.tuning.halving import Round, fastest, is_hopeless, rounds
from tflaunch.tuning.layouts import Axes, TaskLayout, doubling, numbers
from tflaunch.tuning.prediction import MeasuredLayout, predicted
from tflaunch.tuning.step_rates import StepRates
from tflaunch.tuning.tried import Tried, Try


def test_layouts_are_all_combinations() -> None:
    layouts = Axes(ps=(1, 2), workers=(4,), place=("spread", "pack"), threads=(8,)).layouts()
    assert [(each.ps, each.workers, each.place) for each in layouts] == [
        (1, 4, "spread"),
        (1, 4, "pack"),
        (2, 4, "spread"),
        (2, 4, "pack"),
    ]
    words = "--ps 1 --workers 4 --place pack --env OMP_NUM_THREADS=8 --env TF_NUM_INTRAOP_THREADS=8"
    assert layouts[1].options == tuple(words.split())
    assert str(layouts[1]) == "ps 1, workers 4, place pack, threads 8"
    assert Axes().layouts() == (TaskLayout(),)
    assert str(TaskLayout(ps_hosts="gpu[1-2]")) == "ps-hosts 'gpu[1-2]'"
    with pytest.raises(UsageError, match="9 ps x 8 workers are 72 layouts"):
        Axes(ps=range(9), workers=range(8)).layouts()


def test_numbers() -> None:
    assert numbers("--ps", "1, 2,2,4", 0) == (1, 2, 4)
    for text in ("1,x", "-1", "1,,2", "0", "1.5"):
        with pytest.raises(UsageError, match="not numbers from 1 on"):
            numbers("--workers", text, 1)
    for text in ("9" * 5000, "1," + "9" * 5000, "٣"):
        with pytest.raises(UsageError, match="not numbers from 0 on") as raised:
            numbers("--ps", text, 0)
        assert len(str(raised.value)) < 100
    assert (doubling(1), doubling(6), doubling(8)) == ((1,), (1, 2, 4), (1, 2, 4, 8))


def test_the_faster_half_goes_on_with_twice_as_many_steps() -> None:
    assert rounds(6, 200) == (Round(6, 50), Round(3, 100), Round(2, 200))
    assert (rounds(1, 200), rounds(2, 200)) == ((Round(1, 200),), (Round(2, 200),))
    assert [each.layouts for each in rounds(64, 3)] == [64, 32, 16, 8, 4, 2]
    assert min(each.steps for each in rounds(64, 3)) == 1
    assert fastest({"a": 1.0, "b": None, "c": 3.0, "d": 2.0}, 2) == ["c", "d"]


def test_who_is_far_behind_is_known_once_those_that_go_on_are() -> None:
    assert not is_hopeless(1.0, [50.0], 2)
    assert is_hopeless(1.0, [50.0, 10.0], 2)
    assert not is_hopeless(6.0, [50.0, 10.0], 2)


def test_what_two_layouts_say_of_a_third() -> None:
    def truth(workers: int, ps: int) -> float:
        return 1 / (0.2 / workers + 0.1 / ps)

    known = [MeasuredLayout(workers, ps, truth(workers, ps)) for workers, ps in ((4, 1), (4, 2))]
    assert predicted(known, 4, 4) == pytest.approx(truth(4, 4))
    assert predicted(known, 8, 2) == pytest.approx(truth(8, 2))
    assert predicted(known[:1], 4, 2) is None
    # In the same proportion, they do not tell the one from the other.
    assert predicted([MeasuredLayout(2, 1, 5.0), MeasuredLayout(4, 2, 9.0)], 4, 1) is None
    assert predicted([], 1, 1) is None
    # More ps that slow it down: their share of a step is none, not less than that.
    assert predicted([MeasuredLayout(2, 1, 10.0), MeasuredLayout(2, 2, 9.0)], 4, 2) == pytest.approx(
        19.0, rel=0.02
    )
    assert predicted([MeasuredLayout(2, 0, 10.0)], 4, 0) == pytest.approx(20.0)


def steps(rates: StepRates, task: str, step_s: float, until: float, *, begin: float = 0.0) -> None:
    """Lines of that task, one for every second step."""
    step, at = round(begin / step_s), begin
    while at <= until:
        assert rates.line(task, at, f"loss 0.5 step {step} ")
        step, at = step + 2, at + 2 * step_s


def test_own_steps_are_added_from_when_all_train() -> None:
    rates = StepRates(("worker/0", "worker/1"))
    assert not rates.line("worker/0", 0.0, "compiling")
    rates.line("worker/0", 0.0, "step 1")
    rates.line("worker/0", 1.0, "step 1000")  # alone: the other is not there yet
    steps(rates, "worker/1", 0.1, 12.0, begin=2.0)
    assert rates.rate() is None  # worker/0 may have stopped
    for number in range(11):
        rates.line("worker/0", 2.0 + number, f"step {1020 + 20 * number}")
    found = rates.rate()
    assert found is not None
    assert found.rate == pytest.approx(30.0)
    assert (found.low, found.high) == (pytest.approx(30.0), pytest.approx(30.0))
    assert (found.seconds, found.shared, found.silent) == (pytest.approx(10.0), False, ())


def test_a_rate_that_changes_has_a_spread() -> None:
    rates = StepRates(("worker/0",))
    for at, step in ((0, 0), (2, 20), (4, 40), (6, 60), (8, 70)):
        rates.line("worker/0", float(at), f"step {step}")
    found = rates.rate()
    assert found is not None
    assert (found.rate, found.low, found.high) == pytest.approx((70 / 8, 5.0, 10.0))


def test_a_global_step_is_counted_once() -> None:
    rates = StepRates(("worker/0", "worker/1"))
    for number in range(11):
        rates.line(f"worker/{number % 2}", number / 10, f"INFO global_step = {100 + number}")
    found = rates.rate()
    assert found is not None
    assert (found.rate, found.shared) == (pytest.approx(10.0), True)
    told = StepRates(("worker/0", "worker/1"), shared=True)
    told.line("worker/0", 0.0, "step 1")
    told.line("worker/1", 1.0, "step 11")
    found = told.rate()
    assert found is not None
    assert (found.rate, found.shared) == (pytest.approx(10.0), True)


def test_tasks_that_print_no_steps_are_named_after_a_while() -> None:
    rates = StepRates(("chief/0", "worker/0"), patience_s=2.0)
    steps(rates, "chief/0", 0.5, 1.9)
    assert rates.seen
    assert rates.rate() is None
    steps(rates, "chief/0", 0.5, 9.0, begin=2.0)
    found = rates.rate()
    assert found is not None
    assert (found.rate, found.silent) == (pytest.approx(2.0), ("worker/0",))


@pytest.mark.parametrize("first", [0, 1])
def test_steps_that_begin_anew_in_each_epoch_are_counted_on(first: int) -> None:
    rates = StepRates(("worker/0",))
    for number in range(101):
        assert rates.line("worker/0", number / 10, f"step {first + number % 20}")
    found = rates.rate()
    assert found is not None
    assert (found.rate, found.low, found.high) == pytest.approx((10.0, 10.0, 10.0))
    assert (found.steps, found.seconds) == pytest.approx((100.0, 10.0))


def test_the_time_between_epochs_counts() -> None:
    rates = StepRates(("worker/0",))
    for at, step in ((0, 500), (1, 510), (5, 0), (6, 10), (7, 20), (8, 5), (9, 15)):
        rates.line("worker/0", float(at), f"step {step}")
    found = rates.rate()
    assert found is not None
    assert found.steps == pytest.approx(10 + 1 + 20 + 5 + 10)
    assert found.seconds == pytest.approx(9.0)


def test_the_best_and_who_is_as_good() -> None:
    one, two, four = layouts = Axes(ps=(1, 2, 4)).layouts()
    tried = Tried(layouts, {})

    def add(layout: TaskLayout, number: int, rate: float) -> None:
        tasks = {"ps": layout.ps or 0, "worker": 2}
        tried.add(layout, Try(number, "r", rate, low=rate - 1, high=rate + 1, tasks=tasks))

    add(one, 0, 10.0)
    add(two, 0, 18.0)
    add(four, 0, 30.0)
    assert tried.predicted(four) == pytest.approx(30.0, rel=0.01)  # 1/10, 1/18: 0.011 + 0.089/ps
    add(two, 1, 20.0)
    add(four, 1, 21.0)
    assert tried.ranked() == [four, two, one]
    assert tried.level() == [four, two]
    assert Tried(layouts, {}).ranked() == []
