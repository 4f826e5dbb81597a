"""PyTorch: what torchrun would set.

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
"""

from __future__ import annotations

from tflaunch.frameworks.framework import Framework, Rank


def _environment(rank: Rank) -> dict[str, str]:
    found = {
        "MASTER_ADDR": rank.address.strip("[]"),
        "MASTER_PORT": rank.port,
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank.rank),
        "GROUP_WORLD_SIZE": str(rank.size),
        "ROLE_RANK": str(rank.in_job),
        "ROLE_WORLD_SIZE": str(rank.job_size),
    }
    # Else gloo listens where its host's own name leads: as Debian installs it, to 127.0.1.1.
    if rank.interface:
        found["GLOO_SOCKET_IFNAME"] = rank.interface
    return found


FRAMEWORK = Framework(
    name="torch",
    title="PyTorch",
    packages=("torch",),
    names=frozenset(
        {
            "torch.distributed",
            "init_process_group",
            "DistributedDataParallel",
            "FullyShardedDataParallel",
            "TrainingArguments",
        }
    ),
    variables=frozenset(
        {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    ),
    launching=frozenset({"lightning", "pytorch_lightning", "accelerate", "deepspeed"}),
    by_rank=True,
    shares_port=True,
    environment=_environment,
)
