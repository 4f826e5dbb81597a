"""What may stand in the environment of a task."""

from __future__ import annotations

from collections.abc import Mapping

# Linux gives one argument, and one NAME=value of the environment, 32 pages with the closing NUL.
ARGUMENT_LIMIT_BYTES = 32 * 4096 - 1

# Set by the plan; with other values a task fails or hangs in ways that are hard to understand.
DECIDED: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "Choose GPUs with `gpus:` in the hostfile, --gpus-per-worker and --job-gpus.",
    "TF_CONFIG": "Leave it out; to hide it from a program, write `unset TF_CONFIG` in `setup:`.",
    "TF_GRPC_REUSE_PORT": "Leave it out: the ports are held for the tasks, which join them by this variable.",
    "TFLAUNCH_RUN": "Leave it out: `tflaunch stop` finds the processes of a run by it.",
    "TFLAUNCH_TASK": "Leave it out: `tflaunch stop` finds the processes of a run by it.",
}
