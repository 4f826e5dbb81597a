"""Who keeps the others waiting: sentences of the whole watchdog, from facts as real runs have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.standstill import (
    BY_PY_FUNCTION,
    FOR_CHECKPOINT,
    IN_COORDINATOR,
    IN_FUNCTION,
    IN_GETADDRINFO,
    IN_ITERATOR,
    IN_JOIN,
    IN_POOL,
    IN_QUEUE,
    IN_SESSION,
    IN_SUBPROCESS,
    IN_URLOPEN,
    LIBRARY,
    WAITS_FOR_CHIEF,
    Scene,
    at,
)
from tflaunch.lifecycle.watchdog import Watchdog
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import TaskExit

TRAIN = at(40, "train", *IN_FUNCTION)
WORKERS = ("worker/0", "worker/1", "worker/2")


def mirrored() -> Scene:
    """Three workers of MultiWorkerMirroredStrategy, two of which wait in an all-reduce."""
    scene = Scene(*WORKERS)
    assert scene.on(120) == []
    scene.stands("worker/0", TRAIN)
    scene.stands("worker/2", TRAIN)
    return scene


def one(said: list[str]) -> str:
    [text] = said
    return text


# ---- the odd one out


def test_an_input_that_sleeps_in_the_generator_of_one_worker() -> None:
    scene = mirrored()
    scene.stands(
        "worker/1",
        at(39, "train", *IN_ITERATOR),
        [["trainer.py", 26, "batches"], *BY_PY_FUNCTION],
        channels=("futex_do_wait", "hrtimer_nanosleep", "futex_do_wait"),
    )
    text = one(scene.on(100))
    assert text.startswith("worker/1 on b has done nothing for ")
    assert "it is at trainer.py:26 in batches() and sleeps" in text
    assert text.endswith("; worker/0, worker/2 wait for it at trainer.py:40 in train()")
    assert scene.inspections == [(task, True) for task in ("worker/0", "worker/1", "worker/2")]


@pytest.mark.parametrize(
    ("inner", "channel", "words"),
    [
        ([], "hrtimer_nanosleep", "sleeps"),
        ([], "locks_lock_inode_wait", "waits for a file lock"),
        ([], "wait_for_partner", "opens a FIFO"),
        ([], "anon_pipe_read", "reads from a pipe or its stdin"),
        ([], "wait_woken", "waits for data from a connection"),
        ([], "futex_do_wait", "waits for a lock; threads of its own wait for each other"),
        (IN_URLOPEN, "wait_woken", "waits for data from a connection"),
        (
            IN_GETADDRINFO,
            "poll_schedule_timeout.constprop.0",
            "looks up a host name (DNS); ",
        ),
        (IN_QUEUE, "futex_do_wait", "waits for a queue; threads of its own"),
        (IN_SUBPROCESS, "do_wait", "waits for a process that it has started"),
    ],
)
def test_what_the_main_thread_waits_for(inner: list[Any], channel: str, words: str) -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load", *inner), channels=(channel,))
    text = one(scene.on(100))
    assert f"it is at trainer.py:7 in load() and {words}" in text
    assert "worker/0, worker/2 wait for it" in text


def test_a_question_ends_the_sentence() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load"), channels=("wait_for_partner",))
    text = one(scene.on(100))
    assert text.endswith(
        "; worker/0, worker/2 wait for it at trainer.py:40 in train(); who should open its other end?"
    )


def test_a_collective_that_one_worker_does_not_call() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(52, "evaluate", *IN_FUNCTION))
    text = one(scene.on(100))
    assert "worker/1 is at trainer.py:52 in evaluate()" in text
    assert "worker/0, worker/2 are at trainer.py:40 in train()" in text
    assert "the same number of steps" in text


def test_all_in_the_same_all_reduce() -> None:
    scene = mirrored()
    scene.stands("worker/1", TRAIN)
    text = one(scene.on(100))
    assert text.startswith("all 3 tasks (worker/0, worker/1, worker/2) have done nothing for ")
    assert "at trainer.py:40 in train()" in text
    assert "the same number of steps" in text


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (
            [["/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2501, "all_reduce"]],
            "a collective",
        ),
        (
            [["/v/lib/python3.11/site-packages/torch/autograd/graph.py", 825, "_engine_run_backward"]],
            "a collective",
        ),
        ([["/v/lib/python3.11/site-packages/jax/_src/array.py", 631, "_value"]], "a collective"),
        (
            [["/v/lib/python3.11/site-packages/torch/distributed/rendezvous.py", 185, "_create_c10d_store"]],
            "still wait to meet each other",
        ),
        (
            [["/v/lib/python3.11/site-packages/jax/_src/distributed.py", 170, "initialize"]],
            "; has each a rank of its own, and all the same address of rank 0, as tflaunch tells them?",
        ),
    ],
)
def test_all_in_a_collective_of_another_framework(inner: list[Any], words: str) -> None:
    scene = Scene(*WORKERS)
    for task in WORKERS:
        scene.stands(task, at(40, "train", *inner))
    text = one(scene.on(100))
    assert words in text
    assert "at trainer.py:40 in train()" in text
    assert "deadlock" not in text


def test_one_has_ended_and_the_others_wait_since_later() -> None:
    scene = Scene(*WORKERS)
    scene.end("worker/1")
    assert scene.on(120) == []
    scene.stands("worker/0", TRAIN)
    scene.stands("worker/2", TRAIN)
    text = one(scene.on(100))
    assert (
        "worker/1 has ended with 0 and no longer takes part: give all tasks the same number of steps" in text
    )


def test_sync_replicas_with_more_replicas_than_workers() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    scene.stands("ps/0", at(6, "main", *IN_JOIN))
    for task in ("worker/0", "worker/1"):
        scene.stands(task, at(23, "train", *IN_SESSION))
    text = one(scene.on(100))
    assert "wait in session.run at trainer.py:23 in train()" in text
    assert "replicas_to_aggregate" in text


def test_a_chief_that_never_initialises() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    scene.stands("ps/0", at(6, "main", *IN_JOIN))
    scene.stands("worker/0", at(18, "train"), channels=("hrtimer_nanosleep",))
    scene.stands("worker/1", at(19, "train", *WAITS_FOR_CHIEF), channels=("hrtimer_nanosleep",))
    text = one(scene.on(100))
    assert "worker/0 on b has done nothing" in text
    assert "it is at trainer.py:18 in train() and sleeps; worker/1 waits for it" in text


def test_the_generator_of_a_parameter_server_strategy() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1", "chief/0")
    for task in ("ps/0", "worker/0", "worker/1"):
        scene.stands(task, at(6, "main", *IN_JOIN))
    generator = [["trainer.py", 12, "batches"], *BY_PY_FUNCTION]
    channels = ("futex_do_wait", "hrtimer_nanosleep", "hrtimer_nanosleep")
    scene.stands("chief/0", at(22, "train", *IN_COORDINATOR), generator, generator, channels=channels)
    text = one(scene.on(100))
    assert "chief/0 on d has done nothing" in text
    assert "it is at trainer.py:12 in batches() and sleeps" in text


def test_an_asynchronous_worker_in_dns_while_its_peers_train() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    scene.on(60)
    scene.stands("worker/1", at(7, "load", *IN_GETADDRINFO), channels=("poll_schedule_timeout",))
    text = one(scene.on(100))
    assert text.startswith("worker/1 on c has done nothing for 6")
    assert "while its peers go on: it is at trainer.py:7 in load() and looks up a host name (DNS)" in text
    assert scene.inspections == [("worker/1", True)], "the others are left alone"


def test_a_child_that_was_forked_after_tensorflow_had_started() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(12, "train", *IN_POOL))
    child = {
        **{"pid": 4800, "name": "python3", "threads": [[4800, "python3", "S", "futex_do_wait", 0.0]]},
        **{"stacks": [{"main": True, "frames": at(9, "load", *IN_FUNCTION)}], "why_none": ""},
    }
    scene.children["worker/1"] = [child]
    text = one(scene.on(100))
    assert "waits for a process of multiprocessing" in text
    assert 'set_start_method("spawn")' in text


def test_a_loop_in_c_that_computes_while_all_others_wait() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load"), channels=("",))
    scene.cores["worker/1"] = 1.0
    said = scene.on(110)
    assert said == [], "it may be an evaluation"
    text = one(scene.on(40))
    assert text.startswith("worker/1 on b has used 1.0 cores and moved no byte for 12")
    assert "it is at trainer.py:7 in load() and computes; worker/0, worker/2 wait for it" in text


def test_native_code_that_keeps_pythons_lock_while_all_others_wait() -> None:
    """No stack tells its line; that it has the lock tells that it is no step of TensorFlow."""
    scene = mirrored()
    scene.stands("worker/1", channels=("",))
    scene.native["worker/1"] = scene.cores["worker/1"] = 1.0
    assert scene.on(110) == []
    text = one(scene.on(40))
    assert (
        "it runs in native code, 100 % of a core, and keeps Python's lock (the GIL); worker/0, worker/2"
        in text
    )


def test_a_task_that_goes_on_writing_the_same_line() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "connect"), channels=("hrtimer_nanosleep",))
    scene.logs_s["worker/1"], scene.says["worker/1"] = 6.0, "still trying to connect to db"
    assert scene.on(100) == []
    text = one(scene.on(40))
    assert 'it goes on writing "still trying to connect to db"' in text


def test_tasks_that_all_wait_for_each_others_files() -> None:
    scene = Scene(*WORKERS)
    for task in WORKERS:
        scene.stands(task, at(8, "barrier"), channels=("hrtimer_nanosleep",))
    for task in WORKERS:
        scene.turns_s[task], scene.bytes_s[task] = 1.0, 0.0
    assert scene.on(115) == []
    text = one(scene.on(60))
    assert "they are at trainer.py:8 in barrier() and sleep" in text
    assert "Each host has its own disks" in text


def test_a_worker_of_two_that_polls_and_writes_lines() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "connect"), channels=("hrtimer_nanosleep",))
    scene.turns_s["worker/1"], scene.logs_s["worker/1"] = 1.0, 6.0
    assert len(scene.on(140)) == 1


def test_an_evaluator_that_waits_for_a_directory_that_nobody_shares() -> None:
    scene = Scene("chief/0", "worker/0", "evaluator/0")
    scene.stands("evaluator/0", at(6, "evaluate", *FOR_CHECKPOINT), channels=("hrtimer_nanosleep",))
    assert scene.on(300) == [], "the chief has written nothing"
    scene.looks["chief/0"]["io"] += 9000
    text = one(scene.on(100))
    assert text.startswith("evaluator/0 on c has waited ")
    assert (
        "for a checkpoint, at trainer.py:6 in evaluate(), though chief/0 on a has written files since" in text
    )
    assert scene.inspections == [("evaluator/0", True)]
    scene.cores["evaluator/0"] = 0.9
    assert scene.on(30) == ["evaluator/0 on c goes on"]
    scene.still("evaluator/0")
    scene.looks["chief/0"]["io"] += 9000
    assert scene.on(300) == [], "it has evaluated: it sees the checkpoints"


def test_an_evaluator_whose_chief_writes_all_the_time() -> None:
    scene = Scene("chief/0", "worker/0", "evaluator/0")
    scene.stands("evaluator/0", at(6, "evaluate", *FOR_CHECKPOINT), channels=("hrtimer_nanosleep",))
    scene.io_s["chief/0"] = 400.0  # a small checkpoint at each look
    assert "though chief/0 on a has written files since" in one(scene.on(200))


@pytest.mark.parametrize("sees", [False, True])
def test_an_evaluator_that_saw_nothing_until_the_run_was_over(sees: bool) -> None:
    """The run is too short for the rule: the evaluator is stopped a minute after the chief's last checkpoint."""
    scene = Scene("chief/0", "worker/0", "evaluator/0")
    scene.stands("evaluator/0", at(6, "evaluate", *FOR_CHECKPOINT), channels=("hrtimer_nanosleep",))
    assert scene.on(40) == []
    scene.looks["chief/0"]["io"] += 9000
    assert scene.on(10) == []
    for task in ("chief/0", "worker/0"):
        assert scene.watchdog.happened(TaskExit(TaskId.parse(task), "a", 0, None, 50.0), scene.now) == []
    said = scene.looks["evaluator/0"]["log_bytes"] + (80 if sees else 0)
    stopped = TaskExit(TaskId.parse("evaluator/0"), "c", None, 15, 110.0, stopped=True, log_bytes=said)
    told = scene.watchdog.happened(stopped, scene.now + 60)
    if sees:
        assert told == []
    else:
        assert one(told).startswith(
            "evaluator/0 on c was stopped when the work was done, and had done nothing for "
        )
        assert "though chief/0 on a has written files since: does the directory" in one(told)


