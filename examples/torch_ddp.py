"""Synchronous training with PyTorch: `DistributedDataParallel`, one process a GPU (or, without GPUs, a worker).

Every worker has a copy of the model and a part of the data; each step averages the gradients of all workers, by NCCL
where they have GPUs, else by gloo.

    tflaunch run hostfiles/local.yaml examples/torch_ddp.py --framework torch --workers 2

The variables are those of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...), so that torchrun starts this program, too.
Each worker sees its own GPU only: `LOCAL_RANK` is 0 in each.

When one worker fails, all others fail with it: with `--restarts 3` all start again, together, and go on from the last
checkpoint.  Rank 0 writes and reads it on its own host, and sends what it has read to the others.

The data are the points of a noisy plane in ten dimensions; each worker draws from every n-th of them.  Each worker
ends with an error if the loss has not fallen.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square
POINTS = 4096


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=1000, help="end at this step (%(default)s)")
    parser.add_argument(
        "--batch_size", type=int, default=32, help="points in a step, of each worker (%(default)s)"
    )
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where rank 0 writes checkpoints, and resumes from (in the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points(device):
    """All points of the plane: x (POINTS, DIMENSIONS) and y (POINTS, 1); the same on every worker."""
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(POINTS, DIMENSIONS, generator=dice)
    slope = torch.arange(1, DIMENSIONS + 1) / DIMENSIONS
    y = (x @ slope)[:, None] + NOISE * torch.randn(POINTS, 1, generator=dice)
    return x.to(device), y.to(device)


def train_dir(flags):
    """The same directory whenever this worker starts again, on the same host."""
    run = os.environ.get("TFLAUNCH_RUN")
    place = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
    return Path(place).resolve()


def save(path, step, model):
    """Write a checkpoint, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "model": model.state_dict()}, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def train(flags, device, rank, world):
    """Train until step `--steps`; returns the exit code."""
    model = torch.nn.Linear(DIMENSIONS, 1, device=device)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    done = torch.zeros(1, dtype=torch.int64, device=device)
    path = train_dir(flags) / "checkpoint.pt"
    if rank == 0 and path.exists():
        saved = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        done[0] = saved["step"]
    dist.broadcast(done, 0)
    resumed = int(done)
    if rank == 0:
        print(f"{f'resumes at step {resumed} from' if resumed else 'writes to'} {path.parent}", flush=True)

    x, y = points(device)
    loss_of = torch.nn.MSELoss()
    # Here all workers get the parameters of rank 0.
    parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    @torch.no_grad()
    def loss_of_all():
        return float(loss_of(model(x), y))

    first = loss_of_all()
    optimizer = torch.optim.SGD(parallel.parameters(), lr=flags.learning_rate)
    mine = torch.arange(rank, POINTS, world, device=device)
    dice = torch.Generator(device).manual_seed(rank + world * resumed)
    for now in range(resumed + 1, flags.steps + 1):
        batch = mine[torch.randint(len(mine), (flags.batch_size,), generator=dice, device=device)]
        optimizer.zero_grad()
        loss = loss_of(parallel(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        if rank == 0 and (now % flags.checkpoint_steps == 0 or now == flags.steps):
            save(path, now, model)
            print(f"step {now}  loss of the batch {float(loss.detach()):.4f}", flush=True)

    last = loss_of_all()
    print(f"final loss {last:.6f} (first {first:.6f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}, on {device}", flush=True)
    code = train(flags, device, rank, world)
    dist.barrier()  # rank 0 keeps the store that the others still may ask
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
