"""GPUs that wait for one another: told with the task that all wait for; healthy runs are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.diagnosis.gpu_facts import Looks
from tflaunch.diagnosis.gpu_waits import GpuWaits

SPIN = {"use": 100, "power": 91.0}  # an H100 in NCCL's loop
STACK = [
    {
        "pid": 4711,
        "name": "python3",
        "threads": [[4711, "python3", "S", "hrtimer_nanosleep", 3.0]],
        "stacks": [
            {
                "main": True,
                "frames": [["/usr/lib/python3.11/queue.py", 171, "get"], ["train.py", 26, "batches"]],
            }
        ],
        "why_none": "",
    }
]


def training(workers: int = 8, **settings: Any) -> Looks:
    run = Looks(GpuWaits, workers, **settings)
    assert run.on(200) == []
    return run


def stand_still(run: Looks, odd: str = "", **facts: Any) -> None:
    """From now on all spin but `odd`, and no bytes move."""
    run.see([task for task in run.tasks if task != odd], **SPIN)
    run.bytes_s = dict.fromkeys(run.tasks, 200)
    if odd:
        run.see([odd], **{"use": 0, "power": 70.0, **facts})
        run.cores[odd] = 0.01


def test_the_task_that_all_wait_for_is_named_with_its_place() -> None:
    run = training()
    stand_still(run, "worker/2")
    assert run.on(85, quiet=True) == []
    run.on(10, quiet=True)
    assert [(host, fields["tasks"]) for host, fields in run.asked] == [("gpu02", ["worker/2"])]
    run.rule.answered("gpu02", "inspected", {"tasks": {"worker/2": STACK}}, run.now)
    (text,) = run.on(5, quiet=True)
    assert text == (
        "worker/2 on gpu02: its GPU has been idle for 96 s and it uses no CPU either, while the GPUs of the 7 others"
        " are busy at 91 W of 700 W: they wait for it in a collective; it is at train.py:26 in batches()"
    )
    assert run.on(300, quiet=True) == []
    assert [*run.rule.holds()] == [text]
    assert set(run.rule.explains(run.now)) == set(run.tasks)
    run.see(run.tasks)
    run.bytes_s = dict.fromkeys(run.tasks, 10_000_000)
    assert run.on(10) == ["worker/2 goes on"]
    assert [*run.rule.holds()] == []


def test_without_an_answer_it_is_told_all_the_same() -> None:
    run = training(2)
    stand_still(run, "worker/1")
    (text,) = run.on(130, quiet=True)
    assert text.endswith("while worker/0's is busy at 91 W of 700 W: it waits for it in a collective")


def test_all_spin_alike_after_they_worked() -> None:
    run = training(4)
    stand_still(run)
    (text,) = run.on(130, quiet=True)
    assert text.startswith(
        "the GPUs of worker/0, worker/1, worker/2, worker/3 have been busy at 91 W of 700 W for "
    )
    assert "has each the same number of steps, with the same" in text


def test_a_task_that_computes_on_its_cpu_may_write_a_checkpoint() -> None:
    run = training(4)
    stand_still(run, "worker/0")
    run.cores["worker/0"] = 1.0
    assert run.on(500, quiet=True) == []
    (text,) = run.on(150, quiet=True)
    assert "idle for 621 s and it computes on its CPU, or writes" in text


def test_bytes_of_the_fabric_count() -> None:
    run = training(2)
    run.fabrics = {"gpu00": [0, 0], "gpu01": [0, 0]}
    stand_still(run, "worker/1")
    for _ in range(60):
        run.fabrics = {host: [both[0] + (1 << 30), both[1]] for host, both in run.fabrics.items() if both}
        assert run.on(5, quiet=True) == []


def healthy_full_power(run: Looks) -> None:
    run.bytes_s = dict.fromkeys(run.tasks, 0)  # NVLink: nothing is seen of it


def healthy_small_model(run: Looks) -> None:
    run.rule = GpuWaits(run.watched)  # it never took more
    healthy_full_power(run)
    run.see(run.tasks, **SPIN)


def healthy_bound_by_data(run: Looks) -> None:
    healthy_full_power(run)
    run.see(run.tasks, use=12, power=110.0)


def healthy_compile(run: Looks) -> None:
    healthy_full_power(run)
    run.see(run.tasks, use=0, power=70.0)


def healthy_evaluation(run: Looks) -> None:
    stand_still(run)
    run.see(run.tasks[:1], use=60, power=350.0)


def healthy_two_idle(run: Looks) -> None:
    stand_still(run, "worker/1")
    run.see(run.tasks[2:3], use=0, power=70.0)


@pytest.mark.parametrize(
    "healthy",
    [
        healthy_full_power,
        healthy_small_model,
        healthy_bound_by_data,
        healthy_compile,
        healthy_evaluation,
        healthy_two_idle,
    ],
)
def test_healthy_runs(healthy: Any) -> None:
    run = training(4)
    healthy(run)
    assert run.on(1200, quiet=True) == []
    assert run.asked == []


def test_a_task_that_writes_lines() -> None:
    run = training(4)
    stand_still(run, "worker/1")
    assert run.on(1200) == []


@pytest.mark.parametrize("missing", ["power", "use", "flows", "one gpu", "old"])
def test_without_a_signal_it_is_silent_and_says_so(missing: str) -> None:
    run = training(1 if missing == "one gpu" else 4)
    stand_still(run, "worker/0" if missing != "one gpu" else "")
    if missing in ("power", "use"):
        run.see(["worker/1"], **{**SPIN, missing: None})
    elif missing == "flows":
        run.looks["worker/1"]["flows"] = None
    elif missing == "old":
        del run.gpus["worker/1"]
    assert run.on(1200, quiet=True) == []
    blind = [*run.rule.blind()]
    if missing in ("power", "use"):
        assert blind == [
            "whether GPUs wait for one another: of worker/1, the GPU does not tell its use or power (MIG, or an error)"
        ]
    elif missing == "flows":
        assert blind == [
            "whether GPUs wait for one another: of worker/1, the kernel does not tell how many bytes its "
            "connections carry"
        ]


def test_memory() -> None:
    run = training(4)
    stand_still(run, "worker/1")
    assert len(run.on(130, quiet=True)) == 1
    other = Looks(GpuWaits, 4)
    other.rule.resume(json.loads(json.dumps(run.rule.memory())))
    stand_still(other, "worker/1")
    assert [*other.rule.holds()] == [*run.rule.holds()]
    other.now = run.now
    assert other.on(300, quiet=True) == [], "it is told already, and goes on"
    other.see(["worker/1"], use=98, power=600.0)
    assert other.on(30, quiet=True) == ["worker/1 goes on"]


def test_what_was_told_is_over_when_bytes_move_again_under_the_next_watchdog() -> None:
    run = training(4)
    stand_still(run, "worker/1")
    run.on(130, quiet=True)
    other = Looks(GpuWaits, 4)
    other.rule.resume(json.loads(json.dumps(run.rule.memory())))
    other.now = run.now
    assert other.on(30) == ["worker/1 goes on"]