@pytest.mark.parametrize("waits", [False, True])
def test_an_evaluator_whose_evaluations_take_no_time(waits: bool) -> None:
    """It writes a line after a checkpoint: which it has seen, unless the line says that it waits for one."""
    scene = Scene("chief/0", "worker/0", "evaluator/0")
    scene.stands("evaluator/0", at(6, "evaluate", *FOR_CHECKPOINT), channels=("hrtimer_nanosleep",))
    assert scene.on(40) == []
    scene.looks["chief/0"]["io"] += 9000
    assert scene.on(10) == []
    scene.looks["evaluator/0"]["log_bytes"] += 40
    if waits:
        line = "Estimator is not trained yet. Will start an evaluation when a checkpoint is ready."
        scene.facts["evaluator/0"] = {"signs": {"checkpoint_awaited": [1, line, 1.0]}}
    assert scene.on(10) == []
    for task in ("chief/0", "worker/0"):
        assert scene.watchdog.happened(TaskExit(TaskId.parse(task), "a", 0, None, 50.0), scene.now) == []
    said = scene.looks["evaluator/0"]["log_bytes"]
    stopped = TaskExit(TaskId.parse("evaluator/0"), "c", None, 15, 110.0, stopped=True, log_bytes=said)
    assert bool(scene.watchdog.happened(stopped, scene.now + 60)) == waits


