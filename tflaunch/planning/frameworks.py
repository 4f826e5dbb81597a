"""The environment variables that the launchers of PyTorch and JAX would set for each task; pure.

The tasks whose success decides the end of a run are the processes of such a program, in this order: the chief, the
workers, then jobs of the user's own that decide.  The first one is rank 0: the others meet at its port.  A ps or an
evaluator has no rank.

**A task is a node with one process.**  `LOCAL_RANK` is 0 and `LOCAL_WORLD_SIZE` 1 in each, also where several share a
host.  A task sees its own GPUs and no others (`CUDA_VISIBLE_DEVICES`), so that `cuda:{LOCAL_RANK}` must be its first:
`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` with a LOCAL_RANK of 1 fails where one GPU is visible.
`torchrun --virtual-local-rank` decides the same, and in Kubeflow's PyTorchJob each worker is a pod with its own GPUs.
The other way is that each task sees all GPUs of the run on its host (torchrun by default, Ray Train).  Then a program
that says only `cuda` would get the GPU of another task, it would be open which two GPUs a rank gets
(`--gpus-per-worker 2`), and tasks could use each other's GPUs.  NCCL finds the fast way between the GPUs of two tasks
also where neither sees those of the other (CUDA 10.1 or newer).

What the variables mean stays true: RANK = GROUP_RANK x LOCAL_WORLD_SIZE + LOCAL_RANK, and Lightning, which counts
`num_nodes` x `devices`, finds WORLD_SIZE nodes of one device.

torchrun's TORCHELASTIC_* are left out: they say that an agent of torchrun's keeps the store and counts restarts.

JAX (0.12) reads only JAX_COORDINATOR_ADDRESS by itself: `jax.distributed.initialize(num_processes=..., process_id=...)`
takes the other two as arguments.  JAX_LOCAL_DEVICE_IDS is not set: all GPUs that a task sees are its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tflaunch.protocol.job import EVALUATOR, PS, Framework, JobSpec, Role, TaskId, deciding, ends_as

# Those that have neither flags for a cluster nor parameter servers.
OF_THEIR_OWN: frozenset[Framework] = frozenset({"jax", "torch"})

# Words in a program's text (names that it imports or uses, variables that it reads), and the framework they mean.
SIGNS: Mapping[str, Framework] = {
    **dict.fromkeys(
        (
            "torch.distributed", "init_process_group", "DistributedDataParallel", "FullyShardedDataParallel",
            "TrainingArguments", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "MASTER_ADDR",
            "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        ),
        "torch",
    ),
    **dict.fromkeys(
        (
            "jax.distributed", "multihost_utils", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID",
        ),
        "jax",
    ),
}  # fmt: skip


def started_by(words: Iterable[str]) -> Framework:
    """The framework that these words of a program's text mean; "auto" where they mean none, or several."""
    found = {SIGNS[word] for word in words if word in SIGNS}
    return found.pop() if len(found) == 1 else "auto"


def roles_for(framework: Framework, roles: Mapping[str, Role]) -> dict[str, Role]:
    """The roles, without ps where the framework has none, unless the user asked for some."""
    ps = roles.get(PS, Role())
    if framework not in OF_THEIR_OWN or ps.count is not None:
        return dict(roles)
    return {**roles, PS: dataclasses.replace(ps, count=0)}


def ranks(job: JobSpec, cluster: Mapping[str, Sequence[str]]) -> list[TaskId]:
    """The tasks of that cluster in the order of their ranks; `cluster` maps a job to the addresses of its tasks."""
    names = [
        name
        for name in cluster
        if name not in (PS, EVALUATOR) and (job.role(name).end or ends_as(name)) == "decides"
    ]
    return sorted(
        (TaskId(name, index) for name in names for index in range(len(cluster[name]))), key=deciding
    )


def variables(
    job: JobSpec,
    cluster: Mapping[str, Sequence[str]],
    ranked: Mapping[TaskId, int],
    task: TaskId,
    interface: str,
) -> dict[str, str]:
    """The variables with the rank of `task` (its number in `ranked`) and the address of rank 0; none without a rank.

    `interface` is the one by which its peers reach its host, "" where that is not known.
    """
    if task not in ranked or job.framework == "tensorflow":
        return {}
    first, size, mine = next(iter(ranked)), len(ranked), ranked[task]
    meeting = cluster[first.job][first.index]
    address, _, port = meeting.rpartition(":")
    found: dict[str, str] = {}
    if job.framework != "jax":
        found |= {
            "MASTER_ADDR": address.strip("[]"),
            "MASTER_PORT": port,
            "RANK": str(mine),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(mine),
            "GROUP_WORLD_SIZE": str(size),
            "ROLE_RANK": str(task.index),
            "ROLE_WORLD_SIZE": str(len(cluster[task.job])),
        }
        if (
            interface
        ):  # else gloo listens where its host's own name leads: as Debian installs it, to 127.0.1.1
            found["GLOO_SOCKET_IFNAME"] = interface
    if job.framework != "torch":
        found |= {
            "JAX_COORDINATOR_ADDRESS": meeting,
            "JAX_NUM_PROCESSES": str(size),
            "JAX_PROCESS_ID": str(mine),
        }
    return found
