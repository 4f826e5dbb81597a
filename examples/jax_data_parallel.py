"""Synchronous training with JAX: one array over the devices of all processes, `jit` does the rest.

Every worker is a process of `jax.distributed` and reads a part of the data; a batch is one array that is spread over
all devices of all workers, and the gradient of its mean loss is summed between them: by NCCL where they have GPUs,
else by gloo.

    tflaunch run hostfiles/local.yaml examples/jax_data_parallel.py --framework jax --workers 2

JAX finds the coordinator by itself (JAX_COORDINATOR_ADDRESS); how many processes there are, and which one this is, it
must be told.  Each worker sees its own GPUs only, so that all devices that it finds are its own.

When one worker fails, the others cannot go on: with `--restarts 3` all start again, together, and go on from the last
checkpoint.  Process 0 writes and reads it on its own host, and sends what it has read to the others.  These programs
ignore the request to end; a small `--grace` saves the wait.

The data are the points of a noisy plane in ten dimensions; each worker draws from every n-th of them.  Each worker
ends with an error if the loss has not fallen.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DIMENSIONS = 10
NOISE = 0.1  # standard deviation: the loss cannot fall below its square
POINTS = 4096


def parse_flags(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=1000, help="end at this step (%(default)s)")
    parser.add_argument(
        "--batch_size", type=int, default=32, help="points in a step, of each device (%(default)s)"
    )
    parser.add_argument("--learning_rate", type=float, default=0.01, help="(%(default)s)")
    parser.add_argument(
        "--train_dir",
        help="where process 0 writes checkpoints, and resumes from (in the working directory, one for each run)",
    )
    parser.add_argument(
        "--checkpoint_steps", type=int, default=100, help="between two checkpoints (%(default)s)"
    )
    return parser.parse_args(argv)


def points():
    """All points of the plane: x (POINTS, DIMENSIONS) and y (POINTS,), float32; the same on every worker."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(POINTS, DIMENSIONS))
    y = x @ np.arange(1, DIMENSIONS + 1) / DIMENSIONS + rng.normal(0, NOISE, POINTS)
    return x.astype(np.float32), y.astype(np.float32)


def train_dir(flags):
    """The same directory whenever this worker starts again, on the same host."""
    run = os.environ.get("TFLAUNCH_RUN")
    place = flags.train_dir or (f"train-{run}" if run else tempfile.mkdtemp(prefix="train-", dir="."))
    return Path(place).resolve()


def save(path, step, model):
    """Write a checkpoint, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".new").open("wb") as file:
        np.savez(file, step=step, **{name: np.asarray(value) for name, value in model.items()})
    path.with_suffix(".new").rename(path)


def resume(path):
    """(step, model) of the last checkpoint that process 0 has, on every process; of a new model, if there is none."""
    state = {"step": np.int32(0), "slope": np.zeros(DIMENSIONS, np.float32), "height": np.float32(0)}
    if jax.process_index() == 0 and path.exists():
        with np.load(path) as saved:
            state = {name: saved[name].astype(state[name].dtype) for name in state}
    state = multihost_utils.broadcast_one_to_all(state)
    return int(state.pop("step")), state


def loss_of(model, x, y):
    return jnp.mean((x @ model["slope"] + model["height"] - y) ** 2)


def train(flags):
    """Train until step `--steps`; returns the exit code."""
    devices = Mesh(np.array(jax.devices()), ("data",))
    spread = NamedSharding(devices, PartitionSpec("data"))
    everywhere = NamedSharding(devices, PartitionSpec())
    rank, world = jax.process_index(), jax.process_count()

    @jax.jit
    def step(model, x, y):
        loss, gradient = jax.value_and_grad(loss_of)(model, x, y)
        return jax.tree.map(lambda old, slope: old - flags.learning_rate * slope, model, gradient), loss

    path = train_dir(flags) / "checkpoint.npz"
    resumed, start = resume(path)
    if rank == 0:
        print(f"{f'resumes at step {resumed} from' if resumed else 'writes to'} {path.parent}", flush=True)
    x, y = points()
    first = float(loss_of(start, x, y))
    model = jax.device_put(start, everywhere)
    mine = np.arange(rank, POINTS, world)
    dice = np.random.default_rng([rank, resumed])
    for now in range(resumed + 1, flags.steps + 1):
        batch = dice.choice(mine, flags.batch_size * jax.local_device_count())
        part = (x[batch], y[batch])
        model, loss = step(model, *(jax.make_array_from_process_local_data(spread, each) for each in part))
        if now % flags.checkpoint_steps == 0 or now == flags.steps:
            loss.block_until_ready()
            if rank == 0:
                save(path, now, model)
                print(f"step {now}  loss of the batch {float(loss):.4f}", flush=True)

    last = float(loss_of(jax.tree.map(np.asarray, model), x, y))
    print(f"final loss {last:.6f} (first {first:.6f})", flush=True)
    if last < first or resumed:  # a resumed run may have nothing left to learn
        return 0
    print("the loss did not fall: try more --steps or a smaller --learning_rate", file=sys.stderr, flush=True)
    return 1


def main():
    flags = parse_flags()
    jax.config.update(
        "jax_check_proxy_envs", False
    )  # what it warns of, no_grpc_proxy, is what goes around them
    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
    )
    print(f"process {jax.process_index()} of {jax.process_count()}, on {jax.local_devices()}", flush=True)
    code = train(flags)
    jax.distributed.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
