"""A plan, errors and ends of runs to show."""

from __future__ import annotations

from tests.support.screen import PS0, W0, W1
from tflaunch.launch.acquisition import Turn
from tflaunch.planning.cluster_plan import ClusterPlan, TaskPlan
from tflaunch.protocol.errors import (
    ConnectError,
    ConnectErrors,
)
from tflaunch.protocol.job import TaskId
from tflaunch.protocol.outcome import Outcome, TaskExit

TURN = Turn(2, ("bob's run b-1",), 1, 2, (("gpu01:0", "ada's run a-1 since 10:32"),))


# The rest of what is shown
def task_plan(task: TaskId, host: str, *gpus: str) -> TaskPlan:
    argv = (
        "python",
        "trainer.py",
        "--ps_hosts=gpu01:2000",
        "--worker_hosts=gpu01:2001,gpu02:2001",
        f"--job_name={task.job}",
        f"--task_index={task.index}",
        "--data",
        "my set",
    )
    port = 2000 if task.job == "ps" else 2001
    uuids = tuple(f"GPU-{index}" for index in gpus)
    return TaskPlan(task, host, host, port, uuids, gpus, argv, {"TF_CONFIG": "{}"}, (), None)


PLAN = ClusterPlan(
    "trainer-abc234",
    (task_plan(PS0, "gpu01"), task_plan(W0, "gpu01", "0", "3"), task_plan(W1, "gpu02", "1", "2")),
    ("gpu02 has [proxies]",),
)


FAILURES = ConnectErrors(
    {
        "gpu09": ConnectError("no answer within 10 s"),
        "gpu03": ConnectError("the host key is unknown", "ssh-keyscan {host} >> known_hosts"),
        "gpu04": ConnectError("the host key is unknown", "ssh-keyscan {host} >> known_hosts"),
    },
    64,
)


FIRST = TaskExit(W1, "gpu02", None, 9, 12.3, b"".join(b"line %d\n" % number for number in range(50)))
FAILED = Outcome(
    "trainer-abc234",
    "failed",
    137,
    75.0,
    {
        W1: FIRST,
        W0: TaskExit(W0, "gpu01", 1, None, 13.0),
        PS0: TaskExit(PS0, "gpu01", None, 15, 14.0, stopped=True),
    },
    FIRST,
    {"gpu07": "no connection", "gpu08": "no connection"},
    {"gpu02": ("pid 12 python (D)",)},
    "/state/trainer-abc234",
    {W1: "/var/tmp/run/logs/worker-1.log"},
)
