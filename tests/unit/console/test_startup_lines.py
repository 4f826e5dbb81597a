"""TensorFlow's start-up lines on terminals: folded into one line; all others are shown, and at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.screen import W0, W1, Reader, on_terminal, plain, shown, terminal
from tflaunch.console.opening import open_reporter
from tflaunch.documents.reporter import Reporter
from tflaunch.documents.startup_lines import StartupLines

# As TensorFlow 2.21 and 2.15 write them.
STARTUP = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795262334.973198   20749 port.cc:153] oneDNN custom operations are on. You may see slightly",
    "I0000 00:00:1795262334.973198   20749 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not"
    " be used.",
    "I0000 00:00:1795262335.1   9 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use CPU",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate",
    "E0000 00:00:1795262335.1   9 cuda_platform.cc:52] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)",
    "2024-01-17 15:41:15.073332: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register"
    " cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
    "2024-01-17 15:41:15.1: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find"
    " TensorRT",
    "I0000 00:00:1795262335.1   9 grpc_server_lib.cc:463] Started server with target: grpc://h:1",
    "I0000 00:00:1795438431.615666   12 coordination_service.cc:221] Initializing CoordinationService",
    "I0000 00:00:1795438432.615630   28 coordination_service.cc:502] Waiting for 0/3 tasks to connect.",
    "I0000 00:00:1795438432.405651   12 coordination_service_agent.cc:245] Coordination agent has successfully"
    " connected.",
    "I0000 00:00:1795639805.762330  297 eager_service_impl.cc:349] Creating sync eager service context with",
    "I0000 00:00:1795639807.135343  341 generator_dataset_op.cc:213] Memory patch applied: M_TRIM_THRESHOLD=128 kb",
    "I0000 00:00:1795639807.2  297 kernel_and_device.cc:101] Ignoring error status when releasing multi-device function"
    " handle UNIMPLEMENTED: Releasing a multi-device component handle on a remote device is not yet implemented.",
    "W0000 00:00:1795639807.145716  297 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be optimized",
)
OTHERS = (
    "",
    "step 1 loss 0.5",
    "I0000 00:00:1795262335.1   9 gpu_device.cc:2020] Created device /job:worker/device:GPU:0 with 79 GB memory",
    "2024-01-17 15:41:15.073332: E tensorflow/stream_executor/cuda/cuda_dnn.cc:389] Could not create cudnn handle",
    "E0000 00:00:1795262335.1   9 port.cc:153] something else",
    "I0000 00:00:1795438432.405254   28 coordination_service.cc:502] Waiting for 1/3 tasks to connect.",
    "my own: oneDNN custom operations are on.",
)


@pytest.mark.parametrize("line", STARTUP)
def test_what_tensorflow_writes_at_each_start_is_known(line: str) -> None:
    assert StartupLines().has(line)


@pytest.mark.parametrize("line", OTHERS)
def test_other_lines_are_not(line: str) -> None:
    assert not StartupLines().has(line)


def test_a_message_below_a_line_belongs_to_it_up_to_an_empty_line() -> None:
    head = "I0000 00:00:1795715044.855607   13709 eager_service_impl.cc:355] SessionOptions: goo.gle/debugproto   "
    message = [
        "device_count {",
        '  key: "CPU"',
        "  value: 1",
        "}",
        "gpu_options {",
        "  experimental {",
        "  }",
        "}",
    ]
    log, lines = StartupLines(), [head, *message, "", "  value: 1", "}", "", "step 1"]
    assert [line for line in lines if not log.has(line)] == ["  value: 1", "}", "", "step 1"]
    log, lines = StartupLines(), [head, *message[:3], "step: 1 of 2!", "}"]
    assert [line for line in lines if not log.has(line)] == ["step: 1 of 2!", "}"]


def act(reporter: Reporter) -> None:
    noise = "".join(line + "\n" for line in STARTUP).encode()
    for task in (W0, W1):
        reporter.log(task, "a", 0, noise)
    reporter.log(W0, "a", len(noise), b"step 1\n")
    reporter.close()


def test_they_are_one_line_on_a_terminal() -> None:
    assert plain(on_terminal(act, fold=True)) == [
        "worker/0 │ step 1",
        f"{2 * len(STARTUP)} start-up lines of TensorFlow folded; --raw shows them",
    ]
    assert len(plain(on_terminal(act))) == 2 * len(STARTUP) + 1


def test_their_number_is_told_on_a_line_of_its_own_while_nothing_else_comes() -> None:
    ours, theirs = terminal(columns=100)
    reporter = open_reporter(stdout=theirs, stderr=theirs, fold=True)
    reporter.phase("training", 0, 2)
    reporter.log(W0, "a", 0, f"{STARTUP[0]}\n".encode())
    seen = ""
    while "--raw shows them" not in seen:  # the test's time limit ends it
        seen += os.read(ours, 65536).decode()
    reader = Reader(ours)
    reporter.log(W0, "a", len(STARTUP[0]) + 1, b"step 1\n")
    reporter.close()
    theirs.close()
    assert plain(seen + reader.text()) == [
        "training 2 tasks",
        "1 start-up line of TensorFlow folded; --raw shows them",
        "worker/0 │ step 1",
    ]


def test_in_a_pipe_and_in_files_every_line_stays() -> None:
    out, _ = shown(act, fold=True)
    assert out.count("\n") == 2 * len(STARTUP) + 1


def test_the_logs_of_real_runs_begin_with_them() -> None:
    """Of the start of a real log nothing is left but what the program prints."""
    logs = Path(__file__).parents[1] / "ends" / "logs"
    starts = [path.read_text("utf-8", "replace").splitlines()[:1] for path in logs.glob("*.log")]
    folded = [lines for lines in starts if lines and StartupLines().has(lines[0])]
    assert len(folded) > 50
