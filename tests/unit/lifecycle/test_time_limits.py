"""The time limits of a run, from facts as the agents tell them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tflaunch.diagnosis.thresholds import Thresholds
from tflaunch.lifecycle.time_limits import Limits

TASKS = ("ps/0", "worker/0", "worker/1")
STILL = "CreateSession still waiting for response from worker: /job:ps/replica:0/task:0"


def look(**facts: Any) -> dict[str, Any]:
    seen = {"listens": True, "log_bytes": 100, "quiet_s": 1.0, "says": "step 7"}
    return {**seen, "processes": [[7, "python3", "S"]], "waits_in": "futex_do_wait", **facts}


def limits(**seconds: float) -> Limits:
    made = Limits(TASKS, **seconds)
    made.begin(1000.0)
    return made


def reason(made: Limits, now: float) -> str:
    limit = made.reached_limit(now)
    return limit.reason if limit else ""


def test_without_limits_nothing_is_ever_reached() -> None:
    made = limits()
    made.looked({task: look(listens=False, quiet_s=1e6) for task in TASKS}, 1e6)
    assert made.reached_limit(1e6) is None


def test_before_the_start_nothing_is_reached() -> None:
    assert Limits(TASKS, timeout_s=1.0, startup_s=1.0, stall_s=1.0).reached_limit(1e6) is None


def test_the_whole_run() -> None:
    made = limits(timeout_s=60.0)
    made.exited("worker/1")
    assert made.reached_limit(1059.0) is None
    assert made.reached_limit(1060.0)[:2] == ("the run has taken 60 s (--timeout)", ("ps/0", "worker/0"))


def test_a_run_that_is_planned_anew_began_before() -> None:
    made = Limits(TASKS, timeout_s=60.0, startup_s=30.0)
    made.begin(1050.0, 1000.0)
    made.looked({task: look(listens=False) for task in TASKS}, 1059.0)
    assert made.reached_limit(1059.0) is None, "its tasks have just begun"
    assert "(--timeout)" in reason(made, 1060.0)


def test_the_tasks_are_told_once_before_the_end() -> None:
    made = limits(timeout_s=60.0, warn_s=20.0)
    made.exited("ps/0")
    assert made.nears(1039.9) is None
    made.exited("worker/1")
    made.started("worker/1", 1039.95)
    assert made.nears(1040.5) == (19.5, ("worker/0", "worker/1"))
    assert made.nears(1041.0) is None
    assert limits(timeout_s=60.0).nears(1059.0) is None


def test_a_task_that_starts_after_the_warning_is_not_told() -> None:
    made = limits(timeout_s=60.0, warn_s=20.0)
    for task in TASKS[1:]:
        made.exited(task)
    made.started("worker/0", 1040.1)
    made.started("worker/1", 1039.0)
    made.exited("ps/0")
    assert made.nears(1045.0) == (15.0, ("worker/1",))


def test_where_no_task_ran_by_then_nobody_is_told() -> None:
    made = limits(timeout_s=60.0, warn_s=20.0)
    for task in TASKS:
        made.exited(task)
        made.started(task, 1041.0)
    assert made.nears(1042.0) is None
    anew = Limits(TASKS, timeout_s=60.0, warn_s=20.0)
    anew.begin(1050.0, 1000.0)
    assert anew.nears(1051.0) is None


def test_another_coordinator_knows_that_the_tasks_were_told() -> None:
    made, after, unwarned = (limits(timeout_s=60.0, warn_s=20.0) for _ in range(3))
    unwarned.resume(json.loads(json.dumps(made.memory())))
    assert made.nears(1040.0)
    after.resume(json.loads(json.dumps(made.memory())))
    assert after.nears(1041.0) is None
    assert unwarned.nears(1041.0)


def test_on_a_machine_that_has_just_booted_what_was_never_seen_is_not_fresh() -> None:
    made = Limits(TASKS, startup_s=5.0, stall_s=5.0)
    made.begin(1.0)  # seconds since the boot
    assert made.reached_limit(8.0) is None


def test_what_does_not_open_its_port_is_named() -> None:
    made = limits(startup_s=60.0)
    made.looked({"ps/0": look(), "worker/0": look(listens=False), "worker/1": look(listens=False)}, 1058.0)
    assert made.reached_limit(1059.0) is None
    assert made.reached_limit(1060.0)[:2] == (
        "worker/0, worker/1 have not opened their ports 60 s after the start (--startup-timeout)",
        ("worker/0", "worker/1"),
    )
    made.looked({"worker/0": look()}, 1061.0)
    assert made.reached_limit(1062.0)[:2] == (
        "worker/1 has not opened its port 60 s after the start (--startup-timeout)",
        ("worker/1",),
    )
    made.exited("worker/1")
    assert made.reached_limit(1063.0) is None
    made.looked({"ps/0": look(listens=False)}, 1064.0)
    assert made.reached_limit(1065.0) is None, "it was open once"
    made.started("worker/1", 1100.0)
    made.looked({"worker/1": look(listens=False)}, 1159.0)
    assert made.reached_limit(1159.0) is None
    assert "worker/1" in reason(made, 1160.0)


def test_a_task_without_a_port_is_up_when_it_says_something() -> None:
    made = Limits(["worker/0"], startup_s=60.0)
    made.begin(1000.0)
    made.looked({"worker/0": look(listens=None, log_bytes=0)}, 1059.0)
    assert made.reached_limit(1061.0) is not None
    made.looked({"worker/0": look(listens=None)}, 1062.0)
    assert made.reached_limit(1062.0) is None


def test_what_was_seen_last_is_told() -> None:
    made = limits(timeout_s=10.0)
    made.looked({"ps/0": look(), "worker/0": look(processes=[[1, "sh", "R"]], waits_in="")}, 1009.0)
    limit = made.reached_limit(1010.0)
    assert limit is not None
    assert limit.states == ("state S, in futex_do_wait", "state R", "")


def test_many_are_named_in_short() -> None:
    made = Limits([f"worker/{number}" for number in range(20)], startup_s=10.0)
    made.begin(1000.0)
    made.looked({f"worker/{number}": look(listens=False) for number in range(20)}, 1010.0)
    assert reason(made, 1010.0).startswith("worker/0, worker/1, worker/2, worker/3 and 16 more have not")


def test_a_stall_is_the_silence_of_all() -> None:
    made = limits(stall_s=60.0)
    for now in range(1005, 1200, 5):  # the chief alone talks
        made.looked({"ps/0": look(quiet_s=now - 1000.0), "worker/0": look(quiet_s=50.0)}, float(now))
        made.looked({"worker/1": look(log_bytes=0, quiet_s=now - 1000.0, says="")}, float(now))
        assert made.reached_limit(float(now)) is None
    made.looked({task: look(quiet_s=60.0) for task in TASKS}, 1205.0)
    assert made.reached_limit(1205.0)[:2] == (
        "no task has written anything for 60 s (--stall-timeout)",
        TASKS,
    )


def test_tensorflows_line_about_waiting_is_no_output() -> None:
    made = limits(stall_s=60.0)
    for now in range(1005, 1060, 5):
        made.looked({task: look(quiet_s=2.0, says=STILL) for task in TASKS}, float(now))
        assert made.reached_limit(float(now)) is None
    made.looked({task: look(quiet_s=2.0, says=STILL) for task in TASKS}, 1060.0)
    assert "no task has written anything for 60 s" in reason(made, 1060.0)
    made.looked({"worker/0": look(quiet_s=1.0, says="step 1")}, 1061.0)
    assert made.reached_limit(1061.0) is None


@pytest.mark.parametrize("seconds", [{"stall_s": 60.0}, {"startup_s": 60.0}])
def test_of_a_host_that_is_not_heard_of_nothing_is_concluded(seconds: dict[str, float]) -> None:
    made = limits(**seconds)
    made.looked({task: look(listens=False, quiet_s=30.0) for task in TASKS}, 1030.0)
    assert made.reached_limit(1030.0 + Thresholds().fresh_s + 40.0) is None


def test_the_agents_are_asked_often_enough() -> None:
    assert limits().look_s == Thresholds.look_s
    assert limits(timeout_s=1.0).look_s == Thresholds.look_s
    assert limits(stall_s=8.0, startup_s=600.0).look_s == 2.0
    assert limits(stall_s=0.1).look_s == 0.25


GPUS = {"worker/0": ["GPU-a", "GPU-b"], "worker/1": ["GPU-c"]}


def used(**percent: int | None) -> dict[str, dict[str, Any]]:
    return {f"GPU-{name}": {"use": use} for name, use in percent.items()}


def idle_limits() -> Limits:
    made = Limits(TASKS, idle_s=100.0, gpus=GPUS)
    made.begin(1000.0)
    return made


def test_gpus_that_all_do_nothing() -> None:
    made = idle_limits()
    made.looked_at_gpus(TASKS, used(a=0, b=90, c=0), 1040.0)
    made.looked_at_gpus(TASKS, used(a=0, b=5, c=0), 1139.0)
    assert reason(made, 1139.9) == ""
    assert made.reached_limit(1140.0)[:2] == (
        "no GPU of the run has done anything for 100 s (--stop-idle)",
        ("worker/0", "worker/1"),
    )


def test_idle_gpus_that_were_not_looked_at_of_late_are_not_known_to_be_idle() -> None:
    made = idle_limits()
    made.looked_at_gpus(TASKS, used(a=0, b=0, c=0), 1010.0)
    assert reason(made, 1150.0) == ""
    made.looked_at_gpus(["worker/0"], used(a=0, b=0), 1150.0)
    assert reason(made, 1150.0) == "", "worker/1 may be busy"
    made.exited("worker/1")
    assert "(--stop-idle)" in reason(made, 1150.0)
    made.exited("worker/0")
    assert reason(made, 1150.0) == "", "ps/0 has no GPU"


def test_a_gpu_that_does_not_tell_its_use_counts_as_used() -> None:
    made = idle_limits()
    made.looked_at_gpus(TASKS, used(a=0, b=None, c=0), 1140.0)
    assert reason(made, 1140.0) == ""
    assert made.blind() == ["whether the run is idle (--stop-idle): a GPU of worker/0 does not tell its use"]
    made.exited("worker/0")
    assert made.blind() == []


def test_gpus_of_a_task_that_starts_again_begin_anew_and_the_next_coordinator_knows_it() -> None:
    made = idle_limits()
    made.started("worker/1", 1090.0)
    made.looked_at_gpus(TASKS, used(a=0, b=0, c=0), 1150.0)
    other = idle_limits()
    other.resume(json.loads(json.dumps(made.memory())))
    other.looked_at_gpus(TASKS, used(a=0, b=0, c=0), 1185.0)
    assert reason(other, 1189.0) == ""
    assert "(--stop-idle)" in reason(other, 1190.0)


def test_nvml_is_asked_often_enough() -> None:
    assert Limits(TASKS, idle_s=20.0).gpu_look_s == 5.0
    assert Limits(TASKS, idle_s=1800.0).gpu_look_s == Thresholds().gpu_look_s
