"""Workers that wait for their input, the one that others wait for in session.run, GPUs that compute too little."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.diagnosis.gpu_facts import gpu
from tests.unit.diagnosis.slow_runs import LOOK_S, WORKERS, Run, asynchronous, mirrored, one

Stack = tuple[list[list[Any]], str]
TRAINS = ["train.py", 40, "train"]
TENSORFLOW = "/usr/lib/python3/dist-packages/tensorflow/python"
READS: Stack = ([["train.py", 31, "read"], TRAINS], "__iomap_dio_rw")
WAITS_FOR_DATA: Stack = (
    [[f"{TENSORFLOW}/ops/gen_dataset_ops.py", 3104, "iterator_get_next"], TRAINS],
    "futex_do_wait",
)
REDUCES: Stack = ([[f"{TENSORFLOW}/ops/gen_dataset_ops.py", 5702, "reduce_dataset"], TRAINS], "futex_do_wait")
IN_SESSION: Stack = ([[f"{TENSORFLOW}/client/session.py", 977, "run"], TRAINS], "futex_do_wait")
IN_OP: Stack = ([[f"{TENSORFLOW}/eager/execute.py", 53, "quick_execute"], TRAINS], "futex_do_wait")
LIBRARY = "/usr/lib/python3.11"
JOINS: Stack = ([[f"{TENSORFLOW}/training/coordinator.py", 378, "join"], TRAINS], "futex_do_wait")
IN_ITS_GENERATOR: Stack = (
    [["data.py", 9, "batches"], [f"{TENSORFLOW}/data/ops/from_generator_op.py", 198, "generator_py_func"]],
    "",
)
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
QUEUE = [f"{LIBRARY}/queue.py", 180, "get"]
SLEEPS: Stack = ([["train.py", 35, "train"]], "hrtimer_nanosleep")


def test_workers_that_wait_for_a_slow_file() -> None:
    run = mirrored()
    run.in_disk = dict.fromkeys(WORKERS, 0.8)
    run.stacks = {name: [READS, IN_OP, READS, READS] for name in WORKERS}
    text = one(run.on(150))
    assert text.startswith(
        "worker/0, worker/1, worker/2 wait for their input: in 75% of the looks the main thread waits for a disk"
        " or a file server at train.py:31 in read(); without that it would be up to 4.0x faster: it waits for a"
        " disk of host1 (state D) in "
    )
    assert text.endswith("and use prefetch()")
    assert run.asked["worker/0"] == 10


def test_one_worker_alone_by_the_steps_of_its_log() -> None:
    run = Run("worker/0")
    run.steps_s["worker/0"], run.cores["worker/0"] = 4.0, 1.0
    run.stacks["worker/0"] = [WAITS_FOR_DATA]
    text = one(run.on(150))
    assert "worker/0 on host1 waits for its input: in 100% of the looks the main thread" in text
    assert "waits for its input pipeline (tf.data) at train.py:40 in train()" in text
    assert (
        "one thread prepares the data, with 1 of 4 cores of host1; use map() with num_parallel_calls" in text
    )


@pytest.mark.parametrize(
    ("cores", "held", "words"),
    [
        (3.9, 0.0, "it uses 3.9 of its 4 cores; give it more"),
        (0.1, 0.0, "no thread of it waits for a disk of host1: where the data come from is slow"),
        (0.2, 0.8, "the quota of its cgroup, 4 cores, stops it in 80% of the time"),
    ],
)
def test_what_bounds_the_input(cores: float, held: float, words: str) -> None:
    run = Run("worker/0")
    run.steps_s["worker/0"], run.cores["worker/0"], run.held["worker/0"] = 4.0, cores, held
    run.stacks["worker/0"] = [WAITS_FOR_DATA]
    assert words in one(run.on(150))


@pytest.mark.parametrize(
    "stacks", [[IN_OP], [REDUCES], [IN_OP, IN_OP, WAITS_FOR_DATA, SLEEPS, IN_OP, IN_OP], [SLEEPS], []]
)
def test_workers_that_get_their_input_in_time(stacks: list[Stack]) -> None:
    run = mirrored()
    run.stacks = dict.fromkeys(WORKERS, stacks)
    assert run.on(700) == []


@pytest.mark.parametrize(
    ("main", "other"),
    [
        (JOINS, IN_SESSION),
        (IN_SESSION, IN_ITS_GENERATOR),
        (IN_OP, IN_ITS_GENERATOR),
        (JOINS, READS),
        (([QUEUE, TRAINS], "futex_do_wait"), READS),
    ],
    ids=["coord.join", "py_function", "from_generator", "reads ahead", "a queue"],
)
def test_another_thread_than_the_main_one_is_at_work(main: Stack, other: Stack) -> None:
    run = mirrored()
    run.stacks = {name: [main] for name in WORKERS}
    run.others = {name: [other] for name in WORKERS}
    assert run.on(300) == []


@pytest.mark.parametrize(
    ("library", "channel"),
    [
        (None, "wait_woken"),
        (None, "inet_wait_for_connect"),
        (None, "unix_stream_read_generic"),
        (None, "anon_pipe_read"),
        (None, "flock_lock_inode_wait"),
        (["/socket.py", 706, "readinto"], "wait_woken"),
        (["/http/client.py", 1378, "getresponse"], "wait_woken"),
        (["/concurrent/futures/_base.py", 451, "result"], "futex_do_wait"),
        (["/multiprocessing/pool.py", 367, "map"], "futex_do_wait"),
        (["/subprocess.py", 1209, "communicate"], "do_wait"),
        (["/queue.py", 180, "get"], "futex_do_wait"),
    ],
)
def test_a_program_of_its_own_protocol_may_compute_by_what_it_waits_for(
    library: list[Any] | None, channel: str
) -> None:
    called = [[LIBRARY + library[0], *library[1:]]] if library else []
    run = mirrored()
    run.stacks = {name: [([*called, ["train.py", 33, "pull"], TRAINS], channel)] for name in WORKERS}
    assert run.on(300) == []


@pytest.mark.parametrize(
    ("called", "channel", "words"),
    [
        ([QUEUE, [LOADER, 1119, "_try_get_data"]], "futex_do_wait", "waits for a queue"),
        (
            [[f"{LIBRARY}/multiprocessing/queues.py", 113, "get"], [LOADER, 1132, "_try_get_data"]],
            "poll_schedule_timeout",
            "waits for a process of multiprocessing",
        ),
        (
            [QUEUE, ["/venv/lib/python3.11/site-packages/keras/src/utils/data_utils.py", 729, "get"]],
            "futex_do_wait",
            "waits for a queue",
        ),
    ],
)
def test_a_loader_of_data_that_a_library_has(called: list[list[Any]], channel: str, words: str) -> None:
    run = mirrored()
    run.stacks = {name: [([*called, TRAINS], channel)] for name in WORKERS}
    text = one(run.on(150))
    assert text.startswith("worker/0, worker/1, worker/2 wait for their input: in 100% of the looks the main")
    assert f"the main thread {words} at train.py:40 in train()" in text


def test_the_generator_for_which_tensorflow_waits() -> None:
    run = mirrored()
    run.stacks = {name: [WAITS_FOR_DATA] for name in WORKERS}
    run.others = {name: [IN_ITS_GENERATOR] for name in WORKERS}
    text = one(run.on(150))
    assert (
        "the main thread waits for its input pipeline (tf.data) at train.py:40 in train() (its Python is at data.py:9"
        " in batches()); without that it would be up to 10.0x faster: "
    ) in text


def test_a_run_that_does_nothing_is_not_asked() -> None:
    run = mirrored()
    run.stacks = {name: [WAITS_FOR_DATA] for name in WORKERS}
    for each in run.links:
        each.bytes_s = 100.0
    assert run.on(300) == []
    assert set(run.asked.values()) <= {0, 1, 2}, "only by the rules of standstills"


def test_no_stacks_are_asked_of_a_run_that_has_none() -> None:
    run = asynchronous(stacks=False)
    assert run.on(200) == []
    assert set(run.asked.values()) == {0}


def test_a_round_of_questions_comes_again_when_a_worker_has_changed() -> None:
    run = asynchronous()
    run.stacks = {name: [IN_SESSION] for name in WORKERS}
    run.on(300)
    assert run.asked == {"ps/0": 0, **dict.fromkeys(WORKERS, 10)}
    assert not run.signals, "a task that goes on gets none"
    for name in WORKERS:
        run.speed(name, 200_000)
    run.on(200)
    settled = run.asked["worker/1"]
    assert settled >= 20
    run.on(300)
    assert run.asked["worker/1"] == settled
    run.on(400)
    assert run.asked["worker/1"] == settled + 10, "every ten minutes"


def test_a_worker_of_a_synchronous_run_that_works_longer() -> None:
    run = asynchronous()
    run.stacks = {name: [IN_SESSION] for name in WORKERS}
    run.stacks["worker/1"] = [SLEEPS]
    text = one(run.on(150))
    assert text.startswith(
        "worker/1 on host3 holds up the others: in 100% of 8 looks its main thread was in no session.run (sleeps at"
        " train.py:35 in train()), the others' in 0%; as fast as they are, it would make the run up to 10.0x faster: "
    )


@pytest.mark.parametrize(
    ("main", "other"),
    [(IN_SESSION, IN_ITS_GENERATOR), (JOINS, IN_SESSION)],
    ids=["py_function", "coord.join"],
)
def test_a_worker_that_has_more_threads_than_the_others_holds_up_nobody(main: Stack, other: Stack) -> None:
    run = asynchronous()
    run.stacks = {name: [IN_SESSION] for name in WORKERS}
    run.stacks["worker/1"], run.others["worker/1"] = [main], [other]
    assert run.on(200) == []


@pytest.mark.parametrize("speed", [0.8, 1.25])
def test_a_worker_that_does_not_go_in_step_holds_up_nobody(speed: float) -> None:
    run = asynchronous()
    run.stacks = {name: [IN_SESSION] for name in WORKERS}
    run.stacks["worker/1"] = [SLEEPS]
    run.speed("worker/1", 500_000 * speed)
    assert run.on(200) == []


def test_workers_that_all_work_as_long() -> None:
    run = asynchronous()
    run.stacks = {name: [SLEEPS, SLEEPS, IN_SESSION] for name in WORKERS}
    run.stacks["worker/1"] = [SLEEPS]
    assert run.on(200) == []


def test_one_that_was_told_before_hides_no_other() -> None:
    run = asynchronous(thresholds={"stacks_again_s": 60.0})
    run.on(90)
    run.speed("worker/1", 150_000)
    assert one(run.on(90)).startswith("worker/1 on host3 has been 3.3x slower than the other workers")
    run.stacks = {name: [WAITS_FOR_DATA] for name in WORKERS}
    text = one(run.on(300))
    assert text.startswith("worker/0, worker/1, worker/2 wait for their input: in ")
    assert run.on(300) == []


def test_more_workers_of_the_same_are_told_when_they_are_as_many_again() -> None:
    names = [f"worker/{number}" for number in range(4)]
    run = Run(*names, thresholds={"stacks_again_s": 60.0})
    run.link(*((name, names[number - 1]) for number, name in enumerate(names)))
    run.stacks = {name: [IN_OP] for name in names}
    told = []
    for more in (["worker/0", "worker/1"], ["worker/2"], ["worker/3"]):
        run.stacks.update((name, [WAITS_FOR_DATA]) for name in more)
        told.append([text.partition(" wait")[0] for text in run.on(300)])
    assert told == [["worker/0, worker/1"], [], ["worker/0, worker/1, worker/2, worker/3"]]


def uses(*of_looks: int) -> list[str]:
    run = asynchronous(gpus={name: [f"GPU-{name}"] for name in WORKERS})
    said = []
    for number in range(60):
        use, energy_j = of_looks[number // 5 % len(of_looks)], 1000 * number
        run.gpus = {f"GPU-{name}": gpu(use=use, energy_j=energy_j) for name in WORKERS}
        said += run.on(LOOK_S)
    return said


def test_gpus_that_compute_in_a_third_of_the_time() -> None:
    text = one(uses(30, 40, 20))
    assert text.startswith("the GPUs of worker/0, worker/1, worker/2 have computed in ")
    assert "s on the average, at 200 W of 700 W: up to " in text
    assert "`tflaunch stacks` shows what their programs wait for" in text


@pytest.mark.parametrize("of_looks", [(97, 60), (60,), (0,)])
def test_gpus_that_compute_more_or_not_at_all(of_looks: tuple[int, ...]) -> None:
    assert [text for text in uses(*of_looks) if "have computed in" in text] == []


def lanes(*now: int, use: int = 90) -> list[str]:
    run = asynchronous(gpus={"worker/1": ["GPU-1"]})
    said = []
    for number in range(60):
        run.gpus = {"GPU-1": gpu(use=use, lanes=[now[number // 5 % len(now)], 16])}
        said += run.on(LOOK_S)
    return said


def test_a_gpu_with_few_lanes_of_pcie() -> None:
    text = one(lanes(4))
    assert text.startswith(
        "the GPU of worker/1 on host3 has 4 of 16 lanes of PCIe: what goes to and from it takes 4x"
    )


def test_a_gpu_that_has_its_lanes_when_it_works_or_rests() -> None:
    assert lanes(16) == lanes(4, 16) == lanes(4, use=0) == []


def test_a_worker_is_told_once_though_several_rules_find_it() -> None:
    run = asynchronous()
    run.stacks = {name: [IN_SESSION] for name in WORKERS}
    run.stacks["worker/1"] = [WAITS_FOR_DATA]
    text = one(run.on(120))
    assert text.startswith(
        "worker/1 on host3 holds up the others: in 100% of 8 looks its main thread was in no"
    )
    assert "where the data come from is slow" in text
    run.speed("worker/1", 100_000)
    assert run.on(200) == [], "it is slower, too"
    run.speed("worker/1", 500_000)
    run.stacks["worker/1"] = [IN_SESSION]
    assert one(run.on(300)) == "worker/1 on host3 holds up the others no more"
