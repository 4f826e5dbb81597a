"""Tasks that were given a GPU and use none: told with the reason, never where a child says it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.diagnosis.gpu_facts import Looks, gpu
from tflaunch.diagnosis.no_gpu import NoGpu

# As TensorFlow 2.21 and older ones write them.
DLOPEN = (
    "W0000 00:00:1795262334.973198    4711 gpu_device.cc:2342] Cannot dlopen some GPU libraries. Please make"
)
CUINIT = (
    "2024-11-23 08:20:01.123456: E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:266] "
    "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
)
CHILD = "E0000 00:00:1795262334.973198    4800 cuda_driver.cc:266] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no"


def run_of(workers: int = 1, **settings: Any) -> Looks:
    run = Looks(NoGpu, workers, **settings)
    run.see(run.tasks, use=0, power=70.0, memory_bytes=1 << 20, pids=[])
    return run


def test_the_program_says_it() -> None:
    run = run_of(require_gpu=True)
    run.on(10)
    run.sign("no_gpu", 1, DLOPEN)
    (text,) = run.on(20)
    assert text.startswith(
        "worker/0 on gpu00 uses no GPU, although it was given one: TensorFlow does not find all CUDA libraries"
    )
    assert "install tensorflow[and-cuda] by --requirements" in text
    stop = run.stops[0]
    assert (stop.exit_code, stop.tasks) == (65, ("worker/0",))
    assert stop.reason.endswith("(--require-gpu)")
    assert [*run.rule.holds()] == [text]


def test_the_library_that_is_missing_is_named() -> None:
    run = run_of()
    run.sign("no_gpu", 1, DLOPEN)
    run.sign(
        "no_library",
        3,
        "W tensorflow/dso_loader.cc:64] Could not load dynamic library 'libcudnn.so.8'; dlerror",
    )
    (text,) = run.on(20)
    assert (
        "all CUDA libraries (\"Could not load dynamic library 'libcudnn.so.8'; dlerror\"); install tensorflow[and-cuda]"
        in text
    )


def test_all_workers_in_one_sentence() -> None:
    run = run_of(3)
    run.sign("no_gpu", 1, CUINIT)
    (text,) = run.on(30)
    assert text.startswith("worker/0, worker/1, worker/2 use none of their GPUs: CUDA shows it no device")
    assert "does the program, or `setup:`, change CUDA_VISIBLE_DEVICES?" in text


def test_an_overwritten_variable_is_named() -> None:
    run = run_of()
    run.looks["worker/0"]["masks"] = [[4711, "-1"]]
    run.sign("no_gpu", 1, CUINIT)
    (text,) = run.on(20)
    assert "CUDA_VISIBLE_DEVICES is '-1' there: leave it to tflaunch" in text


def test_an_old_line_names_no_thread_so_the_run_ends_later() -> None:
    run = run_of(require_gpu=True)
    run.sign("no_gpu", 1, CUINIT)
    assert len(run.on(20)) == 1
    assert run.stops == []
    run.on(30)
    assert run.stops


@pytest.mark.parametrize("line", [CHILD, CUINIT])
def test_a_child_that_sees_no_gpu_is_no_failure(line: str) -> None:
    run = run_of(require_gpu=True)
    run.looks["worker/0"]["processes"].append([4800, "python3", "S"])
    run.sign("no_gpu", 1, line)
    assert run.on(60) == []  # the trainer still prepares its data
    run.see(run.tasks, pids=[4711])
    assert run.on(900) == []
    assert run.stops == []


def test_a_child_that_has_ended() -> None:
    run = run_of(require_gpu=True)
    run.sign("no_gpu", 1, CHILD)
    assert run.on(100) == []
    run.see(run.tasks, pids=[4711])
    assert run.on(900) == []
    assert run.stops == []


def test_a_trainer_below_a_shell() -> None:
    run = run_of(require_gpu=True)
    run.looks["worker/0"]["processes"] = [[4700, "bash", "S"], [4711, "python3", "R"]]
    run.sign("no_gpu", 1, DLOPEN)
    assert len(run.on(20)) == 1
    assert run.stops


def test_tensorflow_has_made_the_device() -> None:
    run = run_of(require_gpu=True)
    run.sign("no_gpu", 1, DLOPEN)
    run.sign(
        "gpu_seen", 1, "Created device /job:localhost/replica:0/task:0/device:GPU:0 with 22290 MB memory"
    )
    assert run.on(900) == []


def test_a_task_that_prepares_its_data_first() -> None:
    run = run_of(require_gpu=True)
    assert run.on(280) == []
    assert run.stops == []
    run.see(run.tasks, pids=[4711])
    assert run.on(900) == []


def test_nothing_is_printed_but_losses() -> None:
    run = run_of(require_gpu=True)
    run.sign("loss", 3, "step 3: loss 0.7")
    assert run.on(115) == []
    (text,) = run.on(20)
    assert "it has used 12" in text
    assert "NVML shows no process on it" in text
    assert run.stops == []
    run.on(200)
    assert run.stops


def test_it_uses_its_gpu_after_all() -> None:
    run = run_of()
    assert len(run.on(320)) == 1
    run.see(run.tasks, pids=[4711])
    assert run.on(10) == ["worker/0 on gpu00 uses its GPU now"]
    assert not [*run.rule.holds()]


@pytest.mark.parametrize(
    "seen",
    [
        gpu(),  # it is there
        gpu(pids=None),  # a container hides the processes
        gpu(pids=[99]),  # another's, with --share-gpus
        gpu(error="NVML: GPU is lost"),
    ],
)
def test_silent_tasks_of_which_nothing_is_known(seen: dict[str, Any]) -> None:
    run = run_of(require_gpu=True)
    run.gpus = {"worker/0": seen}
    assert run.on(900) == []
    assert run.stops == []


def test_a_task_that_waits_uses_no_cpu() -> None:
    run = run_of(require_gpu=True)
    run.cores["worker/0"] = 0.01
    assert run.on(900) == []


def test_blind_without_nvml() -> None:
    run = run_of()
    run.gpus = {}
    assert run.on(300) == []
    assert [*run.rule.blind()] == [
        "whether the tasks on gpu00 use their GPUs: the NVIDIA driver there has not answered yet"
    ]


def test_memory() -> None:
    run = run_of()
    run.sign("no_gpu", 1, DLOPEN)
    run.on(30)
    other = run_of()
    other.rule.resume(json.loads(json.dumps(run.rule.memory())))
    assert [*other.rule.holds()] == [*run.rule.holds()]
    other.sign("no_gpu", 1, DLOPEN)
    assert other.on(300) == []