def test_workers_of_which_none_is_the_chief_for_the_program() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    for task in ("worker/0", "worker/1"):
        scene.stands(task, at(19, "train", *WAITS_FOR_CHIEF), channels=("hrtimer_nanosleep",))
        # It looks again every second, and TensorFlow logs that.
        scene.turns_s[task], scene.logs_s[task], scene.bytes_s[task] = 4.0, 100.0, 2800.0
    text = one(scene.on(200))
    assert text.startswith("all 2 tasks (worker/0, worker/1) have done nothing for ")
    assert (
        "they wait for a chief to initialise the variables at trainer.py:19 in train(): for the program"
        in text
    )
    assert "is_chief=(task_index == 0)" in text


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_second_hang_soon_after_the_stacks_were_asked_for_is_told_too(sleeps: bool) -> None:
    scene = mirrored()
    hangs = at(39, "train", *IN_ITERATOR), [["trainer.py", 26, "batches"], *BY_PY_FUNCTION]
    channels = ("futex_do_wait", "hrtimer_nanosleep" if sleeps else "futex_do_wait", "futex_do_wait")
    scene.stands("worker/1", *hangs, channels=channels)
    assert "worker/1 on b has done nothing for " in one(scene.on(100))
    asked = len(scene.inspections)
    for task in WORKERS:
        scene.cores[task], scene.bytes_s[task], scene.turns_s[task] = 0.9, 50_000.0, 50.0
    assert any("go on" in text or "goes on" in text for text in scene.on(60))
    scene.stands("worker/0", TRAIN)
    scene.stands("worker/2", TRAIN)
    scene.stands("worker/1", *hangs, channels=channels)
    text = one(scene.on(120))
    assert "done nothing" in text
    assert not any(stacks for _, stacks in scene.inspections[asked:]), "no stacks are written again so soon"


