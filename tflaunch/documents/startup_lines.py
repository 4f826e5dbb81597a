"""TensorFlow's start-up lines: some that every task writes before it has done anything, whatever goes on.

On a terminal they would bury the first losses: `Folded` leaves out lines that are known, and counts them.
"""

from __future__ import annotations

import re
import time

from tflaunch.protocol.job import TaskId
from tflaunch.text.numbers import counted

# The file of TensorFlow that writes a line, and how its text begins; some are at level E, and mean nothing.
KNOWN: tuple[tuple[str, str], ...] = (
    ("port.cc", "oneDNN custom operations are on."),
    ("cudart_stub.cc", "Could not find cuda drivers on your machine, GPU will not be used."),
    ("cpu_feature_guard.cc", "This TensorFlow binary is optimized"),
    ("cuda_platform.cc", "failed call to cuInit: "),
    ("cuda_driver.cc", "failed call to cuInit: "),
    ("cuda_diagnostics.cc", ""),
    ("cuda_fft.cc", "Unable to register cuFFT factory"),
    ("cuda_dnn.cc", "Unable to register cuDNN factory"),
    ("cuda_blas.cc", "Unable to register cuBLAS factory"),
    ("computation_placer.cc", "computation placer already registered"),
    ("cuda_executor.cc", "successful NUMA node read"),
    ("cuda_executor.cc", "could not open file to read NUMA node"),
    ("mlir_graph_optimization_pass.cc", "MLIR V1 optimization pass is not enabled"),
    ("py_utils.cc", "TF-TRT Warning: Could not find TensorRT"),
    ("grpc_server_lib.cc", "Started server with target"),
    ("grpc_channel.cc", "Initialize GrpcChannelCache for job"),
    # Not those that name the tasks which have not connected yet.
    ("coordination_service.cc", "Initializing CoordinationService"),
    ("coordination_service.cc", "Waiting for 0/"),
    ("coordination_service_agent.cc", "Coordination agent has successfully connected."),
    ("eager_service_impl.cc", "Creating sync eager service context"),
    ("generator_dataset_op.cc", "Memory patch applied: "),
    (
        "kernel_and_device.cc",
        "Ignoring error status when releasing multi-device function handle UNIMPLEMENTED",
    ),
    ("dataset.cc", "Input of GeneratorDatasetOp::Dataset will not be optimized"),
)
WHOLE = (  # lines without a file
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "To enable the following instructions: ",
)
# `I0000 00:00:1795262334.973198   20749 port.cc:153] `; `2024-01-17 15:41:15.073332: E external/x/cuda_dnn.cc:389] `
_HEAD = re.compile(
    r"(?:[IWE]\d{4} [\d:.]{1,30} {1,9}\d{1,9} |\d{4}-\d\d-\d\d [\d:.]{1,20}: [IWE] )"
    r"(?:[\w./-]{0,200}/)?(\w{1,60}\.cc):\d{1,6}\] "
)
# A line with a message of protobuf's as text in the lines below it, up to an empty one.
_WITH_MESSAGE = ("eager_service_impl.cc", "SessionOptions: ")
_OF_MESSAGE = re.compile(r" *(?:[a-z_]+ \{|[a-z_]+: (?:\"[^\"]*\"|[\w.+-]+)|\}|)")
_MOST_OF_MESSAGE = 200
_SETTLED_S = 1.0  # without another such line: then their number is told


class StartupLines:
    """Which lines of one log TensorFlow writes at each start, whatever goes on; it sees them one after another."""

    def __init__(self) -> None:
        self._left = 0  # lines of a message that may still come

    def has(self, line: str) -> bool:
        """Return whether the next line is one of them."""
        if self._left and _OF_MESSAGE.fullmatch(line):
            self._left = self._left - 1 if line else 0
            return True
        self._left = 0
        head = _HEAD.match(line)
        if head is None:
            return line.startswith(WHOLE)
        file, text = head[1], line[head.end() :]
        if file == _WITH_MESSAGE[0] and text.startswith(_WITH_MESSAGE[1]):
            self._left = _MOST_OF_MESSAGE
            return True
        return any(file == known and text.startswith(begin) for known, begin in KNOWN)


class Folded:
    """Leaves start-up lines out, and says how many they were once other lines follow."""

    def __init__(self) -> None:
        self._count = 0
        self._last = 0.0
        self._logs: dict[TaskId, StartupLines] = {}

    def rest(self, task: TaskId, lines: str) -> str:
        """Return these whole lines of a task without the start-up lines."""
        every, known = lines.removesuffix("\n").split("\n"), self._logs.setdefault(task, StartupLines())
        kept = [line for line in every if not known.has(line)]
        if len(kept) == len(every):
            return lines
        self._count += len(every) - len(kept)
        self._last = time.monotonic()
        return "".join(line + "\n" for line in kept)

    def told(self, *, over: bool = False) -> str:
        """Return the sentence about the lines left out since the last one, when no more of them come, else ""."""
        if not self._count or not (over or time.monotonic() - self._last >= _SETTLED_S):
            return ""
        count, self._count = self._count, 0
        return f"{counted(count, 'start-up line')} of TensorFlow folded; --raw shows them"