# ---- without stacks


def test_without_stacks_the_wait_channel_tells_the_odd_one_out() -> None:
    scene = Scene(*WORKERS, stacks=False)
    scene.on(60)
    for task in WORKERS:
        scene.stands(task)
    scene.channels["worker/1"] = ["hrtimer_nanosleep"]
    text = one(scene.on(100))
    assert "worker/1 on b has done nothing" in text
    assert "it sleeps" in text
    assert scene.inspections == [(task, False) for task in WORKERS]


def test_without_stacks_a_futex_may_be_an_all_reduce() -> None:
    scene = Scene(*WORKERS, stacks=False)
    scene.on(60)
    for task in WORKERS:
        scene.stands(task)
    text = one(scene.on(100))
    assert "deadlock" not in text
    assert "the same number of steps" in text


def test_without_stacks_what_computes_may_evaluate() -> None:
    scene = Scene(*WORKERS, stacks=False)
    scene.on(60)
    for task in WORKERS:
        scene.stands(task)
    scene.channels["worker/1"], scene.cores["worker/1"] = [""], 1.0
    assert scene.on(500) == []
    assert "worker/0, worker/2 wait for it" in one(scene.on(200))


# ---- once, and its end


def test_it_is_told_once_and_so_is_its_end() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load"), channels=("hrtimer_nanosleep",))
    one(scene.on(600))
    assert len(scene.inspections) == 3
    [rule] = [rule for name, rule in scene.watchdog.rules.items() if name == "stillness"]
    assert list(rule.explains(scene.now)) == ["worker/1"]
    assert len(list(rule.holds())) == 1
    scene.cores["worker/1"], scene.bytes_s["worker/1"] = 0.9, 50_000.0
    assert scene.on(30) == ["worker/1 on b goes on"]
    assert list(rule.holds()) == []


def test_the_next_watchdog_does_not_repeat_it() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load"), channels=("hrtimer_nanosleep",))
    one(scene.on(100))
    memory = json.loads(json.dumps(scene.watchdog.memory()))
    scene.watchdog = Watchdog(**json.loads(json.dumps(scene.watchdog.data())))
    scene.watchdog.begin(scene.now)
    scene.watchdog.resume(memory)
    assert scene.on(200) == []
    scene.cores["worker/1"], scene.bytes_s["worker/1"] = 0.9, 50_000.0
    assert scene.on(30) == ["worker/1 on b goes on"]


# ---- healthy runs


def test_training_is_no_standstill() -> None:
    assert Scene("ps/0", *WORKERS).on(900) == []


def test_imports_on_a_machine_that_is_short_of_processor_time() -> None:
    scene = Scene(*WORKERS)
    scene.still(*WORKERS)
    scene.io_s.update(dict.fromkeys(WORKERS, 200_000.0))  # measured: 0.01 cores, 200 kB/s
    assert scene.on(300) == []


def test_a_checkpoint_that_is_written_for_minutes() -> None:
    scene = Scene(*WORKERS)
    scene.on(60)
    scene.still(*WORKERS)
    scene.io_s["worker/0"] = 1e6
    assert scene.on(300) == []
    assert scene.inspections == []


def test_an_evaluation_of_the_chief_while_the_workers_wait() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(80, "evaluate", *IN_FUNCTION), channels=("",))
    scene.cores["worker/1"] = 1.8
    assert scene.on(500) == []


def test_an_evaluation_that_writes_lines() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load"), channels=("",))
    scene.cores["worker/1"], scene.logs_s["worker/1"] = 1.0, 10.0
    assert scene.on(900) == []


def test_a_download_of_one_task() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load", *IN_URLOPEN), channels=("wait_woken",))
    scene.strange_bytes_s["worker/1"] = 200_000.0
    assert scene.on(900) == []


def test_a_pause_with_lines() -> None:
    scene = Scene(*WORKERS)
    scene.on(60)
    for task in WORKERS:
        scene.stands(task, at(8, "pause"), channels=("hrtimer_nanosleep",))
        scene.logs_s[task] = 5.0
    assert scene.on(110) == []


def test_small_steps_with_a_sleep_between_them() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    scene.stands("ps/0", at(6, "main", *IN_JOIN))
    for task, stack in (("worker/0", at(23, "train", *IN_SESSION)), ("worker/1", at(24, "train"))):
        scene.stands(task, stack, channels=("hrtimer_nanosleep",))
        scene.turns_s[task], scene.logs_s[task] = 2.0, 30.0
    assert scene.on(900) == []


@pytest.mark.parametrize("rises", [True, False])
def test_slow_steps_whose_number_rises_in_the_log(rises: bool) -> None:
    """What moves fewer bytes than heartbeats, and was met in Python's own waiting, still trains."""
    scene = Scene("ps/0", *WORKERS)
    scene.stands("ps/0", at(6, "main", *IN_JOIN))
    for task in WORKERS:
        scene.stands(task, at(64, "train", *(IN_SESSION if task != "worker/2" else ())))
        scene.turns_s[task], scene.logs_s[task] = 2.0, 6.0
    said = []
    for number in range(120):
        for task in WORKERS:
            scene.facts[task] = {"step": 260 + number // 2 * rises}  # a line every second look
        said += scene.on(5)
    assert bool(said) != rises


def test_a_worker_with_slow_small_steps_among_fast_ones() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    scene.stands("worker/1", at(24, "train"), channels=("hrtimer_nanosleep",))
    scene.turns_s["worker/1"] = 1.0
    assert scene.on(900) == []


def test_all_compute_for_minutes() -> None:
    scene = Scene(*WORKERS)
    scene.still(*WORKERS)
    scene.cores.update(dict.fromkeys(WORKERS, 1.0))
    assert scene.on(900) == []


def test_a_trainer_below_a_shell() -> None:
    scene = mirrored()
    for task, line in (("worker/0", 40), ("worker/1", 52), ("worker/2", 40)):
        scene.stands(task, channels=("do_wait",))
        scene.children[task] = [
            {
                **{"pid": 4800, "name": "python3", "threads": [[4800, "python3", "S", "futex_do_wait", 0.0]]},
                **{"stacks": [{"main": True, "frames": at(line, "train", *IN_FUNCTION)}], "why_none": ""},
            }
        ]
    text = one(scene.on(100))
    assert "worker/1 is at trainer.py:52 in train()" in text


def test_the_last_of_some_tasks_that_never_met_may_sleep() -> None:
    scene = Scene(*WORKERS)
    scene.bytes_s = dict.fromkeys(WORKERS, 0.0)
    scene.facts = {task: {"listens": False, "listens_on": []} for task in WORKERS}
    scene.on(60)
    scene.end("worker/0")
    scene.end("worker/1")
    scene.stands("worker/2", at(8, "pause"), channels=("hrtimer_nanosleep",))
    scene.bytes_s = dict.fromkeys(WORKERS, 0.0)
    assert scene.on(290) == []


def test_tasks_that_never_met_may_pause_at_different_lines() -> None:
    scene = Scene(*WORKERS)
    scene.bytes_s = dict.fromkeys(WORKERS, 0.0)
    scene.facts = {task: {"listens": False, "listens_on": []} for task in WORKERS}
    scene.on(60)
    for line, task in enumerate(WORKERS):
        scene.stands(task, at(line, "load", *IN_URLOPEN), channels=("wait_woken",))
    scene.bytes_s = dict.fromkeys(WORKERS, 0.0)
    assert scene.on(110) == []


def test_a_server_whose_step_reads_from_a_fifo() -> None:
    scene = Scene("chief/0", "worker/0", "worker/1")
    scene.stands("chief/0", at(39, "main", *IN_COORDINATOR))
    for task in ("worker/0", "worker/1"):
        scene.stands(task, at(16, "<module>", *IN_JOIN))
    scene.channels["worker/1"] = ["futex_do_wait", "do_epoll_wait", "wait_for_partner"]
    text = one(scene.on(120))
    assert text.startswith("worker/1 on c has done nothing for ")
    assert "it opens a FIFO that nobody has opened at its other end" in text
    assert "; chief/0, worker/0 wait for it at trainer.py:39 in main(); " in text


def test_a_single_task_that_serves_notebooks() -> None:
    scene = Scene("worker/0")
    loop = [
        [f"{LIBRARY}/selectors.py", 468, "select"],
        [f"{LIBRARY}/asyncio/base_events.py", 1884, "_run_once"],
    ]
    scene.stands("worker/0", at(8, "serve", *loop), channels=("do_epoll_wait",))
    scene.facts["worker/0"] = {"listens_on": [8888]}
    assert scene.on(1800) == []
    scene.facts["worker/0"] = {"listens_on": []}
    assert "poll" in one(scene.on(200)), "it does not serve, and nobody answers it"


def test_servers_all_and_no_coordinator() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    for task in scene.looks:
        scene.stands(task, at(6, "main", *IN_JOIN))
    scene.bytes_s = dict.fromkeys(scene.looks, 0.0)
    text = one(scene.on(90))
    assert text.startswith("every task is a server (ps/0, worker/0, worker/1) and has waited ")
    assert "add --chief --done chief" in text


def test_a_chief_that_is_a_server_like_all_others() -> None:
    scene = Scene("chief/0", "ps/0", "worker/0")
    for task in scene.looks:
        scene.stands(task, at(6, "main", *IN_JOIN))
    scene.bytes_s = dict.fromkeys(scene.looks, 0.0)
    assert "chief/0 must be it, and not call server.join()" in one(scene.on(90))


@pytest.mark.parametrize(
    ("tasks", "watched"),
    [
        (("ps/0", "worker/0"), {"endless": True}),
        (("ps/0", "worker/0"), {"serves": True}),
        (("worker/0",), {}),
        (("worker/0", "client/0"), {}),
    ],
)
def test_servers_that_nobody_asks_for_anything(tasks: tuple[str, ...], watched: dict[str, bool]) -> None:
    scene = Scene(*tasks, **watched)
    for task in tasks:
        scene.stands(task, at(6, "main", *IN_JOIN))
    scene.bytes_s = dict.fromkeys(scene.looks, 0.0)
    assert scene.on(900) == []


@pytest.mark.parametrize("stacks", [True, False])
def test_servers_that_are_asked_now_and_then(stacks: bool) -> None:
    scene = Scene("ps/0", "worker/0", "worker/1", stacks=stacks, serves=True)
    for _ in range(4):  # stacks are asked for once in 10 minutes only
        for task in scene.looks:
            scene.stands(task, at(6, "main", *IN_JOIN))
        assert scene.on(150) == []
        for task in scene.looks:
            scene.cores[task], scene.bytes_s[task] = 0.9, 50_000.0
        assert scene.on(30) == []


def test_programs_that_serve_and_whose_stacks_are_known_only_once() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1")
    for _ in range(4):
        for task in scene.looks:
            scene.cores[task], scene.bytes_s[task] = 0.9, 50_000.0
        assert scene.on(30) == []
        for task in scene.looks:
            scene.stands(task, at(6, "main", *IN_JOIN))
        assert scene.on(150) == []


def test_one_worker_that_sleeps_has_much_time() -> None:
    scene = Scene("worker/0")
    scene.stands("worker/0", at(8, "pause"), channels=("hrtimer_nanosleep",))
    assert scene.on(290) == []
    assert "worker/0 on a" in one(scene.on(60))


def test_one_worker_whose_child_cannot_use_tensorflow_is_told_sooner() -> None:
    scene = Scene("worker/0")
    scene.stands("worker/0", at(12, "train", *IN_POOL))
    child = {
        **{"pid": 4800, "name": "python3", "threads": [[4800, "python3", "S", "futex_do_wait", 0.0]]},
        **{"stacks": [{"main": True, "frames": at(9, "load", *IN_FUNCTION)}], "why_none": ""},
    }
    scene.children["worker/0"] = [child]
    assert "spawn" in one(scene.on(140))


def test_a_ps_and_an_evaluator_that_wait() -> None:
    scene = Scene("ps/0", "worker/0", "worker/1", "evaluator/0")
    scene.stands("ps/0", at(6, "main", *IN_JOIN))
    scene.stands("evaluator/0", at(6, "evaluate", *FOR_CHECKPOINT))
    assert scene.on(900) == []


def test_blips_do_not_hide_a_standstill() -> None:
    scene = mirrored()
    scene.stands("worker/1", at(7, "load"), channels=("hrtimer_nanosleep",))
    said = []
    for _ in range(10):
        scene.looks["worker/0"]["cpu_s"] += 0.15
        said += scene.on(10)
    assert len(said) == 1


# ---- what cannot be seen


SLEEPS = at(26, "batches")
GPUS = {task: [f"GPU-{task}"] for task in WORKERS}


def on_gpus() -> Scene:
    """Three workers, each with a GPU, whose bytes do not show; the others wait for worker/1, and spin."""
    scene = Scene(*WORKERS, gpus=GPUS)
    scene.bytes_s = dict.fromkeys(WORKERS, 100.0)
    scene.use = dict.fromkeys(WORKERS, 97)
    assert scene.on(120) == []
    scene.spins("worker/0", "worker/2")
    scene.stacks = {"worker/0": [TRAIN], "worker/2": [TRAIN]}
    scene.logs_s = dict.fromkeys(WORKERS, 0.0)
    return scene


def test_with_gpus_a_task_that_sleeps_while_the_others_spin() -> None:
    scene = on_gpus()
    scene.stands("worker/1", SLEEPS, channels=("hrtimer_nanosleep",))
    text = one(scene.on(80))
    assert text.startswith("worker/1 on b has done nothing for 6")
    assert "it is at trainer.py:26 in batches() and sleeps; worker/0, worker/2 wait for it at" in text
    assert len(scene.inspections) == 6, "two looks at the stacks of each"
    assert scene.on(600) == [], "told once, and no other rule tells it again"
    scene.cores["worker/1"], scene.turns_s["worker/1"] = 0.9, 50.0
    assert scene.on(20) == ["worker/1 on b goes on"]


@pytest.mark.parametrize(("use", "told"), [(0, True), (97, False), (None, False)])
def test_with_gpus_a_task_that_computes_is_told_only_if_its_gpu_does_nothing(
    use: int | None, told: bool
) -> None:
    scene = on_gpus()
    scene.stands("worker/1", at(31, "spin"), channels=("",))
    scene.cores["worker/1"], scene.use["worker/1"] = 1.0, use
    assert scene.on(110) == []
    assert ["at trainer.py:31 in spin() and computes" in text for text in scene.on(60)] == [True] * told
    assert scene.on(900) == []


@pytest.mark.parametrize("idle", [False, True])
def test_with_gpus_where_all_wait_alike_their_gpus_decide(idle: bool) -> None:
    scene = on_gpus()
    for task in WORKERS:
        scene.stands(task, TRAIN)
        scene.use[task] = 0 if idle else 100
    assert ["they wait in the same operation" in text for text in scene.on(300)] == [True] * idle


def long_epoch(scene: Scene) -> None:
    """Each look finds worker/1 at the same line, and the others in a step."""
    for task in WORKERS:
        scene.cores[task], scene.turns_s[task] = 1.0, 20.0
    scene.stacks["worker/1"] = [SLEEPS]


def long_steps(scene: Scene) -> None:
    long_epoch(scene)
    scene.turns_s = dict.fromkeys(WORKERS, 0.1)


def synchronized_by_spinning(scene: Scene) -> None:
    """PyTorch's loss.item(): no main thread ever wakes, for none sleeps; worker/1 is not yet where the others are."""
    for task in WORKERS:
        scene.stands(task, at(17, "train"), channels=("",))
        scene.cores[task] = 1.0
    scene.stacks["worker/1"] = [at(19, "train")]


def evaluation(scene: Scene) -> None:
    scene.stands("worker/1", at(60, "evaluate", *IN_FUNCTION))
    scene.cores["worker/1"] = 1.0


def long_compile(scene: Scene) -> None:
    scene.stands("worker/1", at(40, "train", *IN_FUNCTION), channels=("",))
    scene.cores["worker/1"], scene.use["worker/1"] = 1.0, 0


def slow_checkpoint(scene: Scene) -> None:
    scene.stands("worker/1", at(70, "save"), channels=("wait_woken",))
    scene.io_s["worker/1"], scene.use["worker/1"] = 50_000.0, 0


def silent_checkpoint_of_tensorflow(scene: Scene) -> None:
    scene.stands("worker/1", at(70, "save", *IN_FUNCTION))


@pytest.mark.parametrize(
    "healthy",
    [
        long_epoch,
        long_steps,
        synchronized_by_spinning,
        evaluation,
        long_compile,
        slow_checkpoint,
        silent_checkpoint_of_tensorflow,
    ],
)
def test_with_gpus_nothing_is_said_of_a_healthy_run(healthy: Callable[[Scene], None]) -> None:
    scene = on_gpus()
    healthy(scene)
    assert scene.on(580) == []


ALLREDUCE = at(
    40, "train", ["/v/lib/python3.11/site-packages/horovod/tensorflow/mpi_ops.py", 124, "_allreduce"]
)


def talking() -> Scene:
    """Three ranks of Horovod: no main thread wakes, no line is written, and a thread of each talks all the time."""
    scene = Scene(*WORKERS)
    assert scene.on(120) == []
    for task in WORKERS:
        scene.stands(task, ALLREDUCE)
        scene.cores[task], scene.bytes_s[task] = 0.3, 60_000.0
    return scene


@pytest.mark.parametrize(("cores", "waiting"), [(0.02, 0.0), (0.3, 0.7)], ids=["idle", "full machine"])
@pytest.mark.parametrize("inner", [(), IN_QUEUE], ids=["sleeps", "waits for a queue"])
def test_a_rank_that_hangs_while_the_others_talk(inner: Any, cores: float, waiting: float) -> None:
    scene = talking()
    scene.waiting = dict.fromkeys(WORKERS, waiting)
    scene.stands(
        "worker/1", at(7, "load", *inner), channels=("futex_do_wait" if inner else "hrtimer_nanosleep",)
    )
    scene.cores["worker/1"] = cores
    text = one(scene.on(150))
    assert text.startswith("worker/1 on b has done nothing for ")
    assert f"it is at trainer.py:7 in load() and {'waits for a queue' if inner else 'sleeps'}" in text
    assert "; worker/0, worker/2 wait for it at trainer.py:40 in train()" in text
    scene.turns_s["worker/1"], scene.cores["worker/1"] = 3.0, 0.9
    assert scene.on(30) == ["worker/1 on b goes on"]


@pytest.mark.parametrize("why", ["one call", "computes", "wakes"])
def test_who_talks_need_not_wait(why: str) -> None:
    scene = talking()
    if why == "one call":  # all train in a long call of TensorFlow
        for task in WORKERS:
            scene.stands(task, TRAIN)
            scene.bytes_s[task] = 5e6
    elif why == "computes":  # children, or threads, fill the queue
        scene.stands("worker/1", at(7, "load", *IN_QUEUE), channels=("futex_do_wait",))
        scene.cores["worker/1"] = 0.9
    else:
        scene.stands("worker/1", at(7, "load"), channels=("hrtimer_nanosleep",))
        scene.turns_s["worker/1"] = 1.0
    assert scene.on(900) == []


def test_where_bytes_cannot_be_counted_the_rule_is_silent_and_says_so() -> None:
    scene = Scene(*WORKERS)
    scene.sees_bytes = False
    for task in WORKERS:
        scene.stands(task, TRAIN)
    assert scene.on(300) == []
    [text] = scene.watchdog.rules["stillness"].blind()
    assert text.startswith("whether worker/0, worker/1, worker/2 stand still: the kernel")


# ---- real runs, recorded with tests/support/recorder.py and TensorFlow 2.21


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "mirrored_input_sleeps",
            "worker/1 on b has done nothing for 30 s: it is at trainer.py:12 in batches() and sleeps; worker/0,"
            " worker/2 wait for it at trainer.py:26 in train()",
        ),
        (
            "sync_replicas_too_many",
            "all 2 tasks (worker/0, worker/1) have done nothing for 30 s: they wait in session.run at trainer.py:23 in"
            " train(); with SyncReplicasOptimizer a step needs replicas_to_aggregate gradients",
        ),
        (
            "chief_never_initialises",
            "worker/0 on a has done nothing for 30 s: it is at trainer.py:18 in train() and sleeps; worker/1 waits for"
            " it at trainer.py:19 in train()",
        ),
    ],
)
def test_a_recorded_run(name: str, words: str) -> None:
    watchdog: Watchdog | None = None
    said: list[str] = []
    for line in (Path(__file__).parent / "recorded" / f"{name}.jsonl").read_text("utf-8").splitlines():
        now, what, *rest = json.loads(line)
        if watchdog is None:
            watchdog = Watchdog(**rest[0])
            watchdog.rules = {"stillness": watchdog.rules["stillness"]}
            watchdog.begin(now)
        elif what == "said":
            watchdog.said(*rest, now)
        watchdog.questions("abcd", now)
        said += [each.text for each in watchdog.sentences(now)]
    assert one(said).startswith(words)
